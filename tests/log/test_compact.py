"""Compaction: of each key the last value stays, offsets keep their places, and no crash shows half of it."""

from __future__ import annotations

from errno import ENOSPC

import pytest
from building import (
    NOW_MS,
    SMALL,
    World,
    at_every_halt,
    facts_of,
    headers_of,
    names_of,
    new_world,
    records_of,
    remove_all,
    survey,
    transactional,
    values_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.client.inbox import Visible
from rivven.errors import DiskFull
from rivven.log import CleanReport
from rivven.log.compact import Cleaning
from rivven.record import HEADER_BYTES, decode, encode, walk
from rivven.wire import responses as tell

HOUR_MS = 3_600_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR_MS)}


def compacted(seed: int = 0, **configs: str) -> World:
    return new_world(seed, configs=COMPACT | {name.replace("_", "."): value for name, value in configs.items()})


def put_keys(world: World, *pairs: tuple[bytes | None, bytes | None], timestamp_ms: int = NOW_MS, **options) -> None:
    """One batch with these keys and values."""
    world.put(encode([(timestamp_ms, key, value, ()) for key, value in pairs], **options))
    world.store.flush()


def seal(world: World) -> None:
    """Close the active segment, so that all before it may be cleaned."""
    world.log().roll()
    world.store.checkpoint()


def work_off(world: World) -> None:
    """Everything that is due."""
    while world.store.has_chores:
        following = world.store.chores()
        while following:
            chore = following.pop()
            chore.run()
            following += world.store.finish(chore)


def clean(world: World, **options) -> CleanReport | None:
    reports = world.store.clean(force=True, **options)
    return reports[0] if reports else None


def pairs_of(world: World) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(world.log())]


def check_row(world: World) -> None:
    """The segments follow one another, and offsets grow."""
    log = world.log()
    log.size_bytes  # noqa: B018 - opens what is closed
    segments = [log.opened(segment) for segment in log.segments]
    assert [a.next_offset for a in segments[:-1]] == [b.base_offset for b in segments[1:]]
    offsets = [header.base_offset for header in headers_of(log)]
    assert offsets == sorted(set(offsets))


def filled(seed: int = 0, count: int = 24, keys: int = 3, **configs: str) -> World:
    world = compacted(seed, **configs)
    for number in range(count):
        put_keys(world, (b"k%d" % (number % keys), b"%d" % number + bytes(120)), (b"only %d" % number, b"x"))
    seal(world)
    return world


def test_of_each_key_the_last_value_stays():
    world = filled()
    report = clean(world)
    latest = {key: offset for offset, key, _ in pairs_of(world)}
    assert [value.rstrip(b"\0") for _, key, value in pairs_of(world) if key.startswith(b"k")] == [b"21", b"22", b"23"]
    assert len(latest) == len(pairs_of(world)) == 27
    assert (report.records_before, report.records_after) == (48, 27)
    assert report.bytes_after < report.bytes_before
    check_row(world)


def test_what_shrank_is_joined_by_the_next_pass():
    world = filled()
    clean(world)
    before, count = pairs_of(world), len(world.log().segments)
    report = clean(world)
    assert report.segments_after < report.segments_before
    assert len(world.log().segments) < count
    assert pairs_of(world) == before
    check_row(world)


def test_records_without_a_key_stay():
    world = compacted()
    for number in range(10):
        put_keys(world, (None, b"%d" % number), (b"k", b"v"))
    seal(world)
    clean(world)
    assert [value for _, key, value in pairs_of(world) if key is None] == [b"%d" % number for number in range(10)]
    assert [offset for offset, key, _ in pairs_of(world) if key == b"k"] == [19]


def test_reads_lead_over_what_is_gone():
    world = filled()
    end = world.log().end
    clean(world)
    kept = [offset for offset, _, _ in pairs_of(world)]
    for offset in range(end):
        header = next(walk(world.log().read(offset, bytes_max=1)))[1]
        assert header.last_offset >= offset
    assert world.log().end == end
    assert kept[-1] == end - 1


def test_the_active_segment_is_never_cleaned():
    world = compacted()
    for number in range(3):
        put_keys(world, (b"k", b"%d" % number))
    world.store.checkpoint()
    assert clean(world) is None
    assert len(pairs_of(world)) == 3


def test_what_is_not_synced_is_never_cleaned():
    world = compacted()
    for number in range(12):
        put_keys(world, (b"k", b"%d" % number + bytes(150)))
    world.log().roll()
    assert clean(world) is None


def test_whoever_finds_that_nothing_is_synced_has_it_synced_for_the_next_time():
    """A write-ahead file may take days to fill up, and no checkpoint comes before."""
    world = compacted()
    work_off(world)
    put_keys(world, (b"k", b"1"), (b"k", b"2"))
    work_off(world)  # the next file, and no more
    world.log().roll()
    assert not world.store.has_chores
    assert clean(world) is None
    assert world.store.has_chores
    work_off(world)
    assert clean(world) is not None
    assert [value for _, _, value in pairs_of(world)] == [b"2"]
    assert not world.store.has_chores


# Tombstones


def test_a_tombstone_stays_for_its_time_and_then_goes():
    world = compacted()
    put_keys(world, (b"a", b"1"), (b"b", b"1"))
    put_keys(world, (b"a", None))
    seal(world)
    clean(world)
    assert pairs_of(world) == [(1, b"b", b"1"), (2, b"a", None)]
    world.clock.advance(ms=HOUR_MS - 1)
    clean(world)
    assert pairs_of(world) == [(1, b"b", b"1"), (2, b"a", None)]
    world.clock.advance(ms=1)
    clean(world)
    assert pairs_of(world) == [(1, b"b", b"1")]
    assert world.log().end == 3
    check_row(world)
    world.reopen("crash")
    assert (pairs_of(world), world.log().end) == ([(1, b"b", b"1")], 3)


def test_the_time_of_a_tombstone_counts_from_the_first_cleaning_and_survives_a_restart():
    world = compacted()
    put_keys(world, (b"a", None))
    seal(world)
    world.clock.advance(ms=10 * HOUR_MS)
    clean(world)
    assert pairs_of(world) == [(0, b"a", None)]
    world.reopen("close")
    world.clock.advance(ms=HOUR_MS)
    clean(world)
    assert pairs_of(world) == []


def test_a_value_after_a_tombstone_stays():
    world = compacted(delete_retention_ms="0")
    put_keys(world, (b"a", None))
    put_keys(world, (b"a", b"back"))
    seal(world)
    clean(world)
    clean(world)
    assert pairs_of(world) == [(1, b"a", b"back")]


# Against a model


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(st.tuples(st.sampled_from(b"abcdef"), st.integers(0, 40)), min_size=1, max_size=4),
        ),
        st.tuples(st.just("clean"), st.none()),
        st.tuples(st.just("wait"), st.integers(0, HOUR_MS)),
        st.tuples(st.sampled_from(["crash", "kill", "close"]), st.none()),
    ),
    max_size=25,
)


@given(operations, st.integers(0, 2**16))
@settings(max_examples=80)
def test_a_compacted_log_gives_what_a_dictionary_would(story, seed):
    world = compacted(seed)
    latest: dict[bytes, tuple[int, bytes | None]] = {}
    history: dict[int, tuple[bytes, bytes | None]] = {}
    for step, argument in story:
        if step == "put":
            base = world.log().end
            pairs = [(bytes([key]), bytes(length) if length > 8 else None) for key, length in argument]
            put_keys(world, *pairs, timestamp_ms=world.clock.now_ms())
            for offset, (key, value) in enumerate(pairs, base):
                latest[key] = (offset, value)
                history[offset] = (key, value)
        elif step == "clean":
            seal(world)
            clean(world)
        elif step == "wait":
            world.clock.advance(ms=argument)
        else:
            world.reopen(step)
    found = {offset: (key, value) for offset, key, value in pairs_of(world)}
    assert all(history[offset] == pair for offset, pair in found.items())
    for key, (offset, value) in latest.items():
        assert offset in found or value is None, f"the last value of {key!r} is gone"
    seal(world)
    clean(world)
    left = pairs_of(world)
    assert len({key for _, key, _ in left}) == len(left), "a key is there twice"
    assert {key: value for _, key, value in left if value is not None} == {
        key: value for key, (_, value) in latest.items() if value is not None
    }
    assert all(latest[key][0] == offset for offset, key, _ in left)
    check_row(world)
    world.clock.advance(ms=HOUR_MS)
    clean(world)
    assert all(value is not None for _, _, value in pairs_of(world)), "a tombstone has outlived its time"
    check_row(world)


# Crashes


def test_a_crash_at_every_step_leaves_the_same_last_values():
    def build(seed: int) -> World:
        return filled(seed, count=12, keys=2)

    world = build(0)
    before = {key: (offset, value) for offset, key, value in pairs_of(world)}

    def check(world: World) -> None:
        found = pairs_of(world)
        assert {key: (offset, value) for offset, key, value in found} == before
        assert world.store.recovery.intact
        assert world.store.recovery.cuts == []
        check_row(world)
        assert names_of(world.disk, ".clean") == []
        clean(world)
        assert len(pairs_of(world)) == len(before)

    taken = at_every_halt(build, lambda world: world.store.clean(force=True), check, seeds=1)
    assert taken > 40


def test_no_room_leaves_the_log_as_it_was():
    world = filled()
    before = pairs_of(world)
    world.disk.fail("write", ENOSPC, path_contains=".clean")
    with pytest.raises(DiskFull):
        world.store.clean(force=True)
    assert pairs_of(world) == before
    assert clean(world) is not None
    assert len(pairs_of(world)) == 27


def test_a_cleaning_overtaken_by_a_deletion_changes_nothing():
    world = filled()
    chore = world.store.begin_cleaning(world.log(), force=True)
    chore.run()
    assert world.store.begin_cleaning(world.log(), force=True) is None, "one at a time"
    world.store.delete_before(world.log(), 20)
    before = pairs_of(world)
    world.store.finish(chore)
    assert [pair for pair in pairs_of(world) if pair in before] == pairs_of(world)
    assert {key for _, key, _ in pairs_of(world)} == {key for _, key, _ in before}
    world.reopen("crash")
    assert {key for _, key, _ in pairs_of(world)} == {key for _, key, _ in before}


@pytest.mark.parametrize("ran_before", [True, False])
def test_a_cleaning_of_a_topic_that_is_deleted_meanwhile_comes_to_nothing(ran_before):
    world = filled()
    world.store.create_topic("other", 1, SMALL)
    chore = world.store.begin_cleaning(world.log(), force=True)
    if ran_before:
        chore.run()
    world.store.delete_topic("t")
    error = None
    if not ran_before:
        with pytest.raises(FileNotFoundError) as caught:
            chore.run()
        error = caught.value
    world.store.finish(chore, error)
    assert names_of(world.disk, "", under="topics/t/") == []
    world.write(b"goes on", topic="other")


# When


def test_a_log_that_is_clean_enough_is_left_alone():
    world = filled(min_cleanable_dirty_ratio="0.5")
    assert len(world.store.clean()) == 1
    assert world.store.clean() == []
    put_keys(world, (b"k0", b"new"))
    seal(world)
    assert world.store.clean() == [], "one dirty batch is not half of the log"
    for number in range(30):
        put_keys(world, (b"k0", b"%d" % number + bytes(120)))
    seal(world)
    assert len(world.store.clean()) == 1


def test_records_younger_than_the_least_lag_are_not_cleaned():
    world = filled(min_compaction_lag_ms="5000")
    assert clean(world) is None
    world.clock.advance(ms=5000)
    assert clean(world).records_after == 27


def test_records_older_than_the_greatest_lag_are_cleaned_whatever_the_ratio():
    world = filled(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="5000")
    world.store.clean()
    put_keys(world, (b"k0", b"new"))
    seal(world)
    assert world.store.clean() == []
    world.clock.advance(ms=5001)
    assert len(world.store.clean()) == 1


def test_a_log_that_only_deletes_is_not_compacted():
    world = filled(cleanup_policy="delete")
    assert world.store.clean(force=True) == []


def test_a_log_may_be_compacted_and_deleted():
    world = filled(cleanup_policy="compact,delete", retention_bytes="600", retention_ms="-1")
    clean(world)
    world.store.retain()
    assert world.log().start > 0
    assert pairs_of(world)
    assert clean(world) is None or pairs_of(world)


def test_segments_that_hold_none_of_the_new_keys_are_skipped():
    world = compacted(segment_bytes="1024")
    for number in range(24):
        put_keys(world, (b"once %d" % number, bytes(150)))
    seal(world)
    clean(world)
    for number in range(6):
        put_keys(world, (b"new %d" % number, bytes(150)))
    seal(world)
    before = pairs_of(world)
    report = clean(world)
    assert report.segments_skipped >= 4
    assert pairs_of(world) == before
    remove_all(world.disk, ".bloom")
    put_keys(world, (b"new", b"v"))
    seal(world)
    assert clean(world).segments_skipped == 0, "without its filter a segment is read"


# Transactions and producers


def test_records_of_an_aborted_transaction_go_and_those_of_a_committed_one_stay():
    world = compacted()
    put_keys(world, (b"a", b"aborted"), **transactional(producer_id=1))
    world.mark(1, commit=False)
    put_keys(world, (b"a", b"committed"), **transactional(producer_id=2))
    world.mark(2, commit=True)
    put_keys(world, (b"b", b"aborted"), **transactional(producer_id=1, base_sequence=1))
    world.mark(1, commit=False)
    seal(world)
    clean(world)
    assert [(key, value) for _, key, value in pairs_of(world)] == [(b"a", b"committed")]
    world.reopen("crash")
    assert [(key, value) for _, key, value in pairs_of(world)] == [(b"a", b"committed")]


def test_an_aborted_value_does_not_displace_an_older_one():
    world = compacted()
    put_keys(world, (b"a", b"good"))
    put_keys(world, (b"a", b"aborted"), **transactional(producer_id=1))
    world.mark(1, commit=False)
    seal(world)
    clean(world)
    assert [(key, value) for _, key, value in pairs_of(world)] == [(b"a", b"good")]


def test_nothing_from_an_open_transaction_on_is_cleaned():
    world = compacted()
    for number in range(8):
        put_keys(world, (b"a", b"%d" % number + bytes(150)))
    put_keys(world, (b"a", b"open"), **transactional(producer_id=1))
    first_open = world.log().last_stable
    for number in range(8):
        put_keys(world, (b"a", b"later %d" % number + bytes(150)))
    seal(world)
    clean(world)
    offsets = [offset for offset, _, _ in pairs_of(world)]
    assert offsets[-9:] == list(range(first_open, first_open + 9))
    assert len(offsets) < 17
    assert world.log().last_stable == first_open


def test_the_last_batch_of_a_producer_stays_though_its_records_go():
    world = compacted()
    put_keys(world, (b"a", b"1"), producer_id=5, producer_epoch=3, base_sequence=40)
    for number in range(12):
        put_keys(world, (b"a", b"%d" % number + bytes(150)))
    seal(world)
    before = facts_of(world.log())
    clean(world)
    assert pairs_of(world)[0][0] > 0
    world.end("close")
    remove_all(world.disk, ".state")
    world.open()
    assert facts_of(world.log())["producers"] == before["producers"]
    (batch,) = world.log().facts.producers.get(5).batches
    assert (batch.base_sequence, batch.base_offset) == (40, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_what_cleaning_leaves_of_a_transaction_never_reads_as_an_open_one(commit):
    """Also when the snapshots are lost and the facts come from the log alone."""
    world = compacted(delete_retention_ms="0")
    put_keys(world, (b"a", b"1"), **transactional(producer_id=1))
    world.mark(1, commit=commit)
    put_keys(world, (b"b", b"1"), **transactional(producer_id=2))
    put_keys(world, (b"b", b"2"), **transactional(producer_id=2, base_sequence=1))
    world.mark(2, commit=commit)
    for _ in range(3):
        seal(world)
        clean(world)
        world.clock.advance(ms=10)
        before = pairs_of(world)
        world.end("close")
        remove_all(world.disk, ".state")
        world.open()
        assert world.log().facts.transactions.open_transactions() == {}
        assert world.log().last_stable == world.log().high_watermark
        assert pairs_of(world) == before
        put_keys(world, (b"c", b"filler"))


def test_a_log_appended_to_after_cleaning_reads_on():
    world = filled()
    clean(world)
    before = values_of(world.log())
    world.write(b"after", key=b"new")
    world.reopen("crash")
    assert values_of(world.log()) == [*before, b"after"]


def test_a_deleted_key_stays_deleted_after_a_truncation_into_what_was_cleaned():
    world = compacted(delete_retention_ms="0")
    put_keys(world, (b"a", b"old"))
    for number in range(6):
        put_keys(world, (b"b", b"%d" % number + bytes(150)))
    seal(world)
    clean(world)
    world.store.truncate(world.log(), 1)
    put_keys(world, (b"a", None))
    for _ in range(3):
        seal(world)
        world.clock.advance(ms=10)
        clean(world)
    assert b"a" not in {key for _, key, value in pairs_of(world) if value is not None}


# Damage


def test_damage_in_what_was_written_since_stops_the_cleaning_before_it():
    world = filled()
    before = {record.offset: record for record in records_of(world.log())}
    path = names_of(world.disk, ".log")[2]
    base = int(path[-24:-4])
    world.disk.flip(path, HEADER_BYTES + 3)
    report = clean(world)
    assert path in report.note
    assert report.clean_upto <= base
    found, errors = survey(world.log())
    assert len(errors) == 1
    lost = range(errors[0].facts["first"], errors[0].facts["last"] + 1)
    behind = {offset: record for offset, record in before.items() if offset >= base and offset not in lost}
    assert {offset: record for offset, record in found.items() if offset >= base} == behind


def test_damage_in_what_was_cleaned_before_is_not_swept_away():
    """A later pass copies clean segments too: it must not take the readable part for all of it."""
    world = filled(count=40, keys=1)
    clean(world)
    path = names_of(world.disk, ".log")[0]
    world.disk.flip(path, HEADER_BYTES + 3)
    before, errors_before = survey(world.log())
    assert errors_before
    put_keys(world, (b"only 30", b"new"))
    seal(world)
    world.store.clean(force=True)
    found, errors = survey(world.log())
    keys = {record.key for record in before.values()}
    assert {record.key for record in found.values()} == keys
    assert errors, "the damage is no longer told"


# Readers of committed records, who hear of aborted transactions and wait for their markers


def committed(world: World) -> list[bytes | None]:
    """What a client of ours makes of what it is sent, all in one answer."""
    log = world.log()
    data = bytes(log.read(log.start, bytes_max=1 << 20, upto=log.last_stable))
    aborted = log.aborted_between(log.start, log.last_stable)
    told = [tell.AbortedTransaction(entry.producer_id, entry.first_offset) for entry in aborted]
    left, _ = Visible(told).of(data)
    return [record.value for at, _ in walk(left) for record in decode(left, at)]


@pytest.mark.parametrize("end", [None, "close", "kill", "crash"])
def test_a_producer_that_aborted_and_then_committed_is_read_after_its_marker_has_gone(end: str | None) -> None:
    world = compacted(segment_bytes="100000")
    put_keys(world, (b"z", b"before"))
    put_keys(world, (b"a", b"aborted"), **transactional(producer_id=1))
    world.mark(1, commit=False)
    put_keys(world, (b"b", b"committed"), **transactional(producer_id=1, base_sequence=1))
    world.mark(1, commit=True)
    put_keys(world, (b"y", b"after"))
    seal(world)
    for wait_ms in (0, 2 * HOUR_MS):
        world.clock.advance(ms=wait_ms)
        clean(world)
        assert committed(world) == [b"before", b"committed", b"after"]
        if end is not None:
            world.reopen(end)
            assert committed(world) == [b"before", b"committed", b"after"]
    assert not any(header.control and header.base_offset == 2 for header in headers_of(world.log()))
    assert world.log().facts.transactions.aborted() == []


def test_what_retention_overtook_is_not_taken_for_cleaned() -> None:
    world = compacted()
    put_keys(world, (b"z", b"before"))
    seal(world)
    put_keys(world, (b"a", b"aborted"), **transactional(producer_id=1))
    world.mark(1, commit=False)
    seal(world)
    log = world.log()
    cleaning = Cleaning.begin(world.disk, log, NOW_MS, force=True)
    assert cleaning is not None
    cleaning.run()  # both segments into one
    world.store.delete_before(log, 1)
    assert cleaning.finish().clean_upto == 1
    assert [header.transactional for header in headers_of(log)] == [True, True]
    assert committed(world) == []
    assert clean(world).clean_upto == 3
    assert committed(world) == []
