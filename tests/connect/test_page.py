"""The pages about connectors say what the connectors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivven.connect.page import navigation, pages

ROOT = Path(__file__).parents[2]
RENEW = "run `python -m rivven.connect.page`"


@pytest.mark.parametrize("path", sorted(pages()))
def test_the_page_is_current(path: str) -> None:
    page = ROOT / "docs" / path
    assert page.exists(), RENEW
    assert page.read_text() == pages()[path], RENEW


def test_there_is_no_page_for_what_is_gone() -> None:
    found = {
        str(page.relative_to(ROOT / "docs"))
        for kind in ("sources", "sinks", "transforms")
        for page in (ROOT / "docs" / "connect" / kind).glob("*.md")
    }
    assert found == {path for path in pages() if path != "connect/file.md"}, RENEW


def test_the_navigation_is_current() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert navigation(text) == text, RENEW
