"""A broker with transactions under way: producers that commit and abort, a loop that reads and writes, an owner with
its tasks, and readers of committed and uncommitted data, through the same faults as the plain world."""

from __future__ import annotations

from typing import ClassVar

from rivven.model import TopicPartition
from rivven.wire import Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .broker import BrokerWorld
from .producing import Producer
from .reading import READ_COMMITTED, Auditor, Consumer
from .stage import Actor, Player, Storyteller
from .topic_maker import Stranger
from .txn_owner import Driver, Ledger, Worker
from .txn_producer import LoopProducer, TxnProducer


class TxnWorld(BrokerWorld):
    name = "transactions"
    topics: ClassVar[dict[str, int]] = {"orders": 2, "inputs": 1, "outputs": 2}

    def _cast(self) -> list[Actor]:
        stage = self.stage
        orders = [TopicPartition("orders", number) for number in range(self.topics["orders"])]
        inputs = [TopicPartition("inputs", 0)]
        ledger = Ledger("query")
        self.consumers = [
            Consumer("anna", stage, self._client("anna"), stage.partitions, READ_COMMITTED),
            Consumer("bert", stage, self._client("bert"), stage.partitions, 0),
        ]
        self.groups = [(consumer.name, partition) for consumer in self.consumers for partition in stage.partitions]
        self.groups += [("loop", partition) for partition in inputs]
        tellers: list[Storyteller] = [
            TxnProducer("t", stage, [*orders, *inputs]),
            TxnProducer("u", stage, [*orders, *inputs]),
            LoopProducer("loop", stage, inputs, "outputs"),
            Driver("driver", stage, ledger),
            Driver("rival", stage, ledger, hesitates=True),
            *(Worker(name, stage, ledger, orders) for name in ("w", "x", "y")),
        ]
        spares = [partition for partition in stage.partitions if partition.topic != "orders"]
        return [
            *(Player(teller, stage, self._client(teller.name)) for teller in tellers),
            Producer("p", stage, self._client("p")),
            *self.consumers,
            Auditor(stage, self._client("auditor"), ["anna", "bert"], spares=spares),
            Stranger(stage),
        ]

    def _settle(self) -> None:
        self._require("every transaction ends", self._all_ended)

    def _all_ended(self) -> bool:
        broker = self.node.broker
        return not broker.transactions.hanging() and not any(one.status.open for one in broker.transactions.list())

    def _audit(self) -> None:
        super()._audit()
        before = self.chronicle.final_offsets
        self.chronicle.final_offsets = offsets = {}
        client = self._client("last")

        def ask_for(group: str, partition: TopicPartition) -> None:
            def answered(response: Response | None) -> None:
                assert isinstance(response, tell.CommittedOffset), f"{group} at {partition}: {response}"
                offsets[group, partition] = response.offset

            client.ask(ask.GetOffset(group, *partition), answered)

        for group, partition in self.groups:
            ask_for(group, partition)
        self._require("the offsets of groups are told", lambda: len(offsets) == len(self.groups))
        assert before in ({}, offsets), "a group's offset is not what it was before the power went"
