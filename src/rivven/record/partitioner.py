"""Which partition a key belongs to: the same one that every Kafka client would choose."""

from __future__ import annotations

from rivven.ports import Buffer

from .twin import kernel


def partition_for_key(key: Buffer, partitions: int) -> int:
    return (kernel.murmur2(key) & 0x7FFFFFFF) % partitions
