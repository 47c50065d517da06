"""Entries on their way into a group, in both twins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.log import CommitLimits, SyncPolicy
from rivven.log.commit import Commit
from rivven.log.queueing import PureQueue
from rivven.log.wal import ENTRY, Kind
from rivven.model import TopicPartition
from rivven.sim import SimClock

try:
    from rivven.log._queueing import Queue as NativeQueue
except ImportError:
    NativeQueue = None


def queued(twin, payloads, limits):
    """The groups that come of these payloads, each as (begun, size, writes)."""
    clock = SimClock()
    commit = Commit(SyncPolicy(1), limits)
    queue = twin(commit, clock)
    log = SimpleNamespace(topic_id=bytes(range(16)), partition=TopicPartition("t", 7))
    for upto, payload in enumerate(payloads):
        queue.queue(log, Kind.APPEND, payload, upto, *([] if upto % 3 else ["a file", upto * 7]))
    writes = [
        [(upto, head, bytes(payload), *where) for _, upto, head, payload, *where in group.writes]
        for group in commit.groups
    ]
    return [(g.begun_us, g.size_bytes, w) for g, w in zip(commit.groups, writes, strict=True)], commit.waiting_bytes


def test_an_entry_has_its_head_as_the_format_says():
    (((_, size_bytes, [(upto, head, payload, file, position)]),), waiting) = queued(
        PureQueue, [b"batch"], CommitLimits()
    )
    assert (upto, payload, head) == (0, b"batch", ENTRY.pack(Kind.APPEND, 5, bytes(range(16)), 7))
    assert (file, position) == ("a file", 0)
    assert size_bytes == waiting == ENTRY.size + 5


@pytest.mark.skipif(NativeQueue is None, reason="the native twin is not built")
@given(st.lists(st.binary(max_size=60), max_size=30), st.integers(30, 300), st.integers(1, 6))
def test_both_twins_do_the_same(payloads, group_bytes, group_writes):
    limits = CommitLimits(group_bytes=group_bytes, group_writes=group_writes)
    assert queued(PureQueue, payloads, limits) == queued(NativeQueue, payloads, limits)
