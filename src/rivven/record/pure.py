"""The pure twin: every loop over bytes, in plain Python. Slow, short, and the meaning of the native one.

Invariant: for any input both twins return equal values, write equal bytes and refuse the same bytes with `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivven.errors import Malformed
from rivven.ports import Buffer

from .header import (
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    INT64_MAX,
    INT64_MIN,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    crc_fault,
    fault,
)

if TYPE_CHECKING:
    from .pure_builder import Built

NewRecord = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""What `encode` takes: timestamp in ms, key, value and headers. The offset is the batch's to give."""


def crc32c(data: Buffer, crc: int = 0) -> int:
    from crc32c import crc32c as found  # here, since it takes its time to load, and the native twin has its own

    return int(found(data, crc))


def crc_between(buffer: Buffer, start: int, end: int) -> int:
    """The CRC of a part of the buffer, which must lie inside it."""
    assert 0 <= start <= end <= len(buffer), "the part lies inside the buffer"
    return crc32c(memoryview(buffer)[start:end])


def crc_changed(crc: int, before: Buffer, after: Buffer, rest: int) -> int:
    """The CRC of a message whose first bytes have changed, with `rest` bytes behind them that nobody has to look at.

    CRCs are polynomials, and linear: the difference of the first parts', moved on by the rest, is that of the whole.
    """
    assert len(before) == len(after), "as many bytes as before"
    change = crc32c(before) ^ crc32c(after)
    power = 0x00800000  # x to the eighth, with mirrored bits: one byte on
    while rest:
        if rest & 1:
            change = _crc_times(change, power)
        power = _crc_times(power, power)
        rest >>= 1
    return crc ^ change


def _crc_times(left: int, right: int) -> int:
    product = 0
    for place in range(31, -1, -1):
        if left >> place & 1:
            product ^= right
        right = right >> 1 ^ (0x82F63B78 if right & 1 else 0)
    return product


# Batches


def checked_header(buffer: Buffer, position: int, bytes_max: int) -> BatchHeader | None:
    """The header of a batch that is all there, within the limit and true to its CRC; None where it is not."""
    try:
        header = parse_header(buffer, position)
    except Malformed:
        return None
    end = position + header.batch_bytes
    if header.batch_bytes > bytes_max or end > len(buffer):
        return None
    return header if crc_between(buffer, position + CRC_FROM, end) == header.crc else None


def plain_run(buffer: Buffer, ends: list[int], bytes_max: int) -> tuple[int, bool] | None:
    """How many records there are in batches that stand end to end, each up to one of the `ends`, and whether any of
    them is compressed. None unless every one is whole, within the limit and true to its CRC, has a record at each of
    its offsets, and is nobody's: neither numbered by a producer nor part of a transaction."""
    begin = records = seen = 0
    for end in ends:
        header = checked_header(buffer, begin, bytes_max)
        if (
            header is None
            or header.batch_bytes != end - begin
            or header.attributes & (CONTROL | TRANSACTIONAL)
            or header.producer_id >= 0
            or header.count != header.last_offset_delta + 1
        ):
            return None
        seen |= header.attributes
        records += header.count
        begin = end
    return (records, bool(seen & CODEC_MASK)) if begin == len(buffer) else None


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; `Malformed` if there is none. The rest of the batch need not be there yet."""
    header = _header_at(buffer, position, len(buffer))
    if header is None:
        raise Malformed(what="batch", reason=f"no {HEADER_BYTES} bytes of header at position {position}")
    if reason := fault(header):
        raise Malformed(what="batch", reason=reason)
    return header


def complete_plain(built: Built) -> tuple[bytearray, BatchHeader]:
    """The batch that a `BatchBuilder` gave, with a header of neither codec nor numbers before its records; and that
    header, which whoever appends the batch needs next."""
    batch, count, _, base_ms, max_ms = built
    assert len(batch) >= HEADER_BYTES, "there is room for the header"
    times = (base_ms, max_ms)
    HEADER.pack_into(batch, 0, 0, len(batch) - PREFIX_BYTES, -1, MAGIC, 0, 0, count - 1, *times, -1, -1, -1, count)
    CRC.pack_into(batch, CRC_AT, crc_between(batch, CRC_FROM, len(batch)))
    return batch, parse_header(batch)


def scan(
    buffer: Buffer, position: int, end: int, *, verify: bool, dense: bool = False
) -> tuple[int, int, str | None]:
    """Walk whole batches up to `end`: (end of the last good one, the offset after it or -1, why it stopped early).

    With `dense` each batch must begin where the one before it ends. The reason is None when the walk ran out of whole
    batches. Nothing that the bytes hold makes it raise.
    """
    end, next_offset = min(end, len(buffer)), -1
    while (header := _header_at(buffer, position, end)) is not None:
        if reason := fault(header):
            return position, next_offset, reason
        if header.batch_bytes > end - position:
            break
        if header.base_offset < next_offset:
            return position, next_offset, f"base offset {header.base_offset} after offset {next_offset - 1}"
        if dense and next_offset >= 0 and header.base_offset != next_offset:
            return position, next_offset, f"base offset {header.base_offset} where {next_offset} is due"
        if verify:
            found = crc_between(buffer, position + CRC_FROM, position + header.batch_bytes)
            if found != header.crc:
                return position, next_offset, crc_fault(header.crc, found)
        position += header.batch_bytes
        next_offset = header.next_offset
    return position, next_offset, None


def seek(buffer: Buffer, position: int, offset: int) -> int:
    """Where the first whole batch stands that ends at or after `offset`; -1 if none does.

    `Malformed` if nonsense stands before it.
    """
    while (header := _header_at(buffer, position, len(buffer))) is not None:
        if reason := fault(header):
            raise Malformed(what="batch", reason=reason)
        if header.batch_bytes > len(buffer) - position:
            break
        if header.last_offset >= offset:
            return position
        position += header.batch_bytes
    return -1


def fit(buffer: Buffer, position: int, bytes_max: int) -> int:
    """The end of the whole batches within `bytes_max` of `position`; the first one counts however long it is.

    `position` itself if not one whole batch is there; `Malformed` if nonsense is.
    """
    start = position
    while (header := _header_at(buffer, position, len(buffer))) is not None:
        if reason := fault(header):
            if position == start:
                raise Malformed(what="batch", reason=reason)
            break
        end = position + header.batch_bytes
        if end > len(buffer) or (position > start and end - start > bytes_max):
            break
        position = end
    return position


def _header_at(buffer: Buffer, position: int, end: int) -> BatchHeader | None:
    if position < 0 or end - position < HEADER_BYTES:
        return None
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


# Records to bytes


def encode_records(records: Sequence[NewRecord]) -> tuple[bytearray, int, int]:
    """The records after room for a header, with the base and the maximum timestamp of the batch."""
    base_ms = max_ms = records[0][0]
    out = bytearray(HEADER_BYTES)
    for delta, (timestamp_ms, key, value, headers) in enumerate(records):
        put_record(out, timestamp_ms - base_ms, delta, key, value, headers)
        max_ms = max(max_ms, timestamp_ms)
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise OverflowError(f"timestamp {timestamp_ms} does not fit into 64 bits")
    return out, base_ms, max_ms


def encode_kept(records: Sequence[Record], base_offset: int, base_timestamp_ms: int) -> bytearray:
    """Records at the offsets they have, after room for a header."""
    out = bytearray(HEADER_BYTES)
    for offset, timestamp_ms, key, value, headers in records:
        put_record(out, timestamp_ms - base_timestamp_ms, offset - base_offset, key, value, headers)
    return out


def put_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    if not INT64_MIN <= timestamp_delta <= INT64_MAX:
        raise OverflowError(f"a timestamp {timestamp_delta} ms from the batch's first does not fit into 64 bits")
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    _put_varint(body, len(headers))
    for name, header_value in headers:
        _put_bytes(body, name.encode())
        _put_bytes(body, header_value)
    _put_varint(out, len(body))
    out += body


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
        return
    view = memoryview(data)
    _put_varint(out, view.nbytes)
    out += view


def _put_varint(out: bytearray, value: int) -> None:
    bits = (value << 1) ^ (value >> 63)
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)


# Bytes to records


def decode_records(body: Buffer, start: int, end: int, header: BatchHeader) -> list[Record]:
    """The records of one batch from its unpacked bytes; `Malformed` unless they fill them exactly."""
    data = bytes(body[start:end])
    if header.count * RECORD_BYTES_MIN > len(data):
        raise _bad(f"{header.count} records do not fit into {len(data)} bytes")
    appended_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else None
    records: list[Record] = []
    at, last_delta = 0, -1
    for _ in range(header.count):
        at, last_delta, record = _get_record(data, at, last_delta, header)
        if appended_ms is not None:
            record = record._replace(timestamp_ms=appended_ms)
        elif not INT64_MIN <= record.timestamp_ms <= INT64_MAX:
            raise _bad("a timestamp beyond 64 bits")
        records.append(record)
    if at != len(data):
        raise _bad(f"{len(data) - at} bytes after the last record")
    return records


def _get_record(data: bytes, at: int, last_delta: int, header: BatchHeader) -> tuple[int, int, Record]:
    length, at = _get_varint(data, at, len(data), 32)
    end = at + length
    if length < 1 or end > len(data):
        raise _bad(f"a record of {length} bytes where {len(data) - at} are left")
    timestamp_delta, at = _get_varint(data, at + 1, end, 64)
    offset_delta, at = _get_varint(data, at, end, 32)
    if not last_delta < offset_delta <= header.last_offset_delta:
        raise _bad(f"offset delta {offset_delta} after {last_delta}, of at most {header.last_offset_delta}")
    key, at = _get_bytes(data, at, end)
    value, at = _get_bytes(data, at, end)
    headers, at = _get_headers(data, at, end)
    if at != end:
        raise _bad(f"{end - at} bytes at the end of a record")
    timestamp_ms = header.base_timestamp_ms + timestamp_delta
    return at, offset_delta, Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers)


def _get_headers(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = _get_varint(data, at, end, 32)
    if not 0 <= count <= (end - at) // 2:
        raise _bad(f"{count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _get_bytes(data, at, end)
        value, at = _get_bytes(data, at, end)
        if name is None:
            raise _bad("a header without a name")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise _bad("a header name that is not UTF-8") from None
    return tuple(headers), at


def _get_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _get_varint(data, at, end, 32)
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise _bad(f"a field of {length} bytes where {end - at} are left")
    return data[at : at + length], at + length


def _get_varint(data: bytes, at: int, end: int, bits_max: int) -> tuple[int, int]:
    bits = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            if bits >> bits_max:
                break
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7
        if shift >= bits_max:
            break
    raise _bad(f"a varint that ends outside its record or beyond {bits_max} bits")


def _bad(reason: str) -> Malformed:
    return Malformed(what="records", reason=reason)


# Keys to partitions


def murmur2(data: Buffer) -> int:
    """MurmurHash2 with the seed that every Kafka client uses, as a signed 32-bit number."""
    view = memoryview(data)
    whole = len(view) & ~3
    state = 0x9747B28C ^ len(view)
    for (word,) in _WORD.iter_unpack(view[:whole]):
        mixed = word * _MIX & _MASK
        mixed = (mixed ^ mixed >> 24) * _MIX & _MASK
        state = (state * _MIX & _MASK) ^ mixed
    if len(view) > whole:
        state = (state ^ int.from_bytes(view[whole:], "little")) * _MIX & _MASK
    state = (state ^ state >> 13) * _MIX & _MASK
    state ^= state >> 15
    return state - 2**32 if state >= 2**31 else state


_WORD = struct.Struct("<I")
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF
