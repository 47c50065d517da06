"""The 61 bytes in front of every record batch, as one value.

The batch is the Kafka RecordBatch v2, byte for byte. Base offset and leader epoch stand outside the CRC, so a
broker patches them in place; everything from the attributes on is covered.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from rivven.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX

HEADER = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp,
maxTimestamp, producerId, producerEpoch, baseSequence, recordsCount"""
CRC = struct.Struct(">I")
HEADER_BYTES = HEADER.size
PREFIX_BYTES = 12
"""`batchLength` counts what follows it: the whole batch is this much longer."""
MAGIC = 2
CRC_AT = 17
CRC_FROM = 21
"""The CRC covers the batch from its attributes to its end."""
RECORD_BYTES_MIN = 7
"""No record is shorter, so a count that the bytes cannot hold is refused before anything is allocated for it."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """A parsed batch header. `batch_length` is the field on the wire; `batch_bytes` is the whole batch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a header for

    @property
    def batch_bytes(self) -> int:
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When a cleaner may drop this batch's tombstones; the base timestamp carries it."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None


class Record(NamedTuple):
    """One decoded record. Headers are (name, value) pairs in their order; names may repeat."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def fault(header: BatchHeader) -> str | None:
    """Why this cannot be the header of a batch, or None. Both twins hold these rules; only this one words them."""
    if header.magic != MAGIC:
        return f"magic {header.magic} instead of {MAGIC}"
    if header.batch_bytes < HEADER_BYTES:
        return f"batch length {header.batch_length} is shorter than a header"
    if header.batch_bytes > BATCH_BYTES_MAX:
        return f"{header.batch_bytes} bytes, above the {BATCH_BYTES_MAX} that any batch may have"
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        return f"unknown codec {header.attributes & CODEC_MASK}"
    if not 0 <= header.base_offset <= INT64_MAX - 2**31:
        return f"base offset {header.base_offset} out of range"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    if not 0 <= header.count <= min(header.last_offset_delta + 1, BATCH_RECORDS_MAX):
        return f"{header.count} records on {header.last_offset_delta + 1} offsets"
    return None


def crc_fault(stored: int, found: int) -> str:
    return f"CRC {found:#010x} where {stored:#010x} is stored"
