"""The plays about groups print what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing_groups import perform, plays


@pytest.mark.parametrize("path", plays(), ids=lambda path: path.stem)
def test_the_play(path: Path) -> None:
    promised = path.read_text()
    assert perform(promised) == promised, "renew with: python tests/scenarios/playing_groups.py --rewrite"


def test_there_are_plays() -> None:
    assert len(plays()) >= 10


def test_every_play_says_what_it_is_about() -> None:
    assert [path.name for path in plays() if not path.read_text().startswith("# ")] == []
