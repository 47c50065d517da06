"""An owner with its tasks, as in a distributed job: tasks write in transactions of their own, the owner decides.

Drivers of one owner share a `Ledger`, which is all they have in common: what the job has written down of itself. A
driver hands out attempts, several for one task at times, waits for some, and decides. It may be replaced at any time
by another that registers, and goes on not knowing it. Workers take attempts, write, and die on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from rivven.model import TopicPartition
from rivven.wire import Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Fate, Txn, Writer
from .stage import Pause, Scene, Story
from .txn_steps import TxnSteps

TIMEOUTS_MS = (800, 3000, 8000)
PATIENCE = 25
"""So often a driver looks whether its tasks are done."""


class State(Enum):
    ASKED = auto()
    WRITTEN = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class Attempt:
    """A task once tried."""

    owner_epoch: int
    sequence: int
    task: int
    state: State = State.ASKED
    txn: Txn | None = None


@dataclass(slots=True)
class Ledger:
    """What drivers and workers of one owner know together."""

    owner: str
    sequence: int = 0
    """The next one to be decided."""
    waiting: deque[Attempt] = field(default_factory=deque)


class Worker:
    def __init__(self, name: str, scene: Scene, ledger: Ledger, partitions: Sequence[TopicPartition]) -> None:
        self.name = name
        self.stopped = False
        self._scene = scene
        self._rng = scene.rng
        self._ledger = ledger
        self._partitions = partitions
        self._steps = TxnSteps(scene)
        self._last_id: int | None = None
        self._count = 0
        self._values = 0

    def story(self) -> Story[None]:
        while not self.stopped:
            if self._ledger.waiting:
                attempt = self._ledger.waiting.popleft()
                written = yield from self._try(attempt)
                attempt.state = State.WRITTEN if written else State.FAILED
                if not written:
                    self._steps.writer = None
            else:
                yield Pause(5, 60)

    def _try(self, attempt: Attempt) -> Story[bool]:
        rng, steps, chronicle = self._rng, self._steps, self._scene.chronicle
        if steps.writer is None or rng.random() < 0.5:
            yield from steps.init(rng.choice((None, self._last_id)))
        if steps.writer is None:
            return False
        self._last_id = steps.writer[0]
        self._count += 1
        txn = chronicle.txn(f"{self.name}-{self._count}", steps.writer, self._ledger.owner, attempt.sequence)
        attempt.txn = txn
        response = yield from steps.begin_owned(txn, attempt.owner_epoch, rng.choice(TIMEOUTS_MS))
        if not isinstance(response, tell.TransactionStarted):
            return False
        chosen = rng.sample(self._partitions, rng.randint(1, len(self._partitions)))
        if not (yield from steps.add(txn, chosen)):
            return False
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.07 and not self.stopped:
                return False  # it dies, and its transaction is left to whoever decides
            where = rng.choice(chosen)
            sends = [chronicle.send(self._value(), *where, txn) for _ in range(rng.choice((1, 2)))]
            if not (yield from steps.write(txn, where, sends)):
                return False
        if rng.random() < 0.05:
            yield from steps.abort(txn)
            return False
        if rng.random() < 0.05:
            yield from self._commit_by_itself(txn)
        return True

    def _commit_by_itself(self, txn: Txn) -> Story[None]:
        """Which only the owner can."""
        response = yield ask.CommitTransaction(txn.name, *txn.writer)
        committed = isinstance(response, tell.TransactionCommitted)
        if committed and not txn.to_commit:
            self._scene.wrong("decision", f"{txn.name} of {txn.owner} was committed by its producer")

    def _value(self) -> bytes:
        self._values += 1
        return b"%s-%d" % (self.name.encode(), self._values) + b"." * self._rng.choice((0, 10, 200))


class Driver:
    def __init__(self, name: str, scene: Scene, ledger: Ledger, *, hesitates: bool = False) -> None:
        self.name = name
        self.stopped = False
        self._scene = scene
        self._rng = scene.rng
        self._ledger = ledger
        self._steps = TxnSteps(scene)
        self._hesitates = hesitates
        """Whether it stays away for a while before it registers."""
        self._epoch: int | None = None
        self._decided = -1
        """The last one that is decided, as far as it knows."""

    def story(self) -> Story[None]:
        while not self.stopped:
            if self._epoch is None:
                yield Pause(500, 3000) if self._hesitates else Pause(0, 400)
                yield from self._register()
            elif self._ledger.sequence <= self._decided:
                yield from self._decide(self._ledger.sequence, frozenset())  # hear what it was
            else:
                yield from self._batch(self._ledger.sequence)
                if self._rng.random() < 0.3:
                    yield from self._say_again()
            yield Pause(0, 30)

    def _register(self) -> Story[None]:
        response = yield from self._steps.insist(ask.RegisterOwner(self._ledger.owner), haunted=False)
        if isinstance(response, tell.OwnerRegistered):
            self._epoch = response.owner_epoch
            self._decided = -1 if response.decided is None else response.decided
            if self._decided < self._ledger.sequence - 1:
                was = self._ledger.sequence - 1
                self._scene.wrong("decision", f"{was} of {self._ledger.owner} was decided; told {self._decided}")

    def _batch(self, sequence: int) -> Story[None]:
        assert self._epoch is not None
        rng = self._rng
        attempts = [
            Attempt(self._epoch, sequence, task)
            for task in range(rng.randint(1, 3))
            for _ in range(rng.choice((1, 1, 2)))
        ]
        self._ledger.waiting.extend(attempts)
        for _ in range(PATIENCE):
            if self.stopped or all(attempt.state is not State.ASKED for attempt in attempts):
                break
            yield Pause(20, 150)
        if rng.random() < 0.05:
            self._epoch = None  # it dies, and what its tasks wrote stays open
            return
        written = {
            attempt.task: attempt.txn
            for attempt in attempts
            if attempt.state is State.WRITTEN and attempt.txn is not None
        }
        if written or rng.random() < 0.2:
            for txn in written.values():
                txn.to_commit = True
            yield from self._decide(sequence, frozenset(txn.writer for txn in written.values()))

    def _say_again(self) -> Story[None]:
        """An earlier sequence once more, naming something else: it is answered as it was."""
        if self._ledger.sequence > 0 and self._epoch is not None:
            earlier = self._rng.randint(max(0, self._ledger.sequence - 20), self._ledger.sequence - 1)
            yield from self._decide(earlier, frozenset())

    def _decide(self, sequence: int, naming: frozenset[Writer]) -> Story[None]:
        assert self._epoch is not None
        ledger, chronicle = self._ledger, self._scene.chronicle
        fact = chronicle.decision(ledger.owner, sequence, naming)
        committing = tuple(ask.TxnProducer(*writer) for writer in sorted(naming))
        request = ask.Decide(ledger.owner, self._epoch, sequence, committing)
        response = yield from self._steps.insist(request)
        match response:
            case tell.Decided(answered, known, committed, repeated):
                assert answered == sequence
                if known:
                    fact.committed = frozenset((one.producer_id, one.producer_epoch) for one in committed)
                fact.repeated = repeated
                chronicle.end(fact, Fate.DONE)
                ledger.sequence = max(ledger.sequence, sequence + 1)
                self._decided = max(self._decided, sequence)
            case _:
                self._refused(response)

    def _refused(self, response: Response | None) -> None:
        """The same batch is written again, unless another driver has taken over: then that one does."""
        refused = isinstance(response, tell.Error) and response.message.startswith("DECISION_REFUSED")
        if not refused:
            self._epoch = None
