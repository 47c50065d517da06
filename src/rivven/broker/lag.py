"""How far groups are behind: records that wait for them, and for how long the oldest has waited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rivven.errors import RivvenError
from rivven.log import Store

from .groups import GroupKeeper


class Lag(NamedTuple):
    group: str
    topic: str
    partition: int
    committed: int
    end: int
    waiting_ms: int
    """How old the first record is that the group has not read; 0 if it has read all."""

    @property
    def records(self) -> int:
        return max(0, self.end - self.committed)


def lags(groups: GroupKeeper, store: Store, now_ms: int) -> Iterator[Lag]:
    """Of every group and partition that something was committed for."""
    for group in groups.offsets.groups():
        for (topic, partition), committed in sorted(groups.offsets.of_group(group).items()):
            try:
                log = store.log(topic, partition)
                since_ms = log.timestamp_at(committed.offset)
            except (RivvenError, OSError):
                continue  # the topic is gone, or cannot be read there: other metrics tell
            waiting_ms = 0 if since_ms is None else max(0, now_ms - since_ms)
            yield Lag(group, topic, partition, committed.offset, log.high_watermark, waiting_ms)
