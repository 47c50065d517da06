"""Which topics a data directory holds: `topic_metadata.json`, or failing that, the directories themselves.

The document is replaced before a topic's directories are made and before they are removed, so after a crash it
is always the truth: a missing directory is made, a topic in `deleting` is deleted to the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from rivven.errors import BadDirectory, InvalidTopic
from rivven.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from rivven.model import TopicPartition
from rivven.ports import Disk

from .config import TopicConfig
from .document import Document

METADATA = "topic_metadata.json"
TOPICS = "topics"
TRASH = "trash"
NAME = re.compile(r"[a-zA-Z0-9._-]+")


class Topic(msgspec.Struct, frozen=True):
    """A topic as the metadata document has it."""

    name: str
    id: str
    """32 hex digits; a topic made again under the same name gets another."""
    partitions: int
    created_ms: int = 0
    configs: dict[str, str] = {}

    @property
    def config(self) -> TopicConfig:
        return TopicConfig.from_map(self.configs)

    @property
    def id_bytes(self) -> bytes:
        return bytes.fromhex(self.id)

    def each(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


class TopicList(msgspec.Struct):
    topics: list[Topic] = []
    deleting: list[Topic] = []


class FoundTopics(NamedTuple):
    listed: TopicList
    source: str
    """"file", "backup", "directories" (the document was lost) or "new"."""
    strangers: list[str]
    """Directories that no topic owns: left alone, and reported."""


def check_name(name: str) -> None:
    if not name or len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopic(topic=name[:40], reason=f"a name has 1 to {TOPIC_NAME_CHARS_MAX} characters")
    if not NAME.fullmatch(name) or name[0] in ".-" or ".." in name:
        reason = "use letters, digits, '.', '_' and '-', beginning with a letter, a digit or '_', and no '..'"
        raise InvalidTopic(topic=name, reason=reason)


def check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidTopic(topic=name, reason=f"{partitions} partitions; there are 1 to {PARTITIONS_PER_TOPIC_MAX}")


def topic_directory(name: str) -> str:
    return f"{TOPICS}/{name}"


def partition_directory(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partition-{partition.partition}"


def document(disk: Disk) -> Document[TopicList]:
    return Document(disk, METADATA, TopicList)


def find_topics(disk: Disk, known_ids: dict[str, str]) -> FoundTopics:
    """The topics of a data directory. `known_ids`, by name, serve where only the directories are left."""
    listed, source = document(disk).load()
    if listed is not None:
        names = {topic.name for topic in (*listed.topics, *listed.deleting)}
        return FoundTopics(listed, source, [name for name in disk.names(TOPICS) if name not in names])
    found = [_from_directory(disk, name, known_ids) for name in disk.names(TOPICS)]
    topics = [topic for topic in found if topic is not None]
    strangers = [name for name, topic in zip(disk.names(TOPICS), found, strict=True) if topic is None]
    return FoundTopics(TopicList(topics), "directories" if topics or source == "damaged" else "new", strangers)


def _from_directory(disk: Disk, name: str, known_ids: dict[str, str]) -> Topic | None:
    numbers = [
        int(entry.removeprefix("partition-"))
        for entry in disk.names(topic_directory(name))
        if re.fullmatch(r"partition-\d{1,6}", entry)
    ]
    if not numbers or not NAME.fullmatch(name):
        return None
    # Its configuration is lost, and a default retention could delete what somebody meant to keep for ever.
    keep = {"retention.ms": "-1", "retention.bytes": "-1"}
    return Topic(name, known_ids.get(name, ""), max(numbers) + 1, configs=keep)


def remove_tree(disk: Disk, directory: str) -> None:
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        if disk.is_dir(path):
            remove_tree(disk, path)
        else:
            disk.remove(path)
    disk.remove(directory)


def finish_deleting(disk: Disk, topic: Topic) -> None:
    """Move the topic's files out of the way, durably, then delete them. May be repeated at any point."""
    source, target = topic_directory(topic.name), f"{TRASH}/{topic.id}"
    disk.make_dirs(TRASH)
    if disk.exists(source):
        if disk.exists(target):
            raise BadDirectory(path=target, reason=f"is in the way of deleting topic {topic.name}; move it away")
        disk.rename(source, target)
        disk.sync_dir(TOPICS)
        disk.sync_dir(TRASH)
    if disk.exists(target):
        remove_tree(disk, target)
        disk.sync_dir(TRASH)
