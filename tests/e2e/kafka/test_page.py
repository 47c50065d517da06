"""The page of the clients says what the tests here do, and nothing else."""

from __future__ import annotations

from pathlib import Path

from matrix import SAMPLES, lacks_table, table

PAGE = (Path(__file__).parents[3] / "docs" / "protocols" / "kafka-clients.md").read_text()


def test_the_page_shows_the_clients_as_they_are_tried() -> None:
    assert table() in PAGE, f"docs/protocols/kafka-clients.md should say\n{table()}"


def test_the_page_shows_what_a_client_cannot_write() -> None:
    assert lacks_table() in PAGE, f"docs/protocols/kafka-clients.md should say\n{lacks_table()}"


def test_the_page_counts_the_records() -> None:
    assert f"{len(SAMPLES)} kinds of records" in PAGE
