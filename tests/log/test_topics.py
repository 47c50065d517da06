"""Which topics there are: one document, replaced whole, and the directories as the last resort."""

from __future__ import annotations

from random import Random

import pytest
from building import SMALL, World, at_every_halt, batch_of, finish_chores, names_of, new_world, values_of

from rivven.errors import InvalidConfig, InvalidTopic, TopicExists, UnknownTopic
from rivven.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from rivven.log.topics import METADATA, Topic, check_name, find_topics
from rivven.sim import SimDisk


def two_topics(seed: int = 0) -> World:
    """`a` with data and `t` with data."""
    world = new_world(seed)
    world.store.create_topic("a", 2, SMALL)
    for number in range(10):
        world.write(b"a%d" % number + bytes(100), topic="a", partition=1)
        world.write(b"t%d" % number + bytes(100))
    return world


def state(world: World) -> dict[str, tuple[str, int, dict[str, str]]]:
    return {topic.name: (topic.id, topic.partitions, topic.configs) for topic in world.store.topics}


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", "x" * TOPIC_NAME_CHARS_MAX, "a.b.c", "__consumer_offsets"])
def test_good_names_are_taken(name):
    check_name(name)


TOO_LONG = "x" * (TOPIC_NAME_CHARS_MAX + 1)


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a..b", "-x", ".x", "a b", "a/b", "ä", TOO_LONG, "a\n"])
def test_bad_names_are_refused(name):
    world = new_world()
    with pytest.raises(InvalidTopic):
        world.store.create_topic(name)
    assert [topic.name for topic in world.store.topics] == ["t"]


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_PER_TOPIC_MAX + 1])
def test_a_topic_has_a_sensible_number_of_partitions(partitions):
    with pytest.raises(InvalidTopic):
        new_world().store.create_topic("x", partitions)


def test_a_topic_is_made_once():
    world = new_world()
    with pytest.raises(TopicExists):
        world.store.create_topic("t")


def test_a_bad_configuration_makes_no_topic():
    world = new_world()
    with pytest.raises(InvalidConfig):
        world.store.create_topic("x", 1, {"retention.msec": "1"})
    assert not world.disk.exists("topics/x")


def test_unknown_topics_and_partitions_are_named():
    world = new_world()
    for act in (
        lambda: world.store.topic("x"),
        lambda: world.store.log("x", 0),
        lambda: world.store.log("t", 1),
        lambda: world.store.delete_topic("x"),
        lambda: world.store.configure("x", {}),
        lambda: world.store.add_partitions("x", 2),
    ):
        with pytest.raises(UnknownTopic):
            act()


def test_topics_survive_a_restart():
    for end in ("close", "kill", "crash"):
        world = two_topics()
        before = state(world)
        world.reopen(end)
        assert state(world) == before
        assert world.store.recovery.topics_from == "file"


def test_partitions_are_added_and_never_taken_away():
    world = two_topics()
    world.store.add_partitions("t", 3)
    world.write(b"new", partition=2)
    world.reopen("crash")
    assert world.store.topic("t").partitions == 3
    assert values_of(world.log("t", 2)) == [b"new"]
    assert len(values_of(world.log("t", 0))) == 10
    for partitions in (3, 2):
        with pytest.raises(InvalidTopic):
            world.store.add_partitions("t", partitions)


def test_a_configuration_takes_effect_at_once_and_lasts():
    world = two_topics()
    world.store.configure("t", {"max.message.bytes": "99"})
    assert world.log().config.max_message_bytes == 99
    world.reopen("crash")
    assert world.log().config.max_message_bytes == 99
    assert world.store.topic("t").configs == {"max.message.bytes": "99"}


CHANGES = {
    "create": lambda world: world.store.create_topic("new", 3, SMALL),
    "grow": lambda world: world.store.add_partitions("t", 4),
    "configure": lambda world: world.store.configure("t", {"retention.ms": "5"}),
    "delete": lambda world: world.store.delete_topic("a"),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_crash_at_every_step_of_a_change_leaves_the_old_state_or_the_new(change):
    def shape(world: World) -> tuple:
        topics = [(topic.name, topic.partitions, topic.configs) for topic in world.store.topics]
        return str(topics), "a" in {topic.name for topic in world.store.topics}

    world = two_topics()
    old = shape(world)
    CHANGES[change](world)
    new = shape(world)
    seen = set()

    def check(world: World) -> None:
        found = shape(world)
        seen.add(found)
        assert found in (old, new)
        assert [note for note in world.store.recovery.notes if "deleted" not in note] == []
        assert world.store.recovery.intact
        assert len(values_of(world.log())) == 10
        if found[1]:
            assert len(values_of(world.log("a", 1))) == 10
        else:
            assert names_of(world.disk, "", under="topics/a") == []
        for topic in world.store.topics:
            for partition in range(topic.partitions):
                world.write(b"works", topic=topic.name, partition=partition)

    at_every_halt(two_topics, CHANGES[change], check)
    assert seen == {old, new}


def test_when_a_topic_is_deleted_no_crash_brings_its_files_back():
    for seed in range(20):
        world = two_topics(seed)
        world.store.delete_topic("a")
        assert names_of(world.disk, "", under="topics/a") == []
        assert names_of(world.disk, "", under="trash") == []
        world.reopen("crash")
        assert names_of(world.disk, "", under="topics/a") == []
        assert names_of(world.disk, "", under="trash") == [], seed
        with pytest.raises(UnknownTopic):
            world.log("a", 1)


def test_a_topic_made_again_has_a_new_id_and_none_of_the_old_data():
    for seed in range(20):
        world = two_topics(seed)
        old_id = world.store.topic("a").id
        world.store.delete_topic("a")
        world.store.create_topic("a", 2, SMALL)
        assert world.store.topic("a").id != old_id
        world.write(b"new", topic="a", partition=1)
        world.reopen("crash" if seed % 2 else "kill")
        assert values_of(world.log("a", 1)) == [b"new"], seed
        assert world.log("a", 1).facts.epochs.entries() == [(0, 0)]
        assert len(values_of(world.log())) == 10


def test_writes_queued_for_a_topic_end_before_it_is_deleted():
    world = two_topics()
    world.put(batch_of(b"late"), topic="a")
    world.store.delete_topic("a")
    assert world.store.waiting == 0
    world.reopen("crash")
    assert [topic.name for topic in world.store.topics] == ["t"]


def test_a_checkpoint_under_way_survives_the_deletion_of_a_topic():
    world = two_topics()
    chores = world.store.chores()
    assert any(type(chore).__name__ == "SyncSegments" for chore in chores)
    world.store.delete_topic("a")
    while chores:
        chore = chores.pop()
        try:
            chore.run()
        except OSError as error:
            chores += world.store.finish(chore, error)
        else:
            chores += world.store.finish(chore)
    finish_chores(world.store)
    world.write(b"more")
    world.reopen("crash")
    assert len(values_of(world.log())) == 11


# The document is lost


def test_a_damaged_document_gives_way_to_its_backup():
    world = two_topics()
    world.store.configure("t", {})
    before = state(world)
    world.end("close")
    world.disk.flip(METADATA, 60)
    world.open()
    assert world.store.recovery.topics_from == "backup"
    assert state(world) == before
    world.reopen("close")
    assert (world.store.recovery.topics_from, state(world)) == ("file", before)


@pytest.mark.parametrize("lose", ["damage", "remove"])
def test_without_document_and_backup_the_directories_are_taken(lose):
    world = two_topics()
    ids = {topic.name: topic.id for topic in world.store.topics}
    world.end("close")
    for path in (METADATA, METADATA + ".bak"):
        world.disk.cut(path, 20) if lose == "damage" else world.disk.remove(path)
    world.open()
    report = world.store.recovery
    assert report.topics_from == "directories"
    assert any(METADATA in note for note in report.notes)
    assert {topic.name: topic.id for topic in world.store.topics} == ids
    assert (len(values_of(world.log("a", 1))), len(values_of(world.log()))) == (10, 10)
    world.clock.advance(ms=10**12)
    assert world.store.retain() == {}, "a retention that nobody asked for deletes nothing"
    world.reopen("crash")
    assert world.store.recovery.topics_from == "file"


def test_a_directory_that_no_topic_owns_is_left_alone_and_reported():
    world = two_topics()
    world.disk.make_dirs("topics/stranger/partition-0")
    world.disk.open("topics/stranger/partition-0/x.log", create=True).write(b"precious", 0)
    world.reopen("close")
    assert any("topics/stranger" in note for note in world.store.recovery.notes)
    assert world.disk.snapshot()["topics/stranger/partition-0/x.log"] == b"precious"
    with pytest.raises(InvalidTopic, match="move it away"):
        world.store.create_topic("stranger")
    assert world.disk.snapshot()["topics/stranger/partition-0/x.log"] == b"precious"


def test_an_empty_directory_holds_no_topics():
    disk = SimDisk(Random(0))
    disk.make_dirs("topics")
    assert find_topics(disk, {}) == ((find_topics(disk, {}).listed), "new", [])
    assert find_topics(disk, {}).listed.topics == []


def test_directories_that_are_no_partitions_make_no_topic():
    disk = SimDisk(Random(0))
    for path in ("topics/a/partition-0", "topics/a/partition-3", "topics/b/other", "topics/c d/partition-0"):
        disk.make_dirs(path)
    found = find_topics(disk, {"a": "ff"})
    assert [(topic.name, topic.id, topic.partitions) for topic in found.listed.topics] == [("a", "ff", 4)]
    assert (found.source, found.strangers) == ("directories", ["b", "c d"])


def test_a_topic_knows_its_partitions():
    topic = Topic("t", "00" * 16, 2)
    assert [str(partition) for partition in topic.each()] == ["t/0", "t/1"]
    assert topic.id_bytes == bytes(16)
