"""Whole batches: checked, patched, stamped, walked, encoded, decoded and thinned out. The loops are the twins'.

Invariant: no bytes from outside make these raise anything but `Malformed` (or `BatchTooLarge`, where a limit is
asked for), and none make them hold more than `BATCH_UNPACKED_BYTES_MAX` at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from rivven.errors import BatchTooLarge, Malformed
from rivven.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, BATCH_UNPACKED_BYTES_MAX
from rivven.ports import Buffer

from .compression import compress, decompress
from .header import (
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    Record,
    crc_fault,
)
from .pure import NewRecord
from .pure_builder import Built
from .twin import kernel

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_LEADER_EPOCH_AT = 12
_MAX_TIMESTAMP_AT = 35
_NUMBERS = struct.Struct(">qhi")
_NUMBERS_AT = 43


def validate(buffer: Buffer, position: int = 0, *, bytes_max: int = BATCH_BYTES_MAX) -> BatchHeader:
    """The header of a batch that is all there, within `bytes_max` and true to its CRC."""
    good = kernel.checked_header(buffer, position, bytes_max)
    if good is not None:
        return good
    header = kernel.parse_header(buffer, position)  # once more, slowly, to say what is wrong
    batch_bytes = header.batch_length + PREFIX_BYTES  # not the property: a broker does this for every batch
    if batch_bytes > bytes_max:
        raise BatchTooLarge(batch_bytes=batch_bytes, bytes_max=bytes_max)
    if batch_bytes > len(buffer) - position:
        raise _cut_short(buffer, position, header)
    found = kernel.crc_between(buffer, position + CRC_FROM, position + batch_bytes)
    if found != header.crc:
        raise Malformed(what="batch", reason=crc_fault(header.crc, found))
    return header


def _cut_short(buffer: Buffer, position: int, header: BatchHeader) -> Malformed:
    reason = f"{len(buffer) - position} of its {header.batch_bytes} bytes are there"
    return Malformed(what="batch", reason=reason)


def _whole_header(buffer: Buffer, position: int) -> BatchHeader:
    header = kernel.parse_header(buffer, position)
    if header.batch_bytes > len(buffer) - position:
        raise _cut_short(buffer, position, header)
    return header


def walk(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch; a last one that is cut short ends the walk, nonsense is `Malformed`."""
    end = len(buffer) if end is None else min(end, len(buffer))
    while end - position >= HEADER_BYTES:
        header = kernel.parse_header(buffer, position)
        if header.batch_bytes > end - position:
            return
        yield position, header
        position += header.batch_bytes


def patch(buffer: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Give the batch its place in the log, in the bytes that the CRC leaves out."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def stamp(buffer: bytearray | memoryview, timestamp_ms: int, position: int = 0) -> None:
    """Give every record of the batch the time of its append, without touching the records."""
    header = _whole_header(buffer, position)
    before = bytes(buffer[position + CRC_FROM : position + HEADER_BYTES])
    _ATTRIBUTES.pack_into(buffer, position + CRC_FROM, header.attributes | LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _reseal(buffer, position, header, before)


def number(
    buffer: bytearray | memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
    position: int = 0,
) -> None:
    """Give a batch its producer's numbers, without touching the records."""
    header = _whole_header(buffer, position)
    before = bytes(buffer[position + CRC_FROM : position + HEADER_BYTES])
    flags = header.attributes & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
    _ATTRIBUTES.pack_into(buffer, position + CRC_FROM, flags)
    _NUMBERS.pack_into(buffer, position + _NUMBERS_AT, producer_id, producer_epoch, base_sequence)
    _reseal(buffer, position, header, before)


def _seal(buffer: bytearray | memoryview, position: int, batch_bytes: int) -> None:
    crc = kernel.crc_between(buffer, position + CRC_FROM, position + batch_bytes)
    CRC.pack_into(buffer, position + CRC_AT, crc)


def _reseal(buffer: bytearray | memoryview, position: int, header: BatchHeader, before: bytes) -> None:
    """The header has changed behind its CRC, where it was as `before`: bring the CRC up to date, without reading the
    records. If it was false, for whatever reason, so it stays."""
    after = bytes(buffer[position + CRC_FROM : position + HEADER_BYTES])
    crc = kernel.crc_changed(header.crc, before, after, header.batch_bytes - HEADER_BYTES)
    CRC.pack_into(buffer, position + CRC_AT, crc)


# Records to a batch


def encode(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
    leader_epoch: int = -1,
    level: int | None = None,
) -> bytearray:
    """One batch of (timestamp_ms, key, value, headers) tuples; a bytearray, so that a broker may patch it."""
    count = len(records)
    if not 0 < count <= BATCH_RECORDS_MAX:
        raise ValueError(f"a batch holds 1 to {BATCH_RECORDS_MAX} records, not {count}")
    batch, base_ms, max_ms = kernel.encode_records(records)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes(codec, log_append_time, transactional, control),
        last_offset_delta=count - 1,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )
    return finish(batch, header, level)


def complete(
    built: Built,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    level: int | None = None,
) -> bytearray:
    """The batch that a `BatchBuilder` gave, with the header that it left room for."""
    batch, count, _, base_ms, max_ms = built
    if not 0 < count <= BATCH_RECORDS_MAX:
        raise ValueError(f"a batch holds 1 to {BATCH_RECORDS_MAX} records, not {count}")
    flags = int(codec) | (TRANSACTIONAL if transactional else 0)
    numbers = (producer_id, producer_epoch, base_sequence)
    header = BatchHeader(0, 0, -1, MAGIC, 0, flags, count - 1, base_ms, max_ms, *numbers, count)
    return finish(batch, header, level)


def attributes(codec: Codec, log_append_time: bool, transactional: bool, control: bool) -> int:
    return (
        int(codec)
        | (LOG_APPEND_TIME if log_append_time else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
    )


def finish(batch: bytearray, header: BatchHeader, level: int | None = None) -> bytearray:
    """Pack the records as the header's codec says, and put the header, with length and CRC, before them."""
    if len(batch) > BATCH_UNPACKED_BYTES_MAX:
        raise BatchTooLarge(batch_bytes=len(batch), bytes_max=BATCH_UNPACKED_BYTES_MAX)
    if header.attributes & CODEC_MASK:
        packed = compress(header.codec, memoryview(batch)[HEADER_BYTES:], level)
        batch[HEADER_BYTES:] = packed
    if len(batch) > BATCH_BYTES_MAX:
        raise BatchTooLarge(batch_bytes=len(batch), bytes_max=BATCH_BYTES_MAX)
    HEADER.pack_into(batch, 0, header.base_offset, len(batch) - PREFIX_BYTES, *header[2:])
    _seal(batch, 0, len(batch))
    return batch


def rewrite(
    buffer: Buffer, records: Sequence[Record], *, delete_horizon_ms: int | None = None, position: int = 0
) -> bytearray:
    """The same batch with these of its records alone, each at its offset; none leaves a header that holds the place.

    A delete horizon, new or kept, says when a cleaner may drop the tombstones; it takes the base timestamp's place.
    """
    header = kernel.parse_header(buffer, position)
    if delete_horizon_ms is not None:
        flags = header.attributes | DELETE_HORIZON
        header = header._replace(attributes=flags, base_timestamp_ms=delete_horizon_ms)
    if records:
        max_ms = max(record.timestamp_ms for record in records)
    else:
        max_ms = header.max_timestamp_ms
        header = header._replace(attributes=header.attributes & ~CODEC_MASK)
    batch = kernel.encode_kept(records, header.base_offset, header.base_timestamp_ms)
    return finish(batch, header._replace(max_timestamp_ms=max_ms, count=len(records)))


# A batch to records


def decode(buffer: Buffer, position: int = 0, *, verify: bool = True) -> list[Record]:
    """Every record of one batch. `verify=False` leaves out the CRC, for bytes that have been checked before."""
    header = validate(buffer, position) if verify else _whole_header(buffer, position)
    body, start, end = unpack(buffer, position, header)
    return kernel.decode_records(body, start, end, header)


def unpack(buffer: Buffer, position: int, header: BatchHeader) -> tuple[Buffer, int, int]:
    """Where the plain records of a whole batch are: in the buffer itself, or in a new one if they were packed."""
    start, end = position + HEADER_BYTES, position + header.batch_bytes
    if not header.attributes & CODEC_MASK:
        return buffer, start, end
    body = decompress(header.codec, memoryview(buffer)[start:end], BATCH_UNPACKED_BYTES_MAX)
    return body, 0, len(body)
