"""One who makes and deletes topics while others wait for them, and one who talks nonsense."""

from __future__ import annotations

from collections.abc import Callable

from rivven.wire import Request, Response
from rivven.wire import requests as ask
from rivven.wire import responses as tell

from .chronicle import Anomaly
from .client import SimClient
from .stage import Asker, Stage


class TopicMaker(Asker):
    """Makes a topic, fills it, reads it, deletes it, and makes it again, while somebody waits for its records.

    It alone uses its topic, one request at a time. If it never hears what became of one it takes another name, since
    that request may still be on its way.
    """

    def __init__(self, name: str, stage: Stage, client: SimClient, watcher: SimClient) -> None:
        self._name = name
        self._stage = stage
        self._client = client
        self._watcher = watcher
        self._generation = 0
        self._expected: list[bytes] | None = None
        """What the topic holds; None while there is none."""
        self._count = 0
        self._watching = 0
        super().__init__()

    @property
    def topic(self) -> str:
        return f"{self._name}-{self._generation}"

    @property
    def settled(self) -> bool:
        return super().settled and self._watching == 0

    def _next(self) -> None:
        rng = self._stage.rng
        if self._stopped:
            self._asking = False
            return
        if self._watching < 2 and rng.random() < 0.3:
            self._watch()
        if self._expected is None:
            choices: list[Callable[[], None]] = [self._make, self._make, self._miss]
        else:
            choices = [self._fill, self._fill, self._read, self._read, self._delete]
        rng.choice(choices)()

    def _ask(self, request: Request, answered: Callable[[Response], None]) -> None:
        def heard(response: Response | None) -> None:
            if response is None:
                self._generation += 1
                self._expected = None
            else:
                answered(response)
            self._stage.after_ms(0, 150, self._next)

        self._client.ask(request, heard)

    def _wrong(self, text: str) -> None:
        self._stage.anomalies.append(Anomaly("topic", f"{self.topic}: {text}"))

    def _make(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.TopicCreated):
                self._expected = []
            elif not isinstance(response, tell.Error):
                self._wrong(f"a creation was answered by {response}")
            elif "exists" in response.message:
                self._wrong("it was deleted and exists")

        self._ask(ask.CreateTopic(self.topic, 1), answered)

    def _miss(self) -> None:
        def answered(response: Response) -> None:
            if not isinstance(response, tell.Error):
                self._wrong(f"it is not there, and yet {response}")

        self._ask(ask.GetMetadata(self.topic), answered)

    def _fill(self) -> None:
        self._count += 1
        value = b"%s %d" % (self.topic.encode(), self._count)

        def answered(response: Response) -> None:
            assert self._expected is not None
            if isinstance(response, tell.Published):
                if response.offset != len(self._expected):
                    self._wrong(f"offset {response.offset} instead of {len(self._expected)}")
                self._expected.append(value)
            elif isinstance(response, tell.Error) and "UNKNOWN_TOPIC" in response.message:
                self._wrong("it was made and is lost")

        self._ask(ask.Publish(self.topic, 0, None, value), answered)

    def _read(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.Messages):
                found = [message.value for message in response.messages]
                if found != self._expected:
                    self._wrong(f"it holds {found} instead of {self._expected}")
            else:
                self._wrong(f"a read was answered by {response}")

        self._ask(ask.Consume(self.topic, 0, 0, 10_000), answered)

    def _delete(self) -> None:
        def answered(response: Response) -> None:
            if isinstance(response, tell.TopicDeleted):
                self._expected = None

        self._ask(ask.DeleteTopic(self.topic), answered)

    def _watch(self) -> None:
        """Wait for records that may never come, of a topic that may go meanwhile."""
        self._watching += 1

        def heard(_: Response | None) -> None:
            self._watching -= 1

        far = 1_000_000
        request: Request = ask.Consume(self.topic, 0, len(self._expected or ()), 5, None, 2000)
        if self._stage.rng.random() < 0.5:
            parts = (ask.PartitionFetch(0, len(self._expected or ()), far),)
            request = ask.FetchBatches(2000, far, far, 0, (ask.TopicFetch(self.topic, parts),))
        self._watcher.ask(request, heard)


class Stranger:
    """Sends what is no request at all. It may be refused or cut off, and must not disturb anybody."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stopped = False

    def begin(self) -> None:
        if not self._stopped:
            socket = self._stage.network.connect(self._stage.address)
            socket.send([self._noise() for _ in range(self._stage.rng.randint(1, 3))])
            self._stage.after_ms(1, 500, socket.close)
            self._stage.after_ms(50, 1000, self.begin)

    def stop(self) -> None:
        self._stopped = True

    @property
    def settled(self) -> bool:
        return True

    def _noise(self) -> bytes:
        rng = self._stage.rng
        body = rng.randbytes(rng.choice((0, 1, 5, 30, 300)))
        length = rng.choice((len(body), len(body), rng.randint(0, 400), rng.getrandbits(32)))
        return length.to_bytes(4, "big") + rng.choice((b"", b"\0", b"\1")) + body
