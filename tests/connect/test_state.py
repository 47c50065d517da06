"""What a run keeps for the next one."""

from __future__ import annotations

import pytest

from rivven.connect.state import StateDamaged, StateDirectory

PLACE = "sinks/lake/start.json"


def test_what_was_kept_is_known_and_what_was_not_is_not(tmp_path):
    state = StateDirectory(tmp_path)
    assert state.known(PLACE) is None
    state.keep(PLACE, '{"orders": {"0": 7}}')
    assert StateDirectory(tmp_path).known(PLACE) == {"orders": {"0": 7}}


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00" * 20])
def test_a_damaged_file_is_named_and_not_taken_for_one_that_says_nothing(tmp_path, text):
    state = StateDirectory(tmp_path)
    state.keep(PLACE, text)
    with pytest.raises(StateDamaged, match=r"start\.json cannot be read: .*; remove it"):
        state.known(PLACE)
