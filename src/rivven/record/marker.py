"""Transaction markers: the control batches that end a producer's transaction in a partition.

A marker is one record: the key says abort or commit, the value names the coordinator's epoch.
"""

from __future__ import annotations

import struct

from rivven.errors import Malformed
from rivven.ports import Buffer

from .batch import decode, encode
from .twin import kernel

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


def encode_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
) -> bytearray:
    key = _KEY.pack(_VERSION, _COMMIT if commit else _ABORT)
    return encode(
        [(timestamp_ms, key, _VALUE.pack(_VERSION, coordinator_epoch), ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(buffer: Buffer, position: int = 0) -> tuple[bool, int]:
    """(committed?, coordinator epoch) of the marker batch at `position`."""
    records = decode(buffer, position)
    header = kernel.parse_header(buffer, position)
    if not header.control or not header.transactional or len(records) != 1:
        raise Malformed(what="marker", reason="not a control batch of one record")
    key, value = records[0].key, records[0].value
    if key is None or len(key) != _KEY.size or value is None or len(value) < _VALUE.size:
        raise Malformed(what="marker", reason="key or value of another length")
    version, kind = _KEY.unpack(key)
    if version != _VERSION or kind not in (_ABORT, _COMMIT):
        raise Malformed(what="marker", reason=f"version {version}, type {kind}")
    return kind == _COMMIT, _VALUE.unpack_from(value)[1]
