"""Topics in Kafka's words: which there are, and how they are made, grown, emptied and deleted.

One node leads every partition and is its only replica. Each topic, and each partition, of a request is decided by
itself: a mistake in one is told in its place, and the others go on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from rivven.broker.topics import is_internal
from rivven.errors import RivvenError, TopicExists, UnknownTopic
from rivven.log import Topic, check_name
from rivven.wire.kafka import NO_ID, Error
from rivven.wire.kafka.made import describe_topic_partitions as parts_of
from rivven.wire.kafka.made.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from rivven.wire.kafka.made.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from rivven.wire.kafka.made.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from rivven.wire.kafka.made.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from rivven.wire.kafka.made.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from .cluster import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from .dialect import Asked, Handler
from .keys import Keys
from .records import LEADER_EPOCH
from .refusals import REFUSALS, Refused, told

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

logger = logging.getLogger(__name__)

METADATA, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 3, 19, 20, 21
CREATE_PARTITIONS, DESCRIBE_TOPIC_PARTITIONS = 37, 75

AUTO_CREATE_SAID_FROM, BY_ID_FROM = 4, 12
"""The first versions of Metadata that say whether a topic may be made, and that name topics by their ids."""
UNSAID: Final = -1
"""A number of partitions or replicas that is left to the node; the end of a partition, as an offset."""
PARTITIONS_TOLD_MAX: Final = 2_000
"""How many partitions one DescribeTopicPartitions tells of, however many it asks for."""


class TopicRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._keys = Keys(broker)
        self._node = broker.config.broker_id

    def handlers(self) -> dict[int, Handler]:
        return {
            METADATA: self._metadata,
            CREATE_TOPICS: self._create_topics,
            DELETE_TOPICS: self._delete_topics,
            DELETE_RECORDS: self._delete_records,
            CREATE_PARTITIONS: self._create_partitions,
            DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
        }

    def _named(self, name: str) -> Topic:
        """`InvalidTopic` for what could not even be one."""
        try:
            return self._topics.get(name)
        except UnknownTopic:
            check_name(name)
            raise

    def _identified(self, topic_id: bytes) -> Topic:
        topic = None if topic_id == NO_ID else self._topics.by_id(topic_id)
        if topic is None:
            raise Refused(Error.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id.hex()}")
        return topic

    # Looking

    def _metadata(self, request: MetadataRequest, asked: Asked) -> MetadataResponse:
        wanted = request.topics
        operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        if wanted is None or (not wanted and asked.version == 0):
            topics = [self._described(topic, operations) for topic in self._topics]
        else:
            makes = asked.version < AUTO_CREATE_SAID_FROM or request.allow_auto_topic_creation
            distinct = dict.fromkeys((topic.name, topic.topic_id) for topic in wanted)
            topics = [
                self._looked_up(MetadataRequestTopic(topic_id, name), asked.version, operations, makes=makes)
                for name, topic_id in distinct
            ]
        config = self._broker.config
        return MetadataResponse(
            brokers=[MetadataResponseBroker(self._node, config.host, config.port, config.rack)],
            cluster_id=config.cluster_id or None,
            controller_id=self._node,
            topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )

    def _looked_up(
        self, wanted: MetadataRequestTopic, version: int, operations: int, *, makes: bool
    ) -> MetadataResponseTopic:
        by_id = wanted.topic_id != NO_ID
        try:
            if version < BY_ID_FROM and (by_id or wanted.name is None):
                raise Refused(Error.INVALID_REQUEST, f"topics have ids from version {BY_ID_FROM} on")
            if not by_id and wanted.name is None:
                raise Refused(Error.INVALID_REQUEST, "a topic has a name or an id")
            topic = (
                self._identified(wanted.topic_id) if by_id else self._found_or_made(wanted.name or "", makes=makes)
            )
        except REFUSALS as refusal:
            name = wanted.name or "" if version < BY_ID_FROM else wanted.name
            return MetadataResponseTopic(
                told(refusal)[0], name, wanted.topic_id, wanted.name is not None and is_internal(wanted.name)
            )
        return self._described(topic, operations)

    def _found_or_made(self, name: str, *, makes: bool) -> Topic:
        try:
            return self._named(name)
        except UnknownTopic:
            if not makes:
                raise
            return self._topics.to_publish(name)

    def _described(self, topic: Topic, operations: int) -> MetadataResponseTopic:
        alone = [self._node]
        partitions = [
            MetadataResponsePartition(Error.NONE, number, self._node, LEADER_EPOCH, alone, alone)
            for number in range(topic.partitions)
        ]
        internal = is_internal(topic.name)
        return MetadataResponseTopic(Error.NONE, topic.name, topic.id_bytes, internal, partitions, operations)

    def _describe_topic_partitions(
        self, request: parts_of.DescribeTopicPartitionsRequest, _: Asked
    ) -> parts_of.DescribeTopicPartitionsResponse:
        """All topics if none is named. In order of their names, so that a cursor can say where to go on."""
        names = sorted({topic.name for topic in request.topics} or {topic.name for topic in self._topics})
        first = 0
        if (cursor := request.cursor) is not None:
            names = [name for name in names if name >= cursor.topic_name]
            first = max(0, cursor.partition_index) if names[:1] == [cursor.topic_name] else 0
        room = max(1, min(request.response_partition_limit, PARTITIONS_TOLD_MAX))
        topics: list[parts_of.DescribeTopicPartitionsResponseTopic] = []
        for name in names:
            if room == 0:
                return parts_of.DescribeTopicPartitionsResponse(0, topics, parts_of.Cursor(name, 0))
            described, following = self._described_from(name, first, room)
            topics.append(described)
            if following is not None:
                return parts_of.DescribeTopicPartitionsResponse(0, topics, parts_of.Cursor(name, following))
            room, first = room - len(described.partitions), 0
        return parts_of.DescribeTopicPartitionsResponse(0, topics)

    def _described_from(
        self, name: str, first: int, most: int
    ) -> tuple[parts_of.DescribeTopicPartitionsResponseTopic, int | None]:
        """A topic with its partitions from `first` on, and the number of the first that found no room."""
        try:
            topic = self._named(name)
        except REFUSALS as refusal:
            refused = parts_of.DescribeTopicPartitionsResponseTopic(
                told(refusal)[0], name, is_internal=is_internal(name)
            )
            return refused, None
        alone, end = [self._node], min(topic.partitions, first + most)
        partitions = [
            parts_of.DescribeTopicPartitionsResponsePartition(
                Error.NONE, number, self._node, LEADER_EPOCH, alone, alone, [], []
            )
            for number in range(first, end)
        ]
        described = parts_of.DescribeTopicPartitionsResponseTopic(
            Error.NONE, name, topic.id_bytes, is_internal(name), partitions, TOPIC_OPERATIONS
        )
        return described, end if end < topic.partitions else None

    # Making and growing

    def _create_topics(self, request: CreateTopicsRequest, _: Asked) -> CreateTopicsResponse:
        twice = _repeated(topic.name for topic in request.topics)
        results = [self._created(topic, twice, only_check=request.validate_only) for topic in request.topics]
        return CreateTopicsResponse(topics=results)

    def _created(self, wanted: CreatableTopic, twice: set[str], *, only_check: bool) -> CreatableTopicResult:
        name = wanted.name
        try:
            self._require_new(name, twice)
            partitions = self._partitions_of(wanted)
            if len({config.name for config in wanted.configs}) < len(wanted.configs):
                raise Refused(Error.INVALID_CONFIG, "a configuration key is there more than once; say it once")
            configs = self._keys.taken({config.name: _chosen(config.name, config.value) for config in wanted.configs})
            count = self._topics.check(name, partitions, configs)
            topic_id = NO_ID if only_check else self._topics.create(name, count, configs).id_bytes
        except REFUSALS as refusal:
            code, text = told(refusal)
            return CreatableTopicResult(name, error_code=code, error_message=text)
        settings = [
            CreatableTopicConfigs(each.name, each.value, each.read_only, each.source)
            for each in self._keys.of_topic(configs)
        ]
        return CreatableTopicResult(name, topic_id, Error.NONE, None, Error.NONE, count, 1, settings)

    def _require_new(self, name: str, twice: set[str]) -> None:
        if name in twice:
            raise Refused(Error.INVALID_REQUEST, "the request names this topic more than once")
        try:
            self._named(name)
        except UnknownTopic:
            return
        raise TopicExists(topic=name)

    def _partitions_of(self, wanted: CreatableTopic) -> int | None:
        """How many partitions are asked for, in numbers or one by one; None leaves it to the node."""
        if wanted.assignments:
            if (wanted.num_partitions, wanted.replication_factor) != (UNSAID, UNSAID):
                text = "with an assignment of replicas both the partitions and the replication factor are -1"
                raise Refused(Error.INVALID_REQUEST, text)
            numbers = sorted(each.partition_index for each in wanted.assignments)
            if numbers != list(range(len(numbers))):
                text = f"the partitions that are assigned are not those from 0 to {len(numbers) - 1}, each once"
                raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, text)
            self._require_here(each.broker_ids for each in wanted.assignments)
            return len(numbers)
        if wanted.replication_factor not in (UNSAID, 1):
            text = (
                f"a replication factor of {wanted.replication_factor}, and there is one node: use 1, or -1 for that"
            )
            raise Refused(Error.INVALID_REPLICATION_FACTOR, text)
        return None if wanted.num_partitions == UNSAID else wanted.num_partitions

    def _require_here(self, assigned: Iterable[list[int]]) -> None:
        for nodes in assigned:
            if nodes != [self._node]:
                text = f"a partition is assigned to {nodes[:10]}, and node {self._node} is all there is"
                raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, text)

    def _create_partitions(self, request: CreatePartitionsRequest, _: Asked) -> CreatePartitionsResponse:
        twice = _repeated(topic.name for topic in request.topics)
        results = [self._grown(topic, twice, only_check=request.validate_only) for topic in request.topics]
        return CreatePartitionsResponse(results=results)

    def _grown(
        self, wanted: CreatePartitionsTopic, twice: set[str], *, only_check: bool
    ) -> CreatePartitionsTopicResult:
        try:
            if wanted.name in twice:
                raise Refused(Error.INVALID_REQUEST, "the request names this topic more than once")
            added = self._topics.check_growth(wanted.name, wanted.count) - self._named(wanted.name).partitions
            if wanted.assignments is not None:
                if len(wanted.assignments) != added:
                    text = f"{len(wanted.assignments)} partitions are assigned, and {added} are added"
                    raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, text)
                self._require_here(each.broker_ids for each in wanted.assignments)
            if not only_check:
                self._topics.add_partitions(wanted.name, wanted.count)
        except REFUSALS as refusal:
            return CreatePartitionsTopicResult(wanted.name, *told(refusal))
        return CreatePartitionsTopicResult(wanted.name)

    # Taking away

    def _delete_topics(self, request: DeleteTopicsRequest, asked: Asked) -> DeleteTopicsResponse | None:
        wanted = request.topics or [DeleteTopicState(name) for name in request.topic_names]
        deleting = _Deleting(asked, len(wanted))
        meant = [self._meant(state) for state in wanted]
        twice = _repeated(topic.name for topic in meant if isinstance(topic, Topic))
        for place, (state, topic) in enumerate(zip(wanted, meant, strict=True)):
            try:
                if not isinstance(topic, Topic):
                    raise topic
                if topic.name in twice:
                    raise Refused(Error.INVALID_REQUEST, "the request names this topic more than once")
                self._topics.delete(topic.name, partial(deleting.deleted, place, topic))
            except REFUSALS as refusal:
                code, text = told(refusal)
                deleting.settle(place, DeletableTopicResult(state.name, state.topic_id, code, text))
        return DeleteTopicsResponse() if not wanted else None

    def _meant(self, state: DeleteTopicState) -> Topic | Refused | RivvenError:
        if (state.name is None) == (state.topic_id == NO_ID):
            return Refused(Error.INVALID_REQUEST, "a topic is named by its name or by its id, one of them")
        try:
            return self._identified(state.topic_id) if state.name is None else self._topics.get(state.name)
        except REFUSALS as refusal:
            return refusal

    def _delete_records(self, request: DeleteRecordsRequest, _: Asked) -> DeleteRecordsResponse:
        topics = [
            DeleteRecordsTopicResult(topic.name, [self._emptied(topic.name, part) for part in topic.partitions])
            for topic in request.topics
        ]
        return DeleteRecordsResponse(topics=topics)

    def _emptied(self, name: str, part: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        number = part.partition_index
        try:
            log = self._topics.log(name, number)
            if not log.config.deletes:
                raise Refused(Error.POLICY_VIOLATION, "the topic is compacted: its records go one by one")
            offset = log.high_watermark if part.offset == UNSAID else part.offset
            start = self._topics.delete_before(name, number, offset)
        except REFUSALS as refusal:
            return DeleteRecordsPartitionResult(number, -1, told(refusal)[0])
        return DeleteRecordsPartitionResult(number, start)


class _Deleting:
    """A DeleteTopics under way: answered when every topic is gone, with what was committed for it, or refused."""

    def __init__(self, asked: Asked, count: int) -> None:
        self._asked = asked
        self._results: list[DeletableTopicResult | None] = [None] * count
        self._left = count

    def deleted(self, place: int, topic: Topic, error: RivvenError | None) -> None:
        if error is not None:  # the topic is gone all the same, and the next start takes the offsets away
            logger.warning("topic %s is deleted; offsets committed for it are not yet: %s", topic.name, error)
        self.settle(place, DeletableTopicResult(topic.name, topic.id_bytes))

    def settle(self, place: int, result: DeletableTopicResult) -> None:
        self._results[place] = result
        self._left -= 1
        if self._left == 0:
            self._asked.answer(DeleteTopicsResponse(responses=[each for each in self._results if each is not None]))


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _chosen(key: str, value: str | None) -> str:
    if value is None:
        raise Refused(Error.INVALID_CONFIG, f"{key} has no value; give it one, or leave it out")
    return value
