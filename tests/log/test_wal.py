"""The write-ahead log: what was synced is read back, what was not is not missed, and damage is told apart."""

from __future__ import annotations

from contextlib import suppress
from errno import EIO, ENOSPC
from random import Random

import pytest
from building import World, batch_of, finish_chores, new_world, values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.errors import SyncFailed
from rivven.limits import KIB, WAL_HEADER_BYTES
from rivven.log.chores import PrepareSpare
from rivven.log.document import write_whole
from rivven.log.wal import ENTRY, GROUP, OFFSET, Kind, Wal, WalContent, lost_files, note_path, read_offset, read_wal
from rivven.sim import Halted, SimDisk

TOPIC = bytes(range(16))


def wal_names(disk):
    return [name for name in disk.names("wal") if name.endswith(".wal")]


def new_wal(disk: SimDisk, *, file_bytes: int = 16 * KIB) -> Wal:
    disk.make_dirs("wal")
    disk.sync_dir("")
    return Wal(disk, "wal", file_bytes=file_bytes, files_max=4)


def add_spare(wal: Wal, file_bytes: int | None = None) -> None:
    job = wal.prepare(file_bytes)
    job.run()
    wal.prepared(job)


def write_group(wal: Wal, *payloads: bytes, sync: bool = True) -> tuple[str, int]:
    """Frame a group of appends and write it; returns the file it went to and its position there."""
    parts: list[bytes] = []
    for payload in payloads:
        parts += (ENTRY.pack(Kind.APPEND, len(payload), TOPIC, 3), payload)
    file, position, buffers = wal.frame(parts, len(payloads))
    file.write(b"".join(buffers), position)
    if sync:
        file.sync()
        wal.synced_number = wal.group_number
    return file.path, position


def payloads_of(content: WalContent) -> list[bytes]:
    return [bytes(entry.payload) for entry in content.entries()]


def test_groups_read_back_in_order():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    write_group(wal, b"one", b"two")
    write_group(wal, b"three")
    content = read_wal(disk, "wal", None)
    assert payloads_of(content) == [b"one", b"two", b"three"]
    assert [(e.kind, e.topic_id, e.partition) for e in content.entries()] == [(Kind.APPEND, TOPIC, 3)] * 3
    assert (content.last_group, content.last_sequence, content.damage, content.torn) == (2, 1, [], None)


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), max_size=30), st.integers(0, 10))
@settings(max_examples=40)
def test_any_groups_read_back_across_files(groups, covered):
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    for payloads in groups:
        body_bytes = sum(ENTRY.size + len(payload) for payload in payloads)
        if not wal.has_room(GROUP.size + body_bytes):
            add_spare(wal)
        write_group(wal, *payloads)
    content = read_wal(disk, "wal", covered)
    assert payloads_of(content) == [payload for payloads in groups[covered:] for payload in payloads]
    assert content.damage == []


def test_a_large_payload_is_written_as_it_is():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=256 * KIB)
    add_spare(wal)
    large = Random(1).randbytes(100_000)
    file, position, buffers = wal.frame([ENTRY.pack(Kind.APPEND, len(large), TOPIC, 0), large], 1)
    assert buffers[-1] is large
    file.write(b"".join(buffers), position)
    assert payloads_of(read_wal(disk, "wal", None)) == [large]


def test_an_offset_goes_through_an_entry():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    file, position, buffers = wal.frame([ENTRY.pack(Kind.START, 8, TOPIC, 0), OFFSET.pack(2**40)], 1)
    file.write(b"".join(buffers), position)
    (entry,) = read_wal(disk, "wal", None).entries()
    assert (entry.kind, read_offset(entry)) == (Kind.START, 2**40)


def test_a_full_file_gives_way_to_a_spare():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    add_spare(wal)
    add_spare(wal)
    paths = [write_group(wal, bytes(1500))[0] for _ in range(4)]
    assert len(set(paths)) == 2
    assert (wal.stats.rotations, wal.files_in_use, wal.has_room(5000), wal.needs_spare) == (1, 2, False, True)


def test_files_are_zero_filled_and_their_names_durable():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    add_spare(wal)
    disk.crash()
    (content,) = [content for path, content in disk.snapshot().items() if path.endswith(".wal")]
    assert len(content) == 8 * KIB
    assert not any(content[WAL_HEADER_BYTES:])


def test_a_recycled_file_keeps_its_old_groups_to_itself():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    add_spare(wal)
    for number in range(10):
        write_group(wal, b"old %d" % number * 20)
    add_spare(wal)
    write_group(wal, bytes(3000))
    write_group(wal, bytes(3000)) if wal.has_room(3200) else None
    assert wal.release(before_sequence=2) == []
    covered = wal.group_number
    add_spare(wal)
    assert len(wal_names(disk)) == 2
    while (path := write_group(wal, b"new")[0]) != wal_names(disk) and not path.endswith("1.wal"):
        pass
    assert disk.snapshot()["wal/" + f"{1:020d}.wal"].count(b"old") > 0
    content = read_wal(disk, "wal", covered)
    assert set(payloads_of(content)) == {b"new"}
    assert (content.damage, read_wal(disk, "wal", covered).last_sequence) == ([], 3)


def test_without_a_checkpoint_a_recycled_file_gives_its_new_groups_alone():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    add_spare(wal)
    write_group(wal, b"old" * 50)
    write_group(wal, b"old" * 50)
    disk.kill()
    again = new_wal(disk, file_bytes=8 * KIB)
    content = read_wal(disk, "wal", None)
    again.adopt(content.files, content.last_group, content.last_sequence)
    add_spare(again)
    write_group(again, b"new")
    assert payloads_of(read_wal(disk, "wal", None)) == [b"new"]


def test_a_torn_tail_ends_the_log_without_damage():
    for length_bytes in (1, 7, GROUP.size, GROUP.size + 3, GROUP.size + ENTRY.size + 20):
        disk = SimDisk(Random(0))
        wal = new_wal(disk)
        add_spare(wal)
        write_group(wal, b"good")
        parts = [ENTRY.pack(Kind.APPEND, 100, TOPIC, 0), b"x" * 100]
        file, position, buffers = wal.frame(parts, 1)
        file.write(b"".join(buffers)[:length_bytes], position)
        content = read_wal(disk, "wal", None)
        assert (payloads_of(content), content.damage) == ([b"good"], [])
        assert (content.torn is not None) == (length_bytes >= GROUP.size)


def test_an_empty_or_short_file_is_passed_over():
    for length_bytes in (0, 10, WAL_HEADER_BYTES - 1):
        disk = SimDisk(Random(0))
        wal = new_wal(disk)
        add_spare(wal)
        write_group(wal, b"good")
        disk.open("wal/00000000000000000002.wal", create=True).write(b"x" * length_bytes, 0)
        content = read_wal(disk, "wal", None)
        assert (payloads_of(content), content.damage, len(content.files)) == ([b"good"], [], 2)


def test_a_flipped_bit_before_a_later_group_is_damage():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    places = [write_group(wal, b"group %d" % number) for number in range(5)]
    path, position = places[2]
    for place in (position, position + 5, position + GROUP.size + 3, position + GROUP.size + ENTRY.size):
        disk.flip(path, place, 4)
        content = read_wal(disk, "wal", None)
        assert payloads_of(content) == [b"group 0", b"group 1", b"group 3", b"group 4"]
        assert len(content.damage) == 1
        assert "3" in content.damage[0]
        assert path in content.damage[0]
        disk.flip(path, place, 4)


def test_a_lost_file_between_two_others_is_damage():
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    for _ in range(6):
        if not wal.has_room(1700):
            add_spare(wal)
        write_group(wal, bytes(1600))
    first, second, third = wal_names(disk)
    disk.remove(f"wal/{second}")
    content = read_wal(disk, "wal", None)
    assert len(content.damage) == 1
    assert [number for number, _, _ in content.groups] == [1, 2, 5, 6]
    assert third in content.damage[0] or second in content.damage[0] or first in content.damage[0]


def test_a_file_whose_header_is_damaged_still_gives_its_groups():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    for number in range(3):
        path, _ = write_group(wal, b"group %d" % number)
    for place in (0, 9, 17, 25):
        disk.flip(path, place, 2)
        content = read_wal(disk, "wal", None)
        assert (payloads_of(content), content.last_sequence) == ([b"group 0", b"group 1", b"group 2"], 1)
        disk.flip(path, place, 2)


def test_a_file_that_is_missing_unreadable_or_short_is_known_to_be_lost_if_it_is_needed():
    for harm in (
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.cut(path, 0),
        lambda disk, path: disk.cut(path, WAL_HEADER_BYTES + 200),
    ):
        disk = SimDisk(Random(0))
        wal = new_wal(disk)
        add_spare(wal)
        path, _ = write_group(wal, b"good")
        assert lost_files(disk, "wal", read_wal(disk, "wal", None).files, 0) == []
        harm(disk, path)
        files = read_wal(disk, "wal", None).files
        (lost,) = lost_files(disk, "wal", files, wal.needed_from)
        assert path in lost
        assert lost_files(disk, "wal", files, wal.needed_from + 1) == []


def test_a_file_shorter_than_it_was_made_keeps_the_groups_it_still_has():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    add_spare(wal)
    path, _ = write_group(wal, b"good")
    disk.cut(path, WAL_HEADER_BYTES + 200)
    content = read_wal(disk, "wal", None)
    assert payloads_of(content) == [b"good"]


def test_a_group_lost_before_any_sync_knew_of_it_is_not_damage():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    write_group(wal, b"synced")
    path, position = write_group(wal, b"lost", sync=False)
    write_group(wal, b"left", sync=False)
    disk.flip(path, position + GROUP.size + 3)
    content = read_wal(disk, "wal", None)
    assert (payloads_of(content), content.damage) == ([b"synced"], [])


def test_a_group_that_a_later_sync_covered_is_damage_though_the_next_one_did_not_know():
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    write_group(wal, b"a")
    path, position = write_group(wal, b"b", sync=False)
    write_group(wal, b"c", sync=True)
    write_group(wal, b"d", sync=False)
    disk.flip(path, position + GROUP.size + 3)
    content = read_wal(disk, "wal", None)
    assert payloads_of(content) == [b"a", b"c", b"d"]
    assert len(content.damage) == 1


def test_numbers_of_lost_groups_are_not_given_out_again():
    """Else a file whose removal a crash undid would bring its groups back as new ones."""
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    write_group(wal, b"synced")
    path, position = write_group(wal, b"lost", sync=False)
    write_group(wal, b"left", sync=False)
    disk.flip(path, position + GROUP.size + 3)
    assert read_wal(disk, "wal", None).last_group == 3


def test_a_file_that_was_never_finished_does_not_lend_its_name():
    """The next file must not be made over a name that the store still holds open for another."""
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    write_group(wal, b"good")
    disk.open("wal/00000000000000000002.wal", create=True)
    assert read_wal(disk, "wal", None).last_sequence >= 2


@given(st.data())
@settings(max_examples=150)
def test_no_flipped_bit_changes_or_drops_a_synced_entry_in_silence(data):
    disk = SimDisk(Random(0))
    wal = new_wal(disk, file_bytes=8 * KIB)
    add_spare(wal)
    payloads = [b"payload %d" % number for number in range(6)]
    for payload in payloads:
        path, end = write_group(wal, payload)
    end += GROUP.size + ENTRY.size + len(payloads[-1])
    place = data.draw(st.integers(WAL_HEADER_BYTES * 8, end * 8 - 1))
    disk.flip(path, place // 8, place % 8)
    content = read_wal(disk, "wal", None)
    found = payloads_of(content)
    assert [payload for payload in payloads if payload in found] == found
    if found != payloads:
        # The last group has none behind it to prove it; the first, without a checkpoint, has none before it.
        assert content.damage or found == payloads[:-1] or found == payloads[1:]


@given(st.binary(max_size=400), st.integers(0, 3))
def test_garbage_behind_the_groups_is_never_replayed(garbage, groups):
    disk = SimDisk(Random(0))
    wal = new_wal(disk)
    add_spare(wal)
    end = WAL_HEADER_BYTES
    for _ in range(groups):
        _, position = write_group(wal, b"good")
        end = position + GROUP.size + ENTRY.size + 4
    file = disk.open(f"wal/{1:020d}.wal")
    file.write(garbage, end)
    content = read_wal(disk, "wal", None)
    assert (payloads_of(content), content.damage) == ([b"good"] * groups, [])


# In a store


def test_statistics_count_what_succeeded():
    world = new_world()
    before = world.store.wal_stats.groups
    world.put(batch_of(b"a"))
    world.put(batch_of(b"b"))
    world.store.flush()
    stats = world.store.wal_stats
    assert (stats.groups - before, stats.writes, stats.syncs) == (1, 2, 1)
    assert stats.bytes_written == GROUP.size + 2 * (ENTRY.size + len(batch_of(b"a")))
    assert 0 < stats.sync_us_max <= stats.sync_us_total


@pytest.mark.parametrize(("operation", "error"), [("write", EIO), ("sync", EIO), ("sync", ENOSPC)])
def test_statistics_do_not_count_what_failed(operation, error):
    world = new_world()
    world.write(b"a")
    stats = world.store.wal_stats
    before = (stats.groups, stats.writes, stats.syncs, stats.bytes_written, stats.sync_us_total)
    world.disk.fail(operation, error, path_contains=".wal")
    world.put(batch_of(b"b"))
    with pytest.raises(SyncFailed):
        world.store.flush()
    assert (stats.groups, stats.writes, stats.syncs, stats.bytes_written, stats.sync_us_total) == before


def test_a_store_rotates_recycles_and_removes_its_files():
    world = new_world(configs={"segment.bytes": "100000000"})
    for _ in range(100):
        world.write(b"x" * 20_000)
        finish_chores(world.store)
    assert world.store.wal_stats.rotations >= 7
    lengths = {name: len(content) for name, content in world.disk.snapshot().items() if name.endswith(".wal")}
    assert len(lengths) <= 4, lengths
    assert sum(lengths.values()) <= 4 * 256 * KIB
    world.reopen("crash")
    assert len(values_of(world.log())) == 100


def test_without_chores_a_store_makes_room_itself_when_it_must():
    world = new_world(configs={"segment.bytes": "100000000"})
    for _ in range(150):
        world.write(b"x" * 20_000)
    assert world.store.wal_stats.rotations >= 10
    world.reopen("crash")
    assert len(values_of(world.log())) == 150


def test_a_write_larger_than_the_first_file_goes_through_by_pump_and_chores_alone():
    world = new_world(configs={"segment.bytes": "100000000"})
    done = world.put(batch_of(b"x" * 100_000))
    for _ in range(50):
        world.store.pump()
        finish_chores(world.store)
        if world.log().durable >= done.next_offset:
            break
    assert world.log().durable == done.next_offset


def test_a_crash_while_a_file_is_made_ready_is_survived():
    """Whatever it leaves behind: an empty file, a short one, zeros without a header."""
    for operations in range(12):
        for seed in range(4):
            world = new_world(seed)
            world.write(b"before")
            world.disk.halt_after(operations)
            with suppress(Halted):
                finish_chores(world.store)
            world.disk.crash()
            world.open()
            for number in range(30):
                done = world.put(batch_of(b"after %d" % number + bytes(20_000)))
                for _ in range(60):
                    world.store.pump()
                    finish_chores(world.store)
                    if world.log().durable >= done.next_offset:
                        break
                assert world.log().durable == done.next_offset, (operations, seed, number)
            world.reopen("crash")
            assert values_of(world.log())[0] == b"before"
            assert len(values_of(world.log())) == 31


def test_a_power_loss_while_a_file_is_made_ready_is_no_damage():
    """Found by `tests/sim/test_store.py`: the note's name reached the disk, and the name of its file did not."""
    for seed in range(60):
        for operations in range(12):
            disk = SimDisk(Random(seed))
            job = new_wal(disk).prepare()
            disk.halt_after(operations)
            with suppress(Halted):
                job.run()
            disk.crash()
            assert lost_files(disk, "wal", read_wal(disk, "wal", None).files, 0) == [], (seed, operations)


def test_a_file_that_could_not_be_made_ready_leaves_no_note():
    for operation in ("sync", "rename", "sync_dir"):
        for after in range(2):
            disk = SimDisk(Random(0))
            job = new_wal(disk).prepare()
            disk.fail(operation, ENOSPC, after=after)
            with suppress(OSError):
                job.run()
            assert job.made is not None or disk.names("wal") == [], (operation, after)


def test_the_note_of_a_file_that_an_interrupted_start_gave_up_never_tells_of_a_loss():
    """Sequences go on from what the checkpoint knows, or a later one would need what this one did not."""
    world = new_world()
    world.write(b"before")
    finish_chores(world.store)
    kept, given_up = (f"wal/{name}" for name in wal_names(world.disk))
    note = world.disk.snapshot()[note_path(given_up)]
    world.end("kill")
    world.disk.fail("write", EIO, path_contains=kept)
    with pytest.raises(SyncFailed):
        world.open()
    assert given_up not in world.disk.snapshot()
    world.end("kill")
    write_whole(world.disk, note_path(given_up), note)  # its removal never reached the disk
    for _ in range(3):
        world.open()
        assert world.store.recovery.damage == []
        world.end("kill")


def test_a_start_that_dies_again_and_again_finds_no_damage():
    for seed in range(40):
        world = new_world(seed)
        for life in range(4):
            world.write(bytes(40_000))
            world.write(bytes(40_000))
            world.end("crash")
            world.disk.halt_after(20 + 7 * life + seed)
            with suppress(Halted):
                world.open()
            world.reopen("crash")
            assert world.store.recovery.damage == [], (seed, life)


def overtaken(count: int) -> tuple[World, PrepareSpare]:
    """A store whose spare is slow to be made ready: `count` files that were begun later are in use before it."""
    world = new_world(configs={"segment.bytes": "100000000"})
    world.write(b"first")
    slow, checkpoint = world.store.chores()
    assert isinstance(slow, PrepareSpare)
    checkpoint.run()
    for following in world.store.finish(checkpoint):
        following.run()
        world.store.finish(following)
    while world.store.wal_stats.rotations < count:
        world.write(bytes(50_000))
    return world, slow


def test_a_file_that_others_overtook_is_missed_when_it_is_lost():
    world, slow = overtaken(1)
    world.store.checkpoint()
    slow.run()
    world.store.finish(slow)
    while world.store.wal_stats.rotations < 2:
        world.write(bytes(50_000))
    world.end("kill")
    world.disk.remove(f"wal/{slow.job.sequence:020d}.wal")
    world.open()
    assert any(f"{slow.job.sequence:020d}.wal is missing" in one.reason for one in world.store.recovery.damage)


def test_a_file_that_overtook_another_is_not_missed_when_it_is_given_up():
    for seed in range(6):
        for operations in range(16, 30):
            world, _ = overtaken(3)
            world.disk.rng.seed(seed)
            world.disk.halt_after(operations)
            with suppress(Halted):
                world.store.checkpoint()
            world.reopen("crash")
            assert world.store.recovery.damage == [], (seed, operations)


def test_entries_are_replayed_at_their_offsets():
    for seed in range(20):
        world = new_world(seed)
        written = [b"v%d" % number * 20 for number in range(40)]
        for value in written:
            world.write(value)
        world.reopen("crash")
        assert values_of(world.log()) == written
        assert world.log().end == 40
        assert world.store.recovery.intact


def test_a_store_reports_a_damaged_group_and_keeps_the_rest():
    world = new_world(7)
    for number in range(6):
        world.write(b"v%d" % number)
    path = wal_names(world.disk)[0]
    content = world.disk.snapshot()[f"wal/{path}"]
    world.disk.crash()
    world.disk.flip(f"wal/{path}", content.index(b"v3"))
    world.open()
    assert any(damage.path == "wal" for damage in world.store.recovery.damage)
    assert not world.store.recovery.intact


def test_every_nth_loss_is_not_damage():
    lost = 0
    for seed in range(60):
        world = new_world(seed, policy="every_n_writes(4)")
        for number in range(10):
            world.write(b"v%d" % number)
        world.reopen("crash")
        found = values_of(world.log())
        assert found == [b"v%d" % number for number in range(len(found))]
        assert len(found) >= 8
        assert world.store.recovery.damage == [], seed
        lost += len(found) < 10
    assert lost, "no seed lost anything: the test shows nothing"


def test_every_nth_sync_covers_the_file_before_the_present_one():
    """Writes that no sync has covered yet may stand in the file that a rotation left behind."""
    for seed in range(20):
        world = new_world(seed, policy="every_n_writes(6)", configs={"segment.bytes": "100000000"})
        for number in range(24):
            world.write(b"v%d" % number + bytes(20_000))
        assert world.store.wal_stats.rotations
        world.reopen("crash")
        assert len(values_of(world.log())) == 24, seed
        assert world.store.recovery.damage == [], seed
