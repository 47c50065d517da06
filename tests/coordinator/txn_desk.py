"""A desk round `Transactions`: performs its effects at once, or keeps them back until told, and remembers the log."""

from __future__ import annotations

from itertools import count

from rivven.coordinator import (
    AddOffsets,
    AddPartitions,
    BeginTxn,
    Decide,
    EndTxn,
    Initialized,
    InitProducer,
    RegisterOwner,
    Transactions,
    TxnAnswer,
    TxnConfig,
    TxnPersist,
    WriteMarkers,
    native_id,
)
from rivven.errors import DiskFull
from rivven.model import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MINUTE_MS = 60_000


class Desk:
    def __init__(self, config: TxnConfig = TxnConfig(), first_id: int = 100) -> None:  # noqa: B008 - frozen
        self.config = config
        self.ids = count(first_id)
        self.txns = Transactions(config, lambda: next(self.ids))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.markers: list[WriteMarkers] = []
        self.answers: dict[int, object] = {}
        self.replies = 0
        self.now_ms = 1_000_000
        self.hold_writes = self.hold_markers = False
        self.held: list[TxnPersist | WriteMarkers] = []

    def send(self, request) -> int:
        self.replies += 1
        self.perform(self.txns.ask(request, self.replies, self.now_ms))
        return self.replies

    def ask(self, request):
        """The answer, or None where it is still to come."""
        return self.answers.get(self.send(request))

    def perform(self, effects) -> None:
        for effect in effects:
            match effect:
                case TxnAnswer(reply_id, result):
                    assert reply_id not in self.answers, "answered twice"
                    self.answers[reply_id] = result
                case TxnPersist() if self.hold_writes:
                    self.held.append(effect)
                case WriteMarkers() if self.hold_markers:
                    self.held.append(effect)
                case _:
                    self.do(effect)

    def do(self, effect) -> None:
        if isinstance(effect, TxnPersist):
            self.log += effect.records
            self.perform(self.txns.persisted(effect.token, self.now_ms))
        else:
            self.markers.append(effect)
            self.perform(self.txns.marked(effect.token, self.now_ms))

    def do_next(self) -> None:
        self.do(self.held.pop(0))

    def fail_next(self) -> None:
        error = DiskFull(wanted_bytes=1, path="log")
        self.perform(self.txns.failed(self.held.pop(0).token, error, self.now_ms))

    def hold(self, *, writes: bool = False, markers: bool = False) -> None:
        self.hold_writes, self.hold_markers = writes, markers

    def let_go(self) -> None:
        self.hold()
        while self.held:
            self.do_next()

    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        while (due_ms := self.txns.due_ms()) is not None and due_ms <= self.now_ms:
            self.perform(self.txns.tick(self.now_ms))

    def crash(self) -> None:
        """All that is not in the log is gone."""
        self.held.clear()
        self.txns = Transactions(self.config, lambda: next(self.ids))
        for key, value in self.log:
            self.txns.replay(key, value)
        self.perform(self.txns.recall(self.now_ms))

    # Words for what clients do

    def init(self, name: str = "x", timeout_ms: int = MINUTE_MS, **was) -> Initialized:
        return self.ask(InitProducer(name, timeout_ms, **was))

    def add(self, producer: Initialized, *partitions: TopicPartition, name: str = "x", **more):
        return self.ask(AddPartitions(name, producer.producer_id, producer.producer_epoch, partitions, **more))

    def add_offsets(self, producer: Initialized, group: str, name: str = "x"):
        return self.ask(AddOffsets(name, producer.producer_id, producer.producer_epoch, group))

    def end(self, producer: Initialized, commit: bool = True, version: int = 2, name: str = "x", **more):
        facts = (name, producer.producer_id, producer.producer_epoch, commit, version)
        return self.ask(EndTxn(*facts, **more))

    def admit(self, producer, target=T0, **more) -> None:
        self.txns.admit(producer.producer_id, producer.producer_epoch, target, self.now_ms, **more)

    def status(self, name: str = "x") -> str:
        return self.txns.describe(name).status.title

    def begin(self, producer_id: int, label: str = "one", epoch: int = 0, **owned):
        return self.ask(BeginTxn(producer_id, epoch, label, **owned))

    def native_add(self, producer_id: int, *partitions: TopicPartition, label: str = "one", epoch: int = 0):
        return self.ask(AddPartitions(native_id(producer_id), producer_id, epoch, partitions, label))

    def native_end(self, producer_id: int, commit: bool = True, label: str = "one", epoch: int = 0):
        return self.ask(EndTxn(native_id(producer_id), producer_id, epoch, commit, 1, label))

    def register(self, owner: str = "query"):
        return self.ask(RegisterOwner(owner))

    def attempt(self, producer_id: int, sequence: int, *partitions: TopicPartition, owner_epoch: int = 0) -> None:
        """A task writes in a transaction of its own, for its owner to decide."""
        self.begin(producer_id, owner="query", owner_epoch=owner_epoch, sequence=sequence)
        self.native_add(producer_id, *partitions)

    def decide(self, sequence: int, *producer_ids: int, owner_epoch: int = 0):
        return self.ask(Decide("query", owner_epoch, sequence, tuple((one, 0) for one in producer_ids)))

    def verdicts(self) -> dict[tuple[int, TopicPartition], bool]:
        """Commit or abort by producer and partition; a second marker must say the same as the first."""
        found: dict[tuple[int, TopicPartition], bool] = {}
        for marker in self.markers:
            for partition in marker.partitions:
                assert found.setdefault((marker.producer_id, partition), marker.commit) is marker.commit
        return found
