"""The configuration of a topic: every key has a rule, and whoever breaks one is told which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.errors import InvalidConfig
from rivven.limits import BATCH_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from rivven.log import KEYS, SyncPolicy, TopicConfig

DAY_MS = 24 * 3600 * 1000

GOOD = {
    "retention.ms": ["-1", "0", "86400000"],
    "retention.bytes": ["-1", "0", "1000000"],
    "max.message.bytes": ["1", str(BATCH_BYTES_MAX)],
    "segment.bytes": [str(SEGMENT_BYTES_MIN), str(SEGMENT_BYTES_MAX)],
    "segment.ms": ["-1", "0", "60000"],
    "cleanup.policy": ["delete", "compact", "compact,delete", "delete, compact"],
    "min.insync.replicas": ["1", "3"],
    "compression.type": ["none", "producer", "gzip", "snappy", "lz4", "zstd"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime"],
    "index.interval.bytes": ["1", "4096"],
    "min.cleanable.dirty.ratio": ["0", "0.5", "1"],
    "min.compaction.lag.ms": ["0", "5"],
    "max.compaction.lag.ms": ["1", "9223372036854775807"],
    "delete.retention.ms": ["0", "5"],
}
BAD = {
    "retention.ms": ["-2", "week", "", "1.5"],
    "retention.bytes": ["-2", "1GB"],
    "max.message.bytes": ["0", str(BATCH_BYTES_MAX + 1)],
    "segment.bytes": [str(SEGMENT_BYTES_MIN - 1), str(SEGMENT_BYTES_MAX + 1)],
    "segment.ms": ["-2", "x"],
    "cleanup.policy": ["", "shred", "compact,compact", "compact,shred"],
    "min.insync.replicas": ["0", "-1"],
    "compression.type": ["brotli", ""],
    "message.timestamp.type": ["createtime"],
    "index.interval.bytes": ["0"],
    "min.cleanable.dirty.ratio": ["-0.1", "1.1", "nan", "half"],
    "min.compaction.lag.ms": ["-1"],
    "max.compaction.lag.ms": ["0"],
    "delete.retention.ms": ["-1"],
}


def test_every_key_has_its_rule_shown_here():
    assert set(KEYS) == set(GOOD) == set(BAD)


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in GOOD.items() for text in texts])
def test_a_value_within_its_rule_is_taken(key, text):
    config = TopicConfig.from_map({key: text})
    again = TopicConfig.from_map(config.to_map())
    assert again == config


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in BAD.items() for text in texts])
def test_a_value_outside_its_rule_is_refused_by_name(key, text):
    with pytest.raises(InvalidConfig) as caught:
        TopicConfig.from_map({key: text})
    assert caught.value.facts["key"] == key
    assert key in str(caught.value)


def test_the_defaults_are_a_week_in_one_gigabyte_segments():
    config = TopicConfig()
    assert (config.retention_ms, config.retention_bytes) == (7 * DAY_MS, -1)
    assert (config.segment_bytes, config.segment_ms) == (2**30, 7 * DAY_MS)
    assert (config.index_interval_bytes, config.cleanup_policy) == (4096, "delete")
    assert (config.deletes, config.compacts) == (True, False)


def test_a_policy_may_compact_and_delete():
    config = TopicConfig.from_map({"cleanup.policy": "delete,compact"})
    assert (config.deletes, config.compacts, config.cleanup_policy) == (True, True, "compact,delete")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("retention.msec", "retention.ms"), ("segment.byte", "segment.bytes"), ("cleanup_policy", "cleanup.policy")],
)
def test_a_slip_of_the_keyboard_is_told_the_nearest_key(slip, meant):
    with pytest.raises(InvalidConfig, match=f"did you mean {meant}"):
        TopicConfig.from_map({slip: "1"})


def test_a_key_like_no_other_is_told_all_keys():
    with pytest.raises(InvalidConfig) as caught:
        TopicConfig.from_map({"zzz": "1"})
    assert all(key in str(caught.value) for key in KEYS)


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=3))
def test_no_text_raises_anything_but_invalid_config(values):
    try:
        config = TopicConfig.from_map(values)
    except InvalidConfig:
        return
    assert set(values) <= set(config.to_map())


@given(st.text(max_size=12), st.sampled_from(sorted(KEYS)))
def test_no_value_raises_anything_but_invalid_config(text, key):
    try:
        config = TopicConfig.from_map({key: text})
    except InvalidConfig:
        return
    assert TopicConfig.from_map(config.to_map()) == config


# When a write counts as done


@pytest.mark.parametrize(
    ("text", "writes"), [("every_write", 1), ("none", 0), ("every_n_writes(1)", 1), ("every_n_writes(64)", 64)]
)
def test_a_sync_policy_reads_from_its_text(text, writes):
    assert SyncPolicy.parse(text).writes == writes


@pytest.mark.parametrize("writes", [0, 1, 2, 1000])
def test_a_sync_policy_reads_back_from_what_it_prints(writes):
    assert SyncPolicy.parse(str(SyncPolicy(writes))) == SyncPolicy(writes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every",
        "EVERY_WRITE",
        "every_n_writes",
        "every_n_writes(0)",
        "every_n_writes(-1)",
        "every_n_writes(x)",
        "every_n_writes(²)",
        "every_n_writes(1",
    ],
)
def test_another_text_is_no_sync_policy(text):
    with pytest.raises(InvalidConfig, match="sync_policy"):
        SyncPolicy.parse(text)
