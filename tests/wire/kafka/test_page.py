"""The compatibility page says what the table of apis says."""

from __future__ import annotations

from pathlib import Path

from rivven.wire.kafka.page import docs_page

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "kafka.md"


def test_the_page_in_the_documentation_is_current():
    assert PAGE.read_text() == docs_page(), "run `python -m rivven.wire.kafka.page > docs/protocols/kafka.md`"
