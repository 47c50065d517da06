"""Bits flipped and files cut short, one file at a time, in a directory that was closed and in one that was killed.

The promise: what is derived is made again, what is written twice comes back from the other copy, and what is really
gone is an error that names it. Never a wrong value, never a silent gap, and the rest stays readable.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from writing import drain

from rivven.log import StoreConfig
from rivven.log.blocking import BlockingStore

CONFIG = StoreConfig(wal_file_bytes=64 * 1024, wal_first_file_bytes=64 * 1024)
Content = dict[tuple[str, int], dict[int, bytes | None]]


def fill(directory: Path) -> BlockingStore:
    """A plain topic and a compacted one, with rolled segments, indexes, snapshots and everything else there is."""
    configs = {"segment.bytes": "3000", "index.interval.bytes": "400"}
    with BlockingStore(directory, CONFIG) as store:
        store.create_topic("plain", 2, configs)
        store.create_topic("keyed", 1, configs | {"cleanup.policy": "compact"})
        write(store, 60)
    store = BlockingStore(directory, CONFIG)
    with store._mutex:
        assert store.store.clean(force=True)
    write(store, 23)
    return store


def write(store: BlockingStore, batches: int) -> None:
    for number in range(batches):
        value = str(number).encode().ljust(120, b".")
        for topic, partition in (("plain", 0), ("plain", 1), ("keyed", 0)):
            key = b"key-%d" % (number % 7)
            store.append(
                topic, [(1000 + number, key, value, []), (1001 + number, key, value, [])], partition=partition
            )


def content(store: BlockingStore) -> Content:
    found: Content = {}
    for topic in store.store.topics:
        for partition in range(topic.partitions):
            records, lost = drain(store, topic.name, partition)
            assert not lost, lost
            found[topic.name, partition] = {offset: record.value for offset, record in records.items()}
    return found


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Room for many copies. Damage is the same in memory, and syncs cost nothing there."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm", prefix="rivven-damage-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    directory = tmp_path_factory.mktemp("damage") / "closed"
    store = fill(directory)
    whole = content(store)
    store.close()
    return directory, whole


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Content]]:
    """A copy of a directory that is open, and at rest: what kill -9 would leave."""
    directory = tmp_path_factory.mktemp("damage") / "open"
    with fill(directory) as store:
        with store._mutex:  # no chore begins meanwhile
            copy = directory.with_name("killed")
            shutil.copytree(directory, copy)
        yield copy, content(store)


class Harm:
    def __init__(self, name: str, path: Path, rng: Random) -> None:
        data = path.read_bytes()
        place = rng.randrange(max(1, len(data)))
        self.text = f"{name} of {path} at byte {place} of {len(data)}"
        match name:
            case "flip":
                changed = bytearray(data)
                if changed:
                    changed[place] ^= 1 << rng.randrange(8)
                path.write_bytes(changed)
            case "cut":
                path.write_bytes(data[:place])
            case "empty":
                path.write_bytes(b"")
            case "zeros":
                path.write_bytes(data[:place] + bytes(len(data) - place))
            case "noise":
                path.write_bytes(rng.randbytes(max(64, len(data))))
            case "gone":
                path.unlink()


KINDS = {
    "sealed segment": "topics/plain/partition-0/*[0-9].log",
    "active segment": "topics/plain/partition-0/*[0-9].log",
    "compacted segment": "topics/keyed/partition-0/*.log",
    "offset index": "topics/*/*/*.idx",
    "time index": "topics/*/*/*.tidx",
    "snapshot": "topics/*/*/*.state",
    "bloom filter": "topics/*/*/*.bloom",
    "write-ahead log": "wal/*.wal",
    "checkpoint": "checkpoint.json",
    "checkpoint backup": "checkpoint.json.bak",
    "topics": "topic_metadata.json",
    "topics backup": "topic_metadata.json.bak",
    "cleaner state": "topics/keyed/*/cleaner.json",
    "lock": "lock",
}
RECORDS = {"sealed segment", "active segment", "compacted segment"}


def victims(directory: Path, kind: str) -> list[Path]:
    found = sorted(directory.glob(KINDS[kind]))
    if kind == "sealed segment":
        return found[:-1]
    return found[-1:] if kind == "active segment" else found


def rounds(kind: str, whole: tuple[Path, Content], place: Path, repeat: int, seed: int) -> Iterator[tuple[Path, str]]:
    """A harmed copy of the directory at a time."""
    rng = Random(seed)
    for harm in ("flip", "cut", "empty", "zeros", "noise", "gone"):
        for _ in range(repeat if harm in ("flip", "cut") else 1):
            copy = place / "data"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole[0], copy)
            paths = victims(copy, kind)
            assert paths, f"no {kind} to harm"
            yield copy, Harm(harm, rng.choice(paths), rng).text


def assert_all_there(directory: Path, whole: Content, text: str) -> None:
    with BlockingStore(directory, CONFIG) as store:
        found = content(store)
    for partition, records in whole.items():
        missing = [offset for offset, value in records.items() if found.get(partition, {}).get(offset) != value]
        assert not missing, f"{text}: {partition} has lost or changed {missing}"
        assert len(found[partition]) == len(records), f"{text}: {partition} has records that were not there"


def assert_lost_by_name(directory: Path, whole: Content, text: str) -> None:
    """Each record reads as it was, or an error names its partition, its offsets and its file."""
    with BlockingStore(directory, CONFIG) as store:
        for (topic, partition), records in whole.items():
            found, lost = drain(store, topic, partition)
            for error in lost:
                facts = error.facts
                assert str(facts["partition"]) == f"{topic}/{partition}", f"{text}: {error}"
                assert f"topics/{topic}/partition-{partition}" in facts["path"], f"{text}: {error}"
            for offset, value in records.items():
                if offset in found:
                    assert found[offset].value == value, f"{text}: {topic}/{partition} offset {offset} is another"
                else:
                    named = any(error.facts["first"] <= offset <= error.facts["last"] for error in lost)
                    assert named, (
                        f"{text}: {topic}/{partition} offset {offset} is missing, and no error says so: {lost}"
                    )
            strange = found.keys() - records.keys()
            assert not strange, f"{text}: {topic}/{partition} has {sorted(strange)}, which were not there"
            if (topic, partition) == ("plain", 1):
                assert not lost, f"{text}: damage of one partition is not that of another: {lost}"
            if lost:
                assert len(found) > len(records) // 3, f"{text}: only {len(found)} of {len(records)} are left"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RECORDS])
def test_damage_to_what_is_derived_or_doubled_costs_nothing(
    memory: Path, closed: tuple[Path, Content], kind: str
) -> None:
    for directory, text in rounds(kind, closed, memory, 1, seed=1):
        assert_all_there(directory, closed[1], text)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RECORDS])
def test_nor_does_it_after_a_kill(memory: Path, killed: tuple[Path, Content], kind: str) -> None:
    for directory, text in rounds(kind, killed, memory, 1, seed=2):
        assert_all_there(directory, killed[1], text)


@pytest.mark.parametrize("kind", sorted(RECORDS))
def test_damage_to_records_is_an_error_that_names_them(memory: Path, closed: tuple[Path, Content], kind: str) -> None:
    for directory, text in rounds(kind, closed, memory, 3, seed=3):
        assert_lost_by_name(directory, closed[1], text)


@pytest.mark.parametrize("kind", sorted(RECORDS))
def test_so_it_is_after_a_kill(memory: Path, killed: tuple[Path, Content], kind: str) -> None:
    for directory, text in rounds(kind, killed, memory, 3, seed=4):
        assert_lost_by_name(directory, killed[1], text)


@pytest.mark.parametrize("topic", ["plain", "keyed"])
@pytest.mark.parametrize("field", [(0, 8, "base offset"), (8, 4, "length"), (16, 1, "magic"), (23, 4, "last offset")])
def test_a_flipped_bit_in_a_header_is_never_taken_for_another_record(
    memory: Path, closed: tuple[Path, Content], field: tuple[int, int, str], topic: str
) -> None:
    """The checksum of a batch does not cover its base offset, which is patched into it."""
    begin, length, name = field
    for bit in range(0, length * 8, 3):
        copy = memory / "data"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(closed[0], copy)
        path = sorted((copy / "topics" / topic / "partition-0").glob("*.log"))[3]
        data = bytearray(path.read_bytes())
        second = 12 + int.from_bytes(data[8:12], "big")
        place = (second if second < len(data) else 0) + begin + length - 1 - bit // 8
        data[place] ^= 1 << bit % 8
        path.write_bytes(data)
        assert_lost_by_name(copy, closed[1], f"bit {bit} of the {name}, byte {place} of {path}")


def test_what_a_kill_left_in_the_write_ahead_log_alone_comes_back_from_there(
    tmp_path: Path, killed: tuple[Path, Content]
) -> None:
    """The tail of a segment is lost, but no checkpoint had vouched for it."""
    copy = tmp_path / "data"
    shutil.copytree(killed[0], copy)
    active = victims(copy, "active segment")[0]
    active.write_bytes(b"")
    with BlockingStore(copy, CONFIG) as store:
        assert store.store.recovery.intact
        assert store.store.recovery.replayed
    assert_all_there(copy, killed[1], f"{active} emptied")


def test_the_backup_of_a_checkpoint_does_not_hide_the_write_ahead_log(
    tmp_path: Path, killed: tuple[Path, Content]
) -> None:
    """It speaks of the good end before the last start; since then a power loss took what was not synced."""
    copy = tmp_path / "data"
    shutil.copytree(killed[0], copy)
    (copy / "checkpoint.json").write_bytes(b"damaged")
    victims(copy, "active segment")[0].write_bytes(b"")
    with BlockingStore(copy, CONFIG) as store:
        assert not store.store.recovery.clean
        assert store.store.recovery.replayed
    assert_all_there(copy, killed[1], "checkpoint.json and the unsynced tail")


@pytest.mark.parametrize("name", ["checkpoint.json", "topic_metadata.json"])
def test_a_document_that_is_lost_with_its_backup_is_reported(
    tmp_path: Path, closed: tuple[Path, Content], name: str
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(closed[0], copy)
    for path in (copy / name, copy / f"{name}.bak"):
        path.write_bytes(path.read_bytes()[:-7] + b"garbage")
    with BlockingStore(copy, CONFIG) as store:
        assert any(name in note for note in store.store.recovery.notes), store.store.recovery
    assert_all_there(copy, closed[1], f"{name} and its backup")


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_hundreds_of_damages_of_each_kind(
    memory: Path, request: pytest.FixtureRequest, state: str, kind: str
) -> None:
    whole: tuple[Path, Content] = request.getfixturevalue(state)
    seed = Random().getrandbits(32)
    for directory, text in rounds(kind, whole, memory, 150, seed):
        if kind in RECORDS:
            assert_lost_by_name(directory, whole[1], f"seed {seed}: {text}")
        else:
            assert_all_there(directory, whole[1], f"seed {seed}: {text}")
