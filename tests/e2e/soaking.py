"""The simulator's stories over real sockets to a real `rivvend`, and a Kafka producer and consumer beside them.

Every actor is a thread and has chance of its own; all take down what they did and saw in one chronicle, which the
simulator's checkers examine.
"""

from __future__ import annotations

import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from rivven.model import TopicPartition
from rivven.sim.chronicle import Anomaly, Chronicle, Fate, Poll, Send, Txn
from rivven.sim.reading import READ_COMMITTED, taken_apart
from rivven.sim.stage import Pause, Scene, Story, Storyteller
from rivven.wire import (
    CAPABILITIES,
    PROTOCOL_VERSION,
    REPLY_BYTES_MAX,
    Format,
    Request,
    Response,
    Splitter,
    decode_response,
    encode_request,
)
from rivven.wire import requests as ask
from rivven.wire import responses as tell

ANSWER_S = 15.0
RETRY_S = 0.05
KAFKA_S = 10.0


class Line:
    """One connection at a time; a request whose connection is lost has no answer, and nobody knows what became of
    it."""

    def __init__(self, port: Callable[[], int], form: Format = Format.POSTCARD) -> None:
        self._port = port
        self._form = form
        self._socket: socket.socket | None = None
        self._numbers = itertools.count(1)

    def ask(self, request: Request) -> Response | None:
        try:
            if self._socket is None:
                self._connect()
            return self._call(request)
        except OSError:
            self.close()
            time.sleep(RETRY_S)
            return None

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port()), timeout=ANSWER_S)
        self._splitter = Splitter(frame_bytes_max=REPLY_BYTES_MAX)
        greeted = self._call(ask.Handshake(PROTOCOL_VERSION, "soak", int(CAPABILITIES)))
        assert isinstance(greeted, tell.HandshakeResult), greeted

    def _call(self, request: Request) -> Response:
        assert self._socket is not None
        number = next(self._numbers)
        self._socket.sendall(b"".join(encode_request(request, number, self._form)))
        while True:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the other side has gone")
            for body in self._splitter.feed(data):
                answer = decode_response(body)
                assert answer.correlation_id == number, "an answer to something else"
                return answer.response

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Ghost(threading.Thread):
    """Sends requests once more, on a connection of its own and later."""

    def __init__(self, port: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._line = Line(port)
        self._due: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._ended = False

    def add(self, wait_s: float, request: Request) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + wait_s, next(self._order), request))
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self.join(30)

    def run(self) -> None:
        while (request := self._next()) is not None:
            self._line.ask(request)
        self._line.close()

    def _next(self) -> Request | None:
        with self._changed:
            while not self._ended:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_s)
        return None


class RealScene(Scene):
    def __init__(self, seed: str, chronicle: Chronicle, topics: dict[str, int], ghost: Ghost) -> None:
        super().__init__(Random(seed), chronicle, topics)
        self._ghost = ghost

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def haunt(self, request: Request) -> None:
        self._ghost.add(self.rng.choice((0.01, 0.1, 1.0)) * self.rng.random(), request)


class Actor(threading.Thread):
    """Whoever acts until told to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.failure = error

    def act(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()


class Player(Actor):
    """Drives a story over a real connection."""

    def __init__(self, teller: Storyteller, rng: Random, line: Line) -> None:
        super().__init__(teller.name)
        self._teller = teller
        self._rng = rng
        self._line = line

    def stop(self) -> None:
        self._teller.stopped = True

    def act(self) -> None:
        story = self._teller.story()
        response: Response | None = None
        try:
            while True:
                step = story.send(response)
                if isinstance(step, Pause):
                    time.sleep(self._rng.uniform(step.least_ms, step.most_ms) / 1000)
                    response = None
                else:
                    response = self._line.ask(step)
        except StopIteration:
            self._line.close()


class Poller:
    """Reads every partition from a position on, as whole batches."""

    def __init__(self, name: str, scene: Scene, *, committed: bool) -> None:
        self.name = name
        self.stopped = False
        self.positions = dict.fromkeys(scene.partitions, 0)
        self.found: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in scene.partitions}
        self.markers: dict[TopicPartition, set[int]] = {partition: set() for partition in scene.partitions}
        self.bounds: dict[TopicPartition, tell.PartitionFetched] = {}
        self._scene = scene
        self._committed = committed

    def story(self) -> Story[None]:
        while not self.stopped:
            for partition in self._scene.partitions:
                yield from self._poll(partition)
            yield Pause(0, 20)

    def _poll(self, partition: TopicPartition) -> Story[None]:
        chronicle, position = self._scene.chronicle, self.positions[partition]
        begun = chronicle.tick()
        part = ask.PartitionFetch(partition.partition, position, 1 << 20)
        isolation = READ_COMMITTED if self._committed else 0
        response = yield ask.FetchBatches(20, 1, 1 << 20, isolation, (ask.TopicFetch(partition.topic, (part,)),))
        if not isinstance(response, tell.FetchedBatches):
            return
        fetched = response.topics[0].partitions[0]
        if fetched.error:
            self._scene.suspect(fetched.error_message or "")
            return
        records, markers, upto = taken_apart(fetched, committed=self._committed)
        found = tuple((int(record.offset), record.value or b"") for record in records if record.offset >= position)
        bounds = (fetched.high_watermark, self._committed, fetched.last_stable_offset)
        chronicle.polls.append(Poll(begun, chronicle.tick(), self.name, partition, position, found, *bounds))
        self.found[partition].update(found)
        self.markers[partition].update(markers)
        self.positions[partition] = max(position, upto)
        self.bounds[partition] = fetched


class KafkaWriter(Actor):
    """A Kafka client's transactions over several partitions; a new client whenever the old one gives up."""

    def __init__(self, name: str, scene: Scene, port: int, topic: str) -> None:
        super().__init__(name)
        self._scene = scene
        self._rng = scene.rng
        self._settings = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "transactional.id": name,
            "transaction.timeout.ms": 8000,
            "message.timeout.ms": 4000,
            "reconnect.backoff.max.ms": 300,
            "linger.ms": 1,
            "log_level": 0,
        }
        self._topic = topic
        self._count = 0
        self._values = 0

    def act(self) -> None:
        while not self.stopping.is_set():
            producer = Producer(self._settings)
            self._live(producer)
            with suppress(KafkaException):  # one that was fenced says so again
                producer.purge()
                producer.flush(1)

    def _live(self, producer: Producer) -> None:
        try:
            producer.init_transactions(KAFKA_S)
            while not self.stopping.is_set():
                self._transaction(producer)
        except (KafkaException, BufferError):
            time.sleep(RETRY_S)

    def _transaction(self, producer: Producer) -> None:
        self._count += 1
        txn = self._scene.chronicle.txn(f"{self.name}-{self._count}", (-1, -1))
        producer.begin_transaction()
        for _ in range(self._rng.randint(1, 6)):
            self._send(producer, txn)
        left = producer.flush(5)
        if left or any(send.fate is not Fate.DONE for send in txn.writes) or self._rng.random() < 0.3:
            producer.abort_transaction(KAFKA_S)
            self._scene.chronicle.end(txn, Fate.REFUSED)
            return
        self._commit(producer, txn)

    def _commit(self, producer: Producer, txn: Txn) -> None:
        txn.to_commit = True
        deadline = time.monotonic() + 2 * KAFKA_S
        while True:
            try:
                producer.commit_transaction(KAFKA_S)
                self._scene.chronicle.end(txn, Fate.DONE)
                return
            except KafkaException as error:
                fault = error.args[0]
                if not fault.retriable() or time.monotonic() > deadline:
                    raise

    def _send(self, producer: Producer, txn: Txn) -> None:
        self._values += 1
        value = b"%s-%d" % (self.name.encode(), self._values)
        where = TopicPartition(self._topic, self._rng.randrange(self._scene.topics[self._topic]))
        send = self._scene.chronicle.send(value, *where, txn)
        send.connection = f"{self.name} {id(producer)}"

        def delivered(error: KafkaError | None, message: Message, send: Send = send) -> None:
            if error is None:
                send.offset = message.offset() or 0
                self._scene.chronicle.end(send, Fate.DONE)

        producer.produce(where.topic, value, partition=where.partition, on_delivery=delivered)


class KafkaReader(Actor):
    """A Kafka client that reads committed data from the start on."""

    def __init__(self, name: str, scene: Scene, port: int) -> None:
        super().__init__(name)
        self._scene = scene
        self._next = dict.fromkeys(scene.partitions, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 300,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.assign([KafkaPartition(*partition, 0) for partition in scene.partitions])

    def act(self) -> None:
        while not self.stopping.is_set():
            begun = self._scene.chronicle.tick()
            found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    place = TopicPartition(message.topic() or "", message.partition() or 0)
                    found.setdefault(place, []).append((message.offset() or 0, message.value() or b""))
            for partition, rows in found.items():
                self._note(begun, partition, tuple(rows))
        self._consumer.close()

    def _note(self, begun: int, partition: TopicPartition, rows: tuple[tuple[int, bytes], ...]) -> None:
        chronicle, position = self._scene.chronicle, self._next[partition]
        chronicle.polls.append(Poll(begun, chronicle.tick(), self.name, partition, position, rows, None, True))
        self._next[partition] = rows[-1][0] + 1


def told(anomalies: list[Anomaly]) -> str:
    return "\n".join([f"{len(anomalies)} anomalies", *map(str, anomalies[:10])])
