"""Which offsets a group may commit, and which it has: those that count, and those of open transactions.

A commit counts once it is written; that of a transaction once the transaction has committed. Of a group without
members, offsets expire when nobody has needed them for the time that the operator set.
"""

from __future__ import annotations

from collections import Counter

from rivven import limits
from rivven.errors import GroupFull, OffsetMetadataTooLarge, RivvenError
from rivven.model import NO_PRODUCER, ProducerId, TopicPartition

from .group_log import Log
from .group_values import Commit, Fetched, FetchOffsets
from .offsets import CommittedOffset, OffsetKey, Offsets, decode_key, decode_value, encode_key, encode_value

Entries = tuple[tuple[OffsetKey, CommittedOffset], ...]


class Commits:
    def __init__(self) -> None:
        self.table = Offsets()
        self._open: dict[ProducerId, dict[OffsetKey, CommittedOffset]] = {}
        """What transactions that have not ended will commit."""
        self._writing: Counter[OffsetKey] = Counter()

    def sift(self, request: Commit) -> tuple[Entries, dict[TopicPartition, RivvenError]]:
        """What may be written, and what is refused, partition by partition."""
        if len(request.offsets) > limits.OFFSETS_PER_COMMIT_MAX:
            raise GroupFull(group=request.group, what="one commit", limit=limits.OFFSETS_PER_COMMIT_MAX)
        accepted: list[tuple[OffsetKey, CommittedOffset]] = []
        errors: dict[TopicPartition, RivvenError] = {}
        room = limits.OFFSETS_PER_GROUP_MAX - self.table.count(request.group)
        for partition, committed in request.offsets:
            key = OffsetKey(request.group, *partition)
            metadata_bytes = len(committed.metadata.encode())
            if metadata_bytes > limits.OFFSET_METADATA_BYTES_MAX:
                facts = {"metadata_bytes": metadata_bytes, "bytes_max": limits.OFFSET_METADATA_BYTES_MAX}
                errors[partition] = OffsetMetadataTooLarge(**facts)
            elif self.table.get(key) is None and room <= 0:
                errors[partition] = GroupFull(
                    group=request.group, what="one more offset", limit=limits.OFFSETS_PER_GROUP_MAX
                )
            else:
                accepted.append((key, committed))
                room -= self.table.get(key) is None
        return tuple(accepted), errors

    def begin(self, entries: Entries) -> Log:
        """Records of a commit that is now being written."""
        self._writing.update(key for key, _ in entries)
        return tuple((encode_key(key), encode_value(committed)) for key, committed in entries)

    def end(self, entries: Entries, producer_id: ProducerId, *, written: bool) -> None:
        self._writing -= Counter(key for key, _ in entries)
        if written and producer_id != NO_PRODUCER:
            self._open.setdefault(producer_id, {}).update(entries)
        elif written:
            for key, committed in entries:
                self.table.apply(key, committed)

    def end_transaction(self, producer_id: ProducerId, *, committed: bool) -> None:
        entries = self._open.pop(producer_id, {})
        if committed:
            for key, offset in entries.items():
                self.table.apply(key, offset)

    def replay(self, key: bytes, value: bytes | None, producer_id: ProducerId) -> None:
        if producer_id != NO_PRODUCER and value is not None:
            self._open.setdefault(producer_id, {})[decode_key(key)] = decode_value(value)
        else:
            self.table.replay(key, value)

    def keys(self, group: str) -> list[OffsetKey]:
        """All that the log has of this group once the present writes are done, but for open transactions."""
        return sorted({*self.table.keys_of_group(group), *(key for key in self._writing if key.group == group)})

    def groups_with(self, topic: str) -> list[str]:
        """The groups that have committed something for this topic, or are about to."""
        table = self.table
        kept = (key for group in table.groups() for key in table.keys_of_group(group))
        return sorted({key.group for key in (*kept, *self._writing) if key.topic == topic})

    def expired(self, group: str, idle_since_ms: int, now_ms: int, retention_ms: int) -> list[OffsetKey]:
        """Those that nobody has needed for the retention time; ones about to change are left alone."""
        busy = {key for entries in self._open.values() for key in entries} | self._writing.keys()
        found = []
        for partition, committed in self.table.of_group(group).items():
            key = OffsetKey(group, *partition)
            if max(committed.committed_ms, idle_since_ms) + retention_ms <= now_ms and key not in busy:
                found.append(key)
        return found

    def fetch(self, request: FetchOffsets) -> Fetched:
        wanted = request.partitions
        if wanted is None:
            wanted = tuple(TopicPartition(*partition) for partition in sorted(self.table.of_group(request.group)))
        open_keys = {key for entries in self._open.values() for key in entries} if request.stable_only else set()
        unstable = frozenset(one for one in wanted if OffsetKey(request.group, *one) in open_keys)
        return Fetched({one: self.table.get(OffsetKey(request.group, *one)) for one in wanted}, unstable)
