"""Which partition a record goes to: the one it names, the one its key hashes to, or the one that is sticky now.

Keyless records of a topic stay with one partition until it has had so many of them or so much time has passed, so
that they arrive in batches; then the next partition has its turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from rivven.record import partition_for_key


@dataclass(slots=True)
class _Turn:
    partition: int
    records: int
    since_ms: int


class Partitioner:
    def __init__(self, *, batch_records: int, linger_ms: int) -> None:
        self._batch_records = batch_records
        self._linger_ms = linger_ms
        self._turns: dict[str, _Turn] = {}
        self._next = 0

    def choose(self, topic: str, partitions: int, key: bytes | None, now_ms: int, records: int = 1) -> int:
        if key is not None:
            return partition_for_key(key, partitions)
        turn = self._turns.get(topic)
        if turn is None or turn.partition >= partitions:
            turn = self._turns[topic] = _Turn(self._next % partitions, 0, now_ms)
            self._next += 1  # topics start at different partitions, so that small ones spread
        elif turn.records >= self._batch_records or now_ms - turn.since_ms >= self._linger_ms:
            turn.partition, turn.records, turn.since_ms = (turn.partition + 1) % partitions, 0, now_ms
        turn.records += records
        return turn.partition

    def forget(self, topic: str) -> None:
        self._turns.pop(topic, None)
