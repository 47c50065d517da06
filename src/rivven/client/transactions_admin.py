"""What operators ask about transactions: which there are, which of them hang, and the end of one.

It is asked in Kafka's dialect, on the same port: coordinators tell of the transactions they decide about, and whoever
leads a partition tells which transactions its log shows as open. A transaction hangs if its log shows it and no
coordinator has it open there: nobody will ever end it, and readers of committed data wait behind it. The log is read
before and after the coordinators are asked, so that one that just began or ended is not taken for one that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rivven.errors import RivvenError
from rivven.model import TopicPartition
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import describe_producers as producers
from rivven.wire.kafka.made import write_txn_markers as mark
from rivven.wire.kafka.made.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from rivven.wire.kafka.made.describe_transactions import DescribeTransactionsRequest
from rivven.wire.kafka.made.find_coordinator import FindCoordinatorRequest
from rivven.wire.kafka.made.init_producer_id import InitProducerIdRequest
from rivven.wire.kafka.made.list_transactions import ListTransactionsRequest
from rivven.wire.kafka.made.metadata import MetadataRequest, MetadataRequestTopic

from .coordinator_link import KafkaConnection, by_topic
from .failures import ConfigException, ServerException, TimeoutException, TryAgain
from .options import Address
from .retry import Backoff
from .shell import Cluster, monotonic_ms
from .values import (
    OPEN_STATES,
    TRANSACTION_STATES,
    ActiveProducer,
    DescribedTransaction,
    HangingTransaction,
    ListedTransaction,
    ProducerState,
)

NATIVE = "native:"
"""How the transactional ids begin under which native producers are known."""
AT_ONCE = 1_000
"""How many ids one request names."""
PARTITIONS_AT_ONCE = 20
"""The same for partitions whose producers are asked for: each may have a great many."""
TRANSACTION_KEY, NODE_RESOURCE = 1, 4
TIMEOUT_KEY = "transaction.max.timeout.ms"
TIMEOUT_MS_MAX = 900_000
"""What a server that does not tell has for that key."""
PASSING = frozenset(
    {
        *(Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE, Error.NOT_COORDINATOR),
        *(Error.NOT_LEADER_OR_FOLLOWER, Error.LEADER_NOT_AVAILABLE, Error.KAFKA_STORAGE_ERROR),
        *(Error.CONCURRENT_TRANSACTIONS, Error.REQUEST_TIMED_OUT),
    }
)

T = TypeVar("T")


class TransactionsAdmin:
    """The part of a client that looks at everybody's transactions, and ends them."""

    _cluster: Cluster

    async def init_producer_id(self, previous_producer_id: int | None = None) -> ProducerState:
        raise NotImplementedError

    # Looking

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        *,
        older_than_ms: int | None = None,
        producer_ids: Iterable[int] = (),
    ) -> list[ListedTransaction]:
        """Every transactional id that the servers know, by name; or those in one of these states, those that have
        had a transaction open for so long, or those of these producers."""
        wanted = list(states)
        if strange := [state for state in wanted if state not in TRANSACTION_STATES]:
            raise ConfigException(reason=f"no state {strange[0]!r}; there are {', '.join(TRANSACTION_STATES)}")
        if older_than_ms is not None and older_than_ms < 0:
            raise ConfigException(reason=f"older_than_ms must be at least 0, not {older_than_ms}")
        asked = ListTransactionsRequest(wanted, list(producer_ids), -1 if older_than_ms is None else older_than_ms)
        async with self._servers() as servers:
            return await servers.listed(asked)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, DescribedTransaction]:
        """What there is to know of each; ids that nobody has used, or not for long, are left out."""
        async with self._servers() as servers:
            return await servers.described(transactional_ids)

    async def describe_producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        """The producers that a partition remembers, and where each has a transaction open."""
        where = TopicPartition(topic, partition)
        async with self._servers() as servers:
            await servers.look([topic])
            return (await servers.producers([where]))[where]

    async def find_hanging_transactions(self, *, older_than_ms: int | None = None) -> list[HangingTransaction]:
        """All transactions that a partition shows as open and that no coordinator knows of; and those that have been
        open for `older_than_ms`, or for longer than the longest timeout that the servers allow."""
        if older_than_ms is not None and older_than_ms < 0:
            raise ConfigException(reason=f"older_than_ms must be at least 0, not {older_than_ms}")
        async with self._servers() as servers:
            await servers.look(None)
            found = _open_in(await servers.producers(servers.partitions))
            if not found:
                return []
            if older_than_ms is None:
                older_than_ms = await servers.timeout_ms_max()
            known, overdue = await servers.owners_of({who.producer_id for _, who in found}, older_than_ms)
            strange = [(where, who) for where, who in found if (where, who.producer_id) not in known]
            still = _open_in(await servers.producers(list(dict.fromkeys(where for where, _ in strange))))
            begun = {(where, who.producer_id, who.start_offset) for where, who in still}
            hanging = [
                _hanging(where, who, None)
                for where, who in strange
                if (where, who.producer_id, who.start_offset) in begun
            ]
            late = [
                _hanging(where, who, known[where, who.producer_id])
                for where, who in found
                if known.get((where, who.producer_id)) in overdue
            ]
        return sorted(hanging + late)

    # Ending

    async def abort_open_transaction(self, transactional_id: str, *, dry_run: bool = False) -> DescribedTransaction:
        """End what is open under a transactional id, whoever has it: readers of committed data never see what it
        wrote. Its producer is fenced and must begin anew. Returns what was aborted, or with `dry_run` what would be.

        A server that goes down on the way may have done it or not; the same call tells.
        """
        async with self._servers() as servers:
            found = (await servers.described([transactional_id])).get(transactional_id)
            if found is None:
                raise _refused(Error.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transaction {transactional_id!r}")
            if not found.is_open:
                reason = f"transaction {transactional_id!r} has nothing open; it is {found.state}"
                raise _refused(Error.INVALID_TXN_STATE, reason)
            if found.state != "Ongoing":
                reason = f"transaction {transactional_id!r} is ending already; it is {found.state}"
                raise _refused(Error.CONCURRENT_TRANSACTIONS, reason)
            if not dry_run and not transactional_id.startswith(NATIVE):
                await servers.fence(found)
            elif not dry_run:
                await self.init_producer_id(found.producer_id)  # a native producer is fenced by its own next life
            return found

    async def abort_hanging_transaction(
        self, topic: str, partition: int, start_offset: int, *, dry_run: bool = False
    ) -> HangingTransaction:
        """End a transaction that no coordinator knows of, by the offset at which it begins in a partition. Refused
        for any other: those have an id to be aborted by. Returns it; with `dry_run` it is not touched."""
        where = TopicPartition(topic, partition)
        async with self._servers() as servers:
            await servers.look([topic])
            begun = _open_in({where: (await servers.producers([where]))[where]})
            who = next((who for _, who in begun if who.start_offset == start_offset), None)
            if who is None:
                others = ", ".join(str(who.start_offset) for _, who in begun)
                reason = f"no open transaction begins at offset {start_offset} of {topic}/{partition}"
                raise _refused(Error.INVALID_TXN_STATE, f"{reason}; those that do: {others or 'none'}")
            known, _ = await servers.owners_of({who.producer_id}, None)
            if (owner := known.get((where, who.producer_id))) is not None:
                reason = f"the transaction at offset {start_offset} of {topic}/{partition} is that of {owner!r}"
                raise _refused(Error.INVALID_TXN_STATE, f"{reason}, and its coordinator knows it")
            if not dry_run:
                await servers.mark_aborted(where, who)
        return _hanging(where, who, None)

    @asynccontextmanager
    async def _servers(self) -> AsyncIterator[_Servers]:
        servers = _Servers(self._cluster)
        try:
            yield servers
        finally:
            servers.close()


class _Servers:
    """Connections to the servers that have to be asked, for as long as one question takes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._first: KafkaConnection | None = None
        self._others: dict[Address, KafkaConnection] = {}

    def close(self) -> None:
        for connection in (self._first, *self._others.values()):
            if connection is not None:
                connection.close()

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._leaders)

    # Who is who

    async def look(self, topics: Sequence[str] | None) -> None:
        """Learn which servers there are, and who leads the partitions of these topics, or of all."""
        named = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        answer = await self._ask_first(MetadataRequest(named, allow_auto_topic_creation=False))
        self._addresses = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            if topics is not None and topic.error_code:
                raise _refused(topic.error_code, f"topic '{topic.name}' not found")
            for part in topic.partitions:
                self._leaders[TopicPartition(topic.name, part.partition_index)] = part.leader_id

    async def _ask_first(self, request: Any) -> Any:
        if self._first is None:
            self._first = await self._cluster.open_first(self._open)
        return await self._first.ask(request, self._cluster.options.request_timeout_ms)

    async def _open(self, address: Address) -> KafkaConnection:
        client_id = self._cluster.options.client_id
        return await self._cluster.dial(address, lambda: KafkaConnection(address, client_id))

    async def _ask(self, node: int, request: Any) -> Any:
        """Ask one server; whoever we talk to anyway, if its address cannot be reached from here."""
        address = self._addresses.get(node)
        if self._first is None or address is None or address == self._first.address:
            return await self._ask_first(request)
        if address not in self._others:
            try:
                self._others[address] = await self._open(address)
            except RivvenError:
                return await self._ask_first(request)
        return await self._others[address].ask(request, self._cluster.options.request_timeout_ms)

    async def _coordinators(self, transactional_ids: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for names in _pieces(list(dict.fromkeys(transactional_ids))):
            asked = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=names)
            for each in (await self._ask_first(asked)).coordinators:
                _check(each.error_code, f"looking for the coordinator of {each.key!r} was refused")
                self._addresses.setdefault(each.node_id, Address(each.host, each.port))
                found.setdefault(each.node_id, []).append(each.key)
        return found

    async def timeout_ms_max(self) -> int:
        """The longest timeout of a transaction that any of the servers allows."""
        found = []
        for node in self._addresses:
            asked = DescribeConfigsResource(NODE_RESOURCE, str(node), [TIMEOUT_KEY])
            for result in (await self._ask(node, DescribeConfigsRequest([asked]))).results:
                found += [int(each.value) for each in result.configs if each.name == TIMEOUT_KEY and each.value]
        return max(found, default=TIMEOUT_MS_MAX)

    # Coordinators

    async def listed(self, asked: ListTransactionsRequest) -> list[ListedTransaction]:
        if not self._addresses:
            await self.look(())
        found: dict[str, ListedTransaction] = {}
        for node in sorted(self._addresses):
            answer = await self._ask(node, asked)
            _check(answer.error_code, "listing transactions was refused")
            for each in answer.transaction_states:
                name = each.transactional_id
                found[name] = ListedTransaction(name, each.producer_id, each.transaction_state)
        return [found[name] for name in sorted(found)]

    async def described(self, transactional_ids: Iterable[str]) -> dict[str, DescribedTransaction]:
        found: dict[str, DescribedTransaction] = {}
        for node, all_names in (await self._coordinators(transactional_ids)).items():
            for names in _pieces(all_names):
                answer = await self._ask(node, DescribeTransactionsRequest(names))
                for each in answer.transaction_states:
                    if each.error_code != Error.TRANSACTIONAL_ID_NOT_FOUND:
                        _check(each.error_code, f"describing {each.transactional_id!r} was refused")
                        found[each.transactional_id] = _described(each)
        return found

    async def owners_of(
        self, producer_ids: set[int], older_than_ms: int | None
    ) -> tuple[dict[tuple[TopicPartition, int], str], set[str]]:
        """By partition and producer, the transactional ids that are open there; and which of them are that old."""
        wanted = sorted(producer_ids)
        names: list[str] = []
        overdue: set[str] = set()
        for some in _pieces(wanted):
            names += [each.transactional_id for each in await self.listed(ListTransactionsRequest([], some))]
            if older_than_ms is not None:
                old = await self.listed(ListTransactionsRequest(list(OPEN_STATES), some, older_than_ms))
                overdue |= {each.transactional_id for each in old}
        found = (await self.described(names)).values()
        known = {
            (where, each.producer_id): each.transactional_id
            for each in found
            if each.is_open
            for where in each.partitions
        }
        return known, overdue

    async def fence(self, found: DescribedTransaction) -> None:
        """Take its transactional id over, which aborts what is open; that is done when the id can be had."""
        name = found.transactional_id
        ((node, _),) = (await self._coordinators([name])).items()
        options = self._cluster.options
        backoff = Backoff(self._cluster.rng, first_ms=options.backoff_ms, most_ms=options.backoff_ms_max)
        due_ms = monotonic_ms() + options.request_timeout_ms
        while True:
            code = (await self._ask(node, InitProducerIdRequest(name, found.timeout_ms))).error_code
            if code not in PASSING:
                _check(code, f"aborting {name!r} was refused")
                return
            wait_ms = backoff.next_ms()
            if monotonic_ms() + wait_ms > due_ms:
                raise TimeoutException(reason=f"transaction {name!r} was told to abort, and is still ending")
            await asyncio.sleep(wait_ms / 1000)

    # Partitions

    async def producers(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Who writes where. A partition that is gone by now has nobody, unless it is the only one asked for."""
        found: dict[TopicPartition, list[ActiveProducer]] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        for where in wanted:
            by_node.setdefault(self._leaders.get(where, -1), []).append(where)
        for node, all_places in by_node.items():
            for places in _pieces(all_places, PARTITIONS_AT_ONCE):
                topics = [producers.TopicRequest(name, numbers) for name, numbers in by_topic(places).items()]
                answer = await self._ask(node, producers.DescribeProducersRequest(topics))
                for topic in answer.topics:
                    for part in topic.partitions:
                        where = TopicPartition(topic.name, part.partition_index)
                        gone = part.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
                        if gone and len(wanted) == 1:
                            raise _refused(
                                part.error_code, f"partition {where.partition} of '{where.topic}' not found"
                            )
                        if not gone:
                            _check(part.error_code, f"describing the producers of {topic.name} was refused")
                            found[where] = [_active(each) for each in part.active_producers]
        return found

    async def mark_aborted(self, where: TopicPartition, who: ActiveProducer) -> None:
        topics = [mark.WritableTxnMarkerTopic(where.topic, [where.partition])]
        marker = mark.WritableTxnMarker(who.producer_id, max(who.producer_epoch, 0), False, topics)
        answer = await self._ask(self._leaders.get(where, -1), mark.WriteTxnMarkersRequest([marker]))
        for each in (part for one in answer.markers for topic in one.topics for part in topic.partitions):
            reason = (
                f"the transaction at offset {who.start_offset} of {where.topic}/{where.partition} hangs no longer"
            )
            _check(each.error_code, reason if each.error_code == Error.INVALID_TXN_STATE else f"{reason}, or changed")


def _described(each: Any) -> DescribedTransaction:
    return DescribedTransaction(
        each.transactional_id,
        each.transaction_state,
        each.producer_id,
        each.producer_epoch,
        each.transaction_timeout_ms,
        None if each.transaction_start_time_ms < 0 else each.transaction_start_time_ms,
        tuple(TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions),
        tuple(each.groups),
        each.label or None,
        each.owner or None,
        None if each.sequence < 0 else each.sequence,
    )


def _active(each: Any) -> ActiveProducer:
    begun = each.current_txn_start_offset
    return ActiveProducer(
        each.producer_id,
        each.producer_epoch,
        each.last_sequence,
        each.last_timestamp,
        None if begun < 0 else begun,
    )


def _open_in(found: Mapping[TopicPartition, list[ActiveProducer]]) -> list[tuple[TopicPartition, ActiveProducer]]:
    return [(where, who) for where, all_of_it in sorted(found.items()) for who in all_of_it if who.is_writing]


def _hanging(where: TopicPartition, who: ActiveProducer, transactional_id: str | None) -> HangingTransaction:
    assert who.start_offset is not None
    return HangingTransaction(
        *where, who.start_offset, who.producer_id, who.producer_epoch, who.last_write_ms, transactional_id
    )


def _pieces(many: Sequence[T], at_once: int = AT_ONCE) -> Iterator[list[T]]:
    for first in range(0, len(many), at_once):
        yield list(many[first : first + at_once])


def _check(code: int, reason: str) -> None:
    if code:
        raise _refused(code, reason)


def _refused(code: int, reason: str) -> ServerException:
    error = Error(code) if code in Error._value2member_map_ else Error.UNKNOWN_SERVER_ERROR
    kind = TryAgain if error in PASSING else ServerException
    return kind(reason=f"{error.name}: {reason}", error=code)
