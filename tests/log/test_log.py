"""One partition: offsets without holes, reads that show what is durable, and ends that can be cut."""

from __future__ import annotations

from contextlib import suppress
from errno import EIO, ENOSPC

import pytest
from building import (
    NOW_MS,
    at_every_halt,
    batch_of,
    facts_of,
    headers_of,
    names_of,
    new_world,
    records_of,
    remove_all,
    transactional,
    values_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import (
    BatchTooLarge,
    CorruptLog,
    DiskFull,
    OffsetOutOfRange,
    Overloaded,
    StoreClosed,
    SyncFailed,
)
from rivven.limits import DEFER_BYTES_MAX, SEALED_OPEN_MAX
from rivven.record import HEADER_BYTES, decode, encode, validate, walk


def filled(
    count: int = 20, *, value_bytes: int = 150, seed: int = 0, defer_bytes_max: int = DEFER_BYTES_MAX, **configs: str
):
    """Batches of two records each; about four to a segment."""
    chosen = {name.replace("_", "."): value for name, value in configs.items()}
    world = new_world(seed, configs=chosen, defer_bytes_max=defer_bytes_max)
    for number in range(count):
        world.write(b"%d" % number + bytes(value_bytes), b"tail %d" % number, timestamp_ms=NOW_MS + number)
    return world


# Appending


def test_offsets_and_positions_are_dense():
    world = new_world()
    sizes, places = [], []
    for count in (1, 3, 2):
        done = world.write(*[b"v"] * count)
        places.append((done.base_offset, done.next_offset, done.position, done.segment))
        sizes.append(len(batch_of(*[b"v"] * count)))
    assert places == [(0, 1, 0, 0), (1, 4, sizes[0], 0), (4, 6, sizes[0] + sizes[1], 0)]


def test_a_batch_gets_its_offset_and_epoch_in_place():
    world = new_world()
    world.write(b"a")
    batch = batch_of(b"b", b"c")
    world.put(batch, leader_epoch=5)
    header = validate(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1, 2, 5)


def test_a_batch_above_the_topics_limit_is_refused():
    world = new_world(configs={"max.message.bytes": "100"})
    with pytest.raises(BatchTooLarge) as caught:
        world.write(bytes(200))
    assert caught.value.facts["bytes_max"] == 100
    assert world.log().end == 0
    assert world.store.waiting == 0


def test_segments_roll_by_bytes():
    world = filled(20)
    bases = [segment.base_offset for segment in world.log().segments]
    assert len(bases) == 5
    assert all(segment.end_bytes <= 1024 for segment in world.log().segments)
    assert [segment.next_offset for segment in world.log().segments] == [*bases[1:], 40]
    assert [int(path[-24:-4]) for path in names_of(world.disk, ".log")] == bases


def test_segments_roll_by_time():
    world = new_world(configs={"segment.ms": "1000"})
    bases = []
    for _ in range(6):
        bases.append(world.write(b"v").segment)
        world.clock.advance(ms=400)
    assert bases == [0, 0, 0, 3, 3, 3]


def test_a_segment_that_is_empty_does_not_roll():
    world = new_world(configs={"segment.ms": "0"})
    log = world.log()
    assert log.roll() is log.active
    world.write(b"a")
    assert [segment.base_offset for segment in log.segments] == [0]
    world.write(b"b")
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_batch_larger_than_a_segment_has_one_of_its_own():
    world = new_world()
    segments = [world.write(bytes(size)).segment for size in (10, 5000, 10)]
    assert segments == [0, 1, 2]
    assert [len(value) for value in values_of(world.log())] == [10, 5000, 10]


def test_only_so_many_sealed_segments_stay_open():
    world = filled(80)
    world.store.checkpoint()
    records_of(world.log())
    assert len(world.log().segments) > SEALED_OPEN_MAX + 5
    assert sum(segment.loaded for segment in world.log().segments[:-1]) <= SEALED_OPEN_MAX


# Reading


def test_a_read_inside_a_batch_returns_that_batch():
    log = filled(3).log()
    for offset in range(6):
        header = next(walk(log.read(offset, bytes_max=1)))[1]
        assert header.base_offset == offset - offset % 2


def test_the_first_batch_comes_whole_however_large():
    world = new_world()
    world.write(bytes(3000))
    assert len(world.log().read(0, bytes_max=1)) > 3000


def test_a_read_stays_within_its_limit_after_the_first_batch():
    log = filled(4, value_bytes=10).log()
    one = len(log.read(0, bytes_max=1))
    assert len(log.read(0, bytes_max=2 * one)) == 2 * one
    assert len(log.read(0, bytes_max=3 * one - 1)) == 2 * one


def test_reads_lead_across_segments():
    world = filled(20)
    assert [record.offset for record in records_of(world.log())] == list(range(40))
    assert [header.base_offset for header in headers_of(world.log())] == list(range(0, 40, 2))


def test_nothing_at_or_above_the_high_watermark_is_shown():
    world = filled(2, defer_bytes_max=0)
    world.put(batch_of(b"not", b"durable"))
    log = world.log()
    assert (log.high_watermark, log.durable, log.end) == (4, 4, 6)
    assert [header.base_offset for _, header in walk(log.read(0, bytes_max=10_000))] == [0, 2]
    assert bytes(log.read(4, bytes_max=100)) == b""
    assert bytes(log.read(6, bytes_max=100)) == b""
    assert decode(log.read(4, bytes_max=100, upto=6))[0].value == b"not"
    world.store.flush()
    assert (log.high_watermark, decode(log.read(4, bytes_max=100))[0].value) == (6, b"not")


def test_a_limit_inside_the_log_ends_the_read_before_it():
    log = filled(4).log()
    assert [header.base_offset for _, header in walk(log.read(0, bytes_max=10_000, upto=4))] == [0, 2]


def test_an_offset_outside_the_log_is_refused_on_both_sides():
    world = filled(20)
    world.store.delete_before(world.log(), 10)
    for offset in (-1, 9, 41):
        with pytest.raises(OffsetOutOfRange) as caught:
            world.log().read(offset, bytes_max=1)
        assert caught.value.facts["start"] == 10
        assert caught.value.facts["offset"] == offset
    assert bytes(world.log().read(40, bytes_max=1)) == b""


def test_an_error_of_the_disk_comes_through_a_read():
    world = filled(3)
    world.disk.fail("read", EIO, path_contains=".log")
    with pytest.raises(CorruptLog, match="simulated EIO"):
        world.log().read(0, bytes_max=1)
    assert len(values_of(world.log())) == 6


def test_a_missing_segment_is_an_error_and_not_a_gap():
    world = filled(20)
    world.end("close")
    paths = names_of(world.disk, ".log")
    world.disk.remove(paths[2])
    world.open()
    log = world.log()
    bases = [int(path[-24:-4]) for path in paths]
    with pytest.raises(CorruptLog) as caught:
        log.read(bases[2], bytes_max=1)
    assert (caught.value.facts["first"], caught.value.facts["last"]) == (bases[2], bases[3] - 1)
    assert decode(log.read(bases[3], bytes_max=1))[0].offset == bases[3]


# Times


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=25),
    st.integers(-1, 61),
    st.integers(0, 20),
)
@settings(max_examples=40)
def test_an_offset_for_a_timestamp_is_that_of_a_linear_search(batches, asked_ms, start):
    world = new_world()
    for timestamps in batches:
        rows = [(at, None, bytes(60), ()) for at in timestamps]
        world.put(encode(rows))
    world.store.flush()
    log = world.log()
    start = min(start, log.end)
    world.store.delete_before(log, start)
    stamps = [at for timestamps in batches for at in timestamps]
    expected = next(((o, at) for o, at in enumerate(stamps) if at >= asked_ms and o >= start), None)
    assert log.offset_for_timestamp(asked_ms) == expected
    visible = list(enumerate(stamps))[start:]
    assert log.newest() == max(visible, key=lambda each: (each[1], -each[0]), default=None)


def test_the_newest_record_is_the_newest_that_can_be_seen():
    world = new_world()
    assert world.log().newest() is None
    world.write(b"a", timestamp_ms=10)
    world.put(batch_of(b"b", timestamp_ms=20))
    assert world.log().newest() == (0, 10)
    world.store.flush()
    assert world.log().newest() == (1, 20)


def test_a_record_that_is_not_durable_has_no_timestamp_yet():
    world = new_world()
    world.write(b"a", timestamp_ms=10)
    world.put(batch_of(b"b", timestamp_ms=20))
    assert world.log().offset_for_timestamp(15) is None
    world.store.flush()
    assert world.log().offset_for_timestamp(15) == (1, 20)


# Truncation


@given(st.integers(0, 41), st.integers(5, 25))
@settings(max_examples=60)
def test_truncation_leaves_whole_batches_below_the_offset(offset, count):
    world = filled(count)
    log = world.log()
    before = records_of(log)
    end = world.store.truncate(log, offset)
    kept = min(offset - offset % 2, 2 * count)
    assert (end, log.end, log.high_watermark, log.durable) == (kept,) * 4
    assert records_of(log) == before[:kept]
    done = world.write(b"next", b"after")
    assert done.base_offset == kept
    for how in ("kill", "crash"):
        world.reopen(how)
        assert values_of(world.log()) == [record.value for record in before[:kept]] + [b"next", b"after"]


def test_truncation_at_the_border_of_a_segment():
    world = filled(20)
    border = world.log().segments[2].base_offset
    world.store.truncate(world.log(), border)
    assert world.log().end == border
    assert world.write(b"a").base_offset == border
    world.reopen("crash")
    assert world.log().end == border + 1


def test_the_whole_log_may_go():
    world = filled(20)
    assert world.store.truncate(world.log(), 0) == 0
    assert len(names_of(world.disk, ".log")) == 1
    world.write(b"a")
    world.reopen("crash")
    assert values_of(world.log()) == [b"a"]


def test_truncation_after_the_end_changes_nothing():
    world = filled(3)
    assert world.store.truncate(world.log(), 100) == 6
    assert len(values_of(world.log())) == 6


def busy_world(seed: int = 0):
    world = new_world(seed)
    for turn in range(16):
        options = {"producer_epoch": 0, "base_sequence": turn, "leader_epoch": turn // 3}
        world.write(b"v" * 120, producer_id=turn % 3, **options)
        world.write(b"t", **transactional(producer_id=7, base_sequence=turn), leader_epoch=turn // 3)
        if turn % 3:
            world.mark(7, commit=turn % 3 == 1)
    return world


@pytest.mark.parametrize("offset", [0, 1, 5, 9, 13, 20, 26, 33, 40, 41])
def test_facts_after_a_truncation_are_those_of_a_fresh_rebuild(offset):
    world = busy_world()
    world.store.truncate(world.log(), offset)
    after = facts_of(world.log())
    world.end("close")
    remove_all(world.disk, ".state")
    world.open()
    assert facts_of(world.log()) == after
    assert all(row.batches[-1].last_offset < offset for row in after["producers"].values() if row.batches)
    assert all(entry.last_offset < offset for entry in after["aborted"])


def test_epochs_survive_a_restart_and_a_truncation():
    world = new_world()
    for turn in range(12):
        world.write(bytes(150), leader_epoch=turn // 3 * 2)
    ends = [world.log().facts.epochs.end_of(epoch, world.log().end) for epoch in range(8)]
    assert ends == [(0, 3), (0, 3), (2, 6), (2, 6), (4, 9), (4, 9), (6, 12), (6, 12)]
    for how in ("close", "kill", "crash"):
        world.reopen(how)
        assert [world.log().facts.epochs.end_of(epoch, world.log().end) for epoch in range(8)] == ends
    world.store.truncate(world.log(), 6)
    assert world.log().facts.epochs.entries() == [(0, 0), (2, 3)]
    world.reopen("crash")
    assert world.log().facts.epochs.entries() == [(0, 0), (2, 3)]


def test_a_truncation_waits_for_the_checkpoint_under_way():
    """Else the checkpoint would end with a snapshot of batches that are gone."""
    world = filled(6)
    (chore,) = [chore for chore in world.store.chores() if type(chore).__name__ == "SyncSegments"]
    with pytest.raises(Overloaded) as caught:
        world.store.truncate(world.log(), 2)
    assert caught.value.retriable
    chore.run()
    (following,) = world.store.finish(chore)
    following.run()
    world.store.finish(following)
    assert world.store.truncate(world.log(), 2) == 2


# The start


def test_the_start_moves_and_whole_segments_go():
    world = filled(20)
    log = world.log()
    bases = [segment.base_offset for segment in log.segments]
    assert world.store.delete_before(log, bases[2] + 3) == bases[2] + 3
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    assert records_of(log)[0].offset == bases[2] + 3
    assert len(names_of(world.disk, ".log")) == len(bases) - 2


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
def test_the_start_survives_a_restart(end):
    world = filled(20)
    world.store.delete_before(world.log(), 19)
    values = values_of(world.log())
    before = facts_of(world.log())
    world.reopen(end)
    assert (world.log().start, values_of(world.log()), facts_of(world.log())) == (19, values, before)


@pytest.mark.parametrize("offset", [-1, 18, 41])
def test_a_start_behind_the_present_one_or_beyond_the_watermark_is_refused(offset):
    world = filled(20)
    world.store.delete_before(world.log(), 19)
    with pytest.raises(OffsetOutOfRange):
        world.store.delete_before(world.log(), offset)


def test_all_of_a_log_may_be_deleted():
    world = filled(10)
    world.store.delete_before(world.log(), 20)
    assert values_of(world.log()) == []
    world.reopen("crash")
    assert (world.log().start, world.log().end) == (20, 20)
    assert world.write(b"a").base_offset == 20


def test_a_crash_at_any_point_of_a_deletion_leaves_the_old_start_or_the_new():
    starts = set()

    def check(world) -> None:
        log = world.log()
        starts.add(int(log.start))
        assert log.start in (0, 21)
        assert [record.offset for record in records_of(log)] == list(range(log.start, 40))
        assert world.store.recovery.intact

    taken = at_every_halt(
        lambda seed: filled(20, seed=seed), lambda world: world.store.delete_before(world.log(), 21), check, seeds=6
    )
    assert taken > 5
    assert starts == {0, 21}


def test_a_crash_at_any_point_of_a_truncation_leaves_the_old_end_or_the_new():
    ends = set()

    def check(world) -> None:
        ends.add(int(world.log().end))
        assert world.log().end in (20, 40)
        assert [record.offset for record in records_of(world.log())] == list(range(world.log().end))
        assert world.store.recovery.intact

    at_every_halt(lambda seed: filled(20, seed=seed), lambda world: world.store.truncate(world.log(), 21), check)
    assert ends == {20, 40}


def test_a_crash_at_any_point_of_appending_keeps_what_was_acknowledged():
    def act(world) -> None:
        for number in range(8):
            world.write(b"new %d" % number + bytes(200), b"tail")

    def check(world) -> None:
        values = values_of(world.log())
        assert len(values) >= 20
        assert [value[:6] for value in values[20::2]] == [b"new %d\0" % n for n in range((len(values) - 20) // 2)]
        assert world.store.recovery.intact

    at_every_halt(lambda seed: filled(10, seed=seed), act, check, stride=2)


# Transactions and producers


def test_readers_of_committed_data_stop_before_an_open_transaction():
    world = new_world()
    world.write(b"plain")
    world.write(b"t", **transactional(producer_id=7))
    world.write(b"plain")
    assert (world.log().last_stable, world.log().high_watermark) == (1, 3)
    world.mark(7, commit=True)
    assert world.log().last_stable == 4
    assert world.log().aborted_between(0, 10) == []


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
@pytest.mark.parametrize("snapshots", [True, False])
def test_aborted_transactions_are_known_after_a_restart(end, snapshots):
    world = busy_world()
    before = facts_of(world.log())
    assert before["aborted"]
    assert before["open"] == {7: world.log().last_stable}
    world.end(end)
    if not snapshots:
        remove_all(world.disk, ".state")
    world.open()
    assert facts_of(world.log()) == before
    assert world.log().aborted_between(0, 100) == before["aborted"]


@pytest.mark.parametrize("snapshots", [True, False])
def test_producers_keep_their_last_five_batches_over_a_restart(snapshots):
    world = new_world()
    for turn in range(30):
        world.write(bytes(120), producer_id=5, producer_epoch=2, base_sequence=turn)
    world.end("crash")
    if not snapshots:
        remove_all(world.disk, ".state")
    world.open()
    row = world.log().facts.producers.get(5)
    assert (row.epoch, [batch.base_offset for batch in row.batches]) == (2, [25, 26, 27, 28, 29])


# A full disk


def test_a_full_disk_takes_nothing_of_the_batch_and_resumes():
    world = new_world(defer_bytes_max=0)
    world.write(b"a")
    world.disk.fail("write", ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull) as caught:
        world.write(b"refused" * 20)
    assert caught.value.retriable
    assert (world.log().end, world.store.waiting) == (1, 0)
    assert values_of(world.log()) == [b"a"]
    assert world.write(b"b").base_offset == 1
    world.reopen("crash")
    assert values_of(world.log()) == [b"a", b"b"]


@pytest.mark.parametrize("operation", ["open", "write", "rename"])
def test_a_full_disk_at_a_roll_is_survived(operation):
    world = filled(4, defer_bytes_max=0)
    for path in (".log", ".state"):
        world.disk.fail(operation, ENOSPC, path_contains=path)
    written = []
    for number in range(12):
        value = b"%d" % number + bytes(200)
        with suppress(DiskFull):
            world.write(value)
            written.append(value)
    assert len(written) >= 10
    world.disk.heal()
    world.reopen("crash")
    assert values_of(world.log())[8:] == written


def test_a_disk_without_room_is_read_and_takes_writes_again():
    world = new_world(capacity_bytes=400_000)
    world.disk.capacity_bytes = sum(map(len, world.disk.snapshot().values())) + 3000
    written = []
    with suppress(DiskFull):
        for number in range(100):
            world.write(b"%d" % number + bytes(150))
            written.append(b"%d" % number + bytes(150))
    assert 5 < len(written) < 100
    assert values_of(world.log()) == written
    world.disk.capacity_bytes = None
    world.write(b"again")
    world.reopen("crash")
    assert values_of(world.log()) == [*written, b"again"]


def test_an_error_of_the_disk_in_a_write_ends_the_store_and_consumes_no_offset():
    world = new_world(defer_bytes_max=0)
    world.write(b"a")
    world.disk.fail("write", EIO, path_contains=".log")
    with pytest.raises(SyncFailed, match="EIO"):
        world.put(batch_of(b"b"))
    with pytest.raises(StoreClosed):
        world.put(batch_of(b"b"))
    world.end("kill")
    world.open()
    assert world.write(b"c").base_offset == 1
    assert values_of(world.log()) == [b"a", b"c"]


# Damage below what was synced


def test_a_flipped_bit_below_the_recovery_point_is_an_error_of_that_batch_alone():
    world = filled(20)
    world.end("close")
    path = names_of(world.disk, ".log")[1]
    world.disk.flip(path, HEADER_BYTES + 5)
    world.open()
    log = world.log()
    base = int(path[-24:-4])
    with pytest.raises(CorruptLog) as caught:
        log.read(base, bytes_max=10_000)
    assert (caught.value.facts["first"], caught.value.facts["last"]) == (base, base + 1)
    assert str(caught.value.facts["partition"]) == "t/0"
    assert path in str(caught.value)
    assert decode(log.read(base + 2, bytes_max=1))[0].offset == base + 2
