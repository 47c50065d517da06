"""What the pipeline should have written, and what it did: counted by other means than the pipeline's own.

The generator makes the same orders for the same seed, so what is expected is computed here from its rows; what was
written is read with pyarrow and with the client, not with Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rivven import blocking
from rivven.connect.sources.datagen import Datagen, Rows

Totals = dict[str, tuple[int, Decimal]]
"""By country: how many orders, and their sum."""


@dataclass(frozen=True, slots=True)
class Count:
    """Rows in one place: how many there should be, how many there are, and what is wrong with them."""

    place: str
    expected: int
    found: int
    missing: int
    twice: int
    other: int = 0
    """Rows that should not be there, or say something else."""

    @property
    def is_exact(self) -> bool:
        return self.expected == self.found and not (self.missing or self.twice or self.other)


def count(place: str, expected: set[int], found: list[int]) -> Count:
    seen = Counter(found)
    missing = len(expected - seen.keys())
    twice = sum(times - 1 for times in seen.values())
    return Count(place, len(expected), len(found), missing, twice, len(seen.keys() - expected))


def compare_totals(expected: Totals, found: Totals) -> Count:
    missing = len(expected.keys() - found.keys())
    wrong = sum(found[country] != row for country, row in expected.items() if country in found)
    return Count("topic totals, by country", len(expected), len(found), missing, 0, wrong)


def made_orders(number: int, seed: int) -> pa.Table:
    """The orders that the generator makes, in this process."""
    generator = Datagen.configured({"pattern": "orders", "seed": seed, "max_events": number})
    assert isinstance(generator, Datagen)
    return pa.Table.from_batches(generator.read(Rows(0, number, seed, 0)))


def unmasked(place: str, emails: list[str]) -> Count:
    """None may be readable."""
    readable = sum("@" in email for email in emails)
    return Count(place, len(emails), len(emails), 0, 0, readable)


def orders_kept(orders: pa.Table) -> tuple[set[int], Totals]:
    """What is left after the filter, and its totals."""
    kept = orders.filter(pc.field("status") != "returned")
    totals: dict[str, tuple[int, Decimal]] = {}
    for country, amount in zip(values(kept, "country"), values(kept, "amount"), strict=True):
        number, total = totals.get(country, (0, Decimal(0)))
        totals[country] = number + 1, total + Decimal(str(amount)).quantize(Decimal("0.01"))
    return set(values(kept, "order_id")), totals


def values(table: pa.Table, column: str) -> list[Any]:
    found: list[Any] = table[column].to_pylist()
    return found


def read_topic(address: str, topic: str) -> list[dict[str, Any]]:
    """The committed records of a topic, in the order of each partition."""
    rows: list[dict[str, Any]] = []
    with blocking.connect(address) as client:
        _, partitions = client.get_metadata(topic)
        for number in range(partitions):
            _, end = client.get_offset_bounds(topic, number)
            with client.consumer(topic, number, start_offset=0) as consumer:
                while consumer.positions()[number] < end:
                    batch = consumer.fetch_arrow(columns=["value"], until=end, wait_ms=1000)
                    rows += [json.loads(value or b"null") for value in batch.column(0).to_pylist()]
    return rows


def read_lake(path: Path) -> pa.Table:
    """The committed parquet files; hidden ones are the sink's own books."""
    files = [str(file) for file in sorted(path.rglob("*.parquet")) if not _hidden(file.relative_to(path))]
    return ds.dataset(files, format="parquet", partitioning=None).to_table()


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def latest_totals(rows: list[dict[str, Any]]) -> Totals:
    """The last record of each key; counts only grow, so the largest is the last, whatever its partition."""
    totals: Totals = {}
    for row in rows:
        number, _ = totals.get(row["country"], (0, Decimal(0)))
        if row["orders"] >= number:
            totals[row["country"]] = row["orders"], Decimal(str(row["amount"])).quantize(Decimal("0.01"))
    return totals
