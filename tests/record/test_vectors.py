"""Batches that nobody here wrote decode to what went into them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

VECTORS = Path(__file__).parent.parent / "vectors"
NAMES = sorted(path.stem for path in VECTORS.glob("batch_*.txt"))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def load(name: str) -> tuple[bytes, list[tuple[object, ...]]]:
    batch, records = b"", []
    for line in (VECTORS / f"{name}.txt").read_text().splitlines():
        if line.startswith("# record "):
            records.append(expected(json.loads(line.removeprefix("# record "))))
        elif not line.startswith("#"):
            batch += bytes.fromhex(line.split("|")[0])
    return batch, records


def expected(fields: dict[str, object]) -> tuple[object, ...]:
    headers = tuple((name, unhexed(value)) for name, value in fields["headers"])
    return fields["offset"], fields["timestamp_ms"], unhexed(fields["key"]), unhexed(fields["value"]), headers


def unhexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def test_every_codec_of_both_producers_has_a_vector():
    assert sorted(f"batch_{source}_{codec}" for source in ("librdkafka", "kafka_python") for codec in CODECS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_batch_decodes_to_the_records_that_went_in(record: ModuleType, name: str):
    batch, records = load(name)
    assert record.validate(batch).codec.name.lower() == name.rsplit("_", 1)[1]
    decoded = record.decode(batch)
    assert decoded == records
    assert all(type(one) is record.Record for one in decoded)


@pytest.mark.parametrize("name", ["batch_kafka_python_none", "batch_librdkafka_none"])
def test_encoding_the_same_records_gives_the_same_bytes(record: ModuleType, name: str):
    batch, records = load(name)
    header = record.parse_header(batch)
    again = record.encode([one[1:] for one in records], leader_epoch=header.leader_epoch)
    assert again.hex() == batch.hex()


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_batch_has_the_same_rows_in_arrow(record: ModuleType, name: str):
    batch, records = load(name)
    rows = record.to_arrow(batch).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(one[2], one[3]) for one in records]
    assert [tuple((pair["key"], pair["value"]) for pair in row["headers"]) for row in rows] == [
        one[4] for one in records
    ]
