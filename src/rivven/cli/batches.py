"""Batches and records as lines: wide ones with every field, narrow ones where a terminal has no room for those."""

from __future__ import annotations

from typing import Any

from rivven.errors import Malformed
from rivven.log import Match, Unreadable, WalkedBatch
from rivven.record import BatchHeader, Record, decode, decode_marker

from .show import DIM, RED, say, tint, width
from .text import as_json, readable, shortened, when

WIDE = 132
"""How many columns the wide lines need."""


def is_wide() -> bool:
    return width() >= WIDE


def titles() -> str:
    if is_wide():
        return (
            f"{'position':>10} {'first':>10} {'last':>10} {'count':>6} {'bytes':>9} {'codec':<6} {'crc':<4}"
            f" {'epoch':>5} {'from':<23} {'to':<23} {'producer':<10} flags"
        )
    return (
        f"{'position':>8} {'first':>8} {'last':>8} {'count':>6} {'bytes':>8} {'codec':<6} {'crc':<3} {'epoch':>5} to"
    )


def batch_lines(batch: WalkedBatch) -> list[str]:
    header = batch.header
    crc = "ok" if batch.crc_ok else "BAD"
    first, last, codec = header.base_offset, header.last_offset, header.codec.name.lower()
    count, batch_bytes = header.count, header.batch_bytes
    if is_wide():
        lines = [
            f"{batch.position:>10} {first:>10} {last:>10} {count:>6} {batch_bytes:>9} {codec:<6} {crc:<4}"
            f" {header.leader_epoch:>5} {_base_time(header):<23} {when(header.max_timestamp_ms):<23}"
            f" {_producer(header):<10} {flags(header)}".rstrip()
        ]
    else:
        lines = [
            f"{batch.position:>8} {first:>8} {last:>8} {count:>6} {batch_bytes:>8} {codec:<6} {crc:<3}"
            f" {header.leader_epoch:>5} {when(header.max_timestamp_ms, short=True):<19}".rstrip()
        ]
        if header.producer_id >= 0 or flags(header) != "-":
            lines.append(tint(f"{'':>8} producer {_producer(header)}  {flags(header)}", DIM))
    if batch.fault is not None:
        lines = [tint(line, RED) for line in [*lines, f"{'':>10} {batch.fault}"]]
    return lines


def _base_time(header: BatchHeader) -> str:
    return "-" if header.delete_horizon_ms is not None else when(header.base_timestamp_ms)


def _producer(header: BatchHeader) -> str:
    """Its id, epoch and first sequence."""
    if header.producer_id < 0:
        return "-"
    return f"{header.producer_id}:{header.producer_epoch}:{header.base_sequence}"


def flags(header: BatchHeader) -> str:
    known = (
        ("transactional", header.transactional),
        ("control", header.control),
        ("append-time", header.log_append_time),
        ("horizon", header.delete_horizon_ms is not None),
    )
    return ",".join(name for name, is_set in known if is_set) or "-"


def unreadable_line(item: Unreadable) -> str:
    text = f"{item.position:>10} {item.length_bytes} bytes are not batches: {item.reason}"
    return tint(text, RED)


def show_records(batch: WalkedBatch, *, from_offset: int, count_max: int, full: bool) -> int:
    """Print a batch's records from an offset on, at most so many; returns how many."""
    if batch.header.count == 0:
        return 0
    if batch.header.control:
        say(f"{'':>12}{marker_text(batch)}")
        return 1
    try:
        records = decode(batch.data, verify=False)
    except Malformed as error:
        say(tint(f"{'':>12}its records do not decode: {error}", RED))
        return 0
    shown = [record for record in records if record.offset >= from_offset][:count_max]
    for record in shown:
        say(record_line(record, full=full))
    return len(shown)


def marker_text(batch: WalkedBatch) -> str:
    try:
        commit, epoch = decode_marker(batch.data)
    except Malformed as error:
        return f"control record: {error}"
    return f"{'commit' if commit else 'abort'} of producer {batch.header.producer_id}, coordinator epoch {epoch}"


def record_line(record: Record, *, full: bool) -> str:
    key, value = readable(record.key), readable(record.value)
    headers = " ".join(f"{readable(name.encode())}={readable(text)}" for name, text in record.headers)
    line = f"{'':>12}{record.offset}  {when(record.timestamp_ms)}  {key} -> {value}"
    line += f"  [{headers}]" if headers else ""
    return line if full else shortened(line, width())


# JSON


def record_json(record: Record) -> dict[str, Any]:
    key, key_encoding = as_json(record.key)
    value, value_encoding = as_json(record.value)
    headers = []
    for name, data in record.headers:
        text, encoding = as_json(data)
        headers.append({"name": name, "value": text, "value_encoding": encoding})
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "value_encoding": value_encoding,
        "headers": headers,
    }


def batch_json(partition: str | None, path: str, item: WalkedBatch | Unreadable) -> dict[str, Any]:
    if isinstance(item, Unreadable):
        return {
            "partition": partition,
            "file": path,
            "position": item.position,
            "bytes": item.length_bytes,
            "crc_ok": False,
            "fault": item.reason,
        }
    header = item.header
    return {
        "partition": partition,
        "file": path,
        "position": item.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "bytes": header.batch_bytes,
        "codec": header.codec.name.lower(),
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.transactional,
        "control": header.control,
        "log_append_time": header.log_append_time,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc_ok": item.crc_ok,
        "fault": item.fault,
    }


def records_json(batch: WalkedBatch, *, from_offset: int, count_max: int) -> list[dict[str, Any]]:
    try:
        records = decode(batch.data, verify=False) if batch.header.count else []
    except Malformed:
        return []
    return [record_json(record) for record in records if record.offset >= from_offset][:count_max]


def match_json(match: Match) -> dict[str, Any]:
    return {
        "partition": str(match.partition),
        "file": match.path,
        "position": match.position,
        "transaction": match.transaction,
        **record_json(match.record),
    }


def show_match(match: Match, *, full: bool) -> None:
    record = match.record
    state = f", of a transaction that is {match.transaction}" if match.transaction else ""
    say(f"{match.partition} offset {record.offset}, {when(record.timestamp_ms)} UTC{state}")
    value = "null, a tombstone: the key is deleted" if record.value is None and record.key is not None else None
    rows = [("key", readable(record.key)), ("value", value or readable(record.value))]
    rows += [("header", f"{readable(name.encode())}={readable(data)}") for name, data in record.headers]
    rows.append(("file", f"{match.path}, byte {match.position}"))
    for name, text in rows:
        line = f"  {name:<8}{text}"
        say(line if full else shortened(line, width()))
