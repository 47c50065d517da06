"""Transactional producers: one that writes to many partitions and ends as it likes, and one that loops.

Both die now and then in the middle of a transaction. The next life either takes over the producer id, which fences
the one before and aborts what it left; or it is somebody else, and the timeout must end what was left. The life
before may not know that it is dead: it goes on as a zombie for a while, and whatever it asks for must be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from rivven.model import TopicPartition
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Chronicle, Look, Loop, Place, Txn, Writer
from .reading import READ_COMMITTED, taken_apart
from .stage import Pause, Scene, Story
from .txn_steps import TxnSteps

TIMEOUTS_MS = (400, 1500, 6000)
DEATH = 0.1
ABORT = 0.3


class _Lives:
    """A producer through many lives."""

    def __init__(self, name: str, scene: Scene, partitions: Sequence[TopicPartition]) -> None:
        self.name = name
        self.stopped = False
        self._scene = scene
        self._rng = scene.rng
        self._partitions = partitions
        self._steps = TxnSteps(scene)
        self._count = 0
        self._values = 0

    @property
    def _chronicle(self) -> Chronicle:
        return self._scene.chronicle

    def story(self) -> Story[None]:
        while not self.stopped:
            alive = self._steps.writer is not None or (yield from self._live())
            if alive:
                alive = yield from self._transaction()
            if not alive:
                yield from self._die()
            yield Pause(0, 60)

    def _live(self) -> Story[bool]:
        return (yield from self._steps.init(None))

    def _transaction(self) -> Story[bool]:
        """Whether the producer may go on as it is."""
        raise NotImplementedError

    def _die(self) -> Story[None]:
        """The producer does not know where it stands, or has been killed. Somebody takes its place."""
        before = self._steps.writer
        self._steps.writer = None
        yield Pause(0, 300)
        if before is None or self._rng.random() < 0.3:
            return
        if (yield from self._steps.init(before[0])) and self._rng.random() < 0.5:
            yield from self._haunt(before)

    def _haunt(self, before: Writer) -> Story[None]:
        """The life before asks for something once more. It has been fenced, and nothing of that may be done."""
        name = f"{self.name}-{self._count}"
        where = self._rng.choice(self._partitions)
        request = self._rng.choice(
            (
                ask.BeginTransaction(f"{name}-zombie", *before, 1000),
                ask.CommitTransaction(name, *before),
                ask.AddPartitionsToTxn(name, *before, (ask.TxnPartition(*where),)),
                ask.AddOffsetsToTxn(name, *before, self.name, (ask.TxnOffset(*where, 0),)),
            )
        )
        yield Pause(0, self._rng.choice((10, 2000)))
        response = yield request
        if response is not None and not isinstance(response, tell.Error):
            text = f"{before} of {self.name} was fenced by {self._steps.writer}, and yet {request}: {response}"
            self._scene.wrong("zombie", text)

    def _new_txn(self) -> Txn:
        assert self._steps.writer is not None
        self._count += 1
        return self._chronicle.txn(f"{self.name}-{self._count}", self._steps.writer)

    def _value(self) -> bytes:
        self._values += 1
        return b"%s-%d" % (self.name.encode(), self._values) + b"." * self._rng.choice((0, 10, 200))

    @property
    def _dies(self) -> bool:
        return self._rng.random() < DEATH and not self.stopped


class TxnProducer(_Lives):
    """Writes values of its own to several partitions, then commits or aborts."""

    def _transaction(self) -> Story[bool]:
        rng, steps = self._rng, self._steps
        txn = self._new_txn()
        if not (yield from steps.begin(txn, rng.choice(TIMEOUTS_MS))):
            return False
        chosen = rng.sample(self._partitions, rng.randint(1, len(self._partitions)))
        if not (yield from steps.add(txn, chosen)):
            return False
        for _ in range(rng.randint(1, 5)):
            if self._dies:
                return False
            where = rng.choice(chosen)
            sends = [self._chronicle.send(self._value(), *where, txn) for _ in range(rng.choice((1, 1, 2, 4)))]
            if not (yield from steps.write(txn, where, sends)):
                yield from steps.abort(txn)
                return False
            yield Pause(0, rng.choice((5, 5, 200)))
        if rng.random() < ABORT:
            return (yield from steps.abort(txn))
        known = yield from steps.commit(txn)
        return known and not self._dies


class LoopProducer(_Lives):
    """Reads inputs, writes an output for each, and commits how far it has read together with them."""

    def __init__(self, name: str, scene: Scene, inputs: Sequence[TopicPartition], output: str) -> None:
        outputs = [TopicPartition(output, number) for number in range(scene.topics[output])]
        super().__init__(name, scene, outputs)
        self._inputs = inputs
        self._positions: dict[TopicPartition, int] = {}
        """Where the group stands, as far as this life knows; empty if it has yet to ask."""
        scene.chronicle.loops.append(Loop(name, tuple(inputs), output))

    def _die(self) -> Story[None]:
        yield from super()._die()
        self._positions = {}

    def _live(self) -> Story[bool]:
        """The next life of the same producer: of two that read the same group one must be fenced."""
        self._positions = {}
        return (yield from self._steps.init(self._producer_id()))

    def _producer_id(self) -> int | None:
        mine = [txn.writer[0] for txn in self._chronicle.txns if txn.name.startswith(f"{self.name}-")]
        return mine[-1] if mine else None

    def _recall(self) -> Story[bool]:
        """Ask where the group stands. Only now, since nobody else can move it any more."""
        chronicle = self._chronicle
        for partition in self._inputs:
            begun = chronicle.tick()
            response = yield ask.GetOffset(self.name, *partition)
            if not isinstance(response, tell.CommittedOffset):
                self._positions = {}
                return False
            chronicle.looks.append(Look(begun, chronicle.tick(), self.name, partition, response.offset))
            self._positions[partition] = response.offset or 0
        return True

    def _transaction(self) -> Story[bool]:
        rng, steps = self._rng, self._steps
        if not self._positions and not (yield from self._recall()):
            return True
        found, upto = yield from self._read(rng.choice(self._inputs))
        if not found:
            self._positions |= upto
            return True
        txn = self._new_txn()
        if not (yield from steps.begin(txn, rng.choice(TIMEOUTS_MS))):
            return False
        if not (yield from steps.add(txn, self._partitions)):
            return False
        for place in found:
            where = rng.choice(self._partitions)
            send = self._chronicle.send(self._value(), *where, txn)
            send.source = place
            if self._dies or not (yield from steps.write(txn, where, [send])):
                return False
        if not (yield from steps.take_offsets(txn, self.name, upto)):
            return False
        if rng.random() < ABORT / 2:
            return (yield from steps.abort(txn))
        if self._dies or not (yield from steps.commit(txn)):
            return False
        if txn.may_count:
            self._positions |= upto
        return True

    def _read(self, where: TopicPartition) -> Story[tuple[list[Place], dict[TopicPartition, int]]]:
        position = self._positions[where]
        part = ask.PartitionFetch(where.partition, position, 600)
        response = yield ask.FetchBatches(100, 1, 600, READ_COMMITTED, (ask.TopicFetch(where.topic, (part,)),))
        if not isinstance(response, tell.FetchedBatches) or response.topics[0].partitions[0].error:
            return [], {}
        records, _, upto = taken_apart(response.topics[0].partitions[0], committed=True)
        found = [(where, int(record.offset)) for record in records if record.offset >= position]
        return found, {where: max(position, upto)}
