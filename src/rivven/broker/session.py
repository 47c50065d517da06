"""A client's connection as the broker knows it, and the replies it is owed.

Replies leave in the order of their requests. Each is made when its request arrives and fulfilled when the broker
knows the answer: at once, once a write is durable, or once a long poll has something.
Invariant: `owed` holds every reply that has not been taken, oldest first.
"""

from __future__ import annotations

from collections import deque


class Reply:
    """A place in the row of replies; `response` is None until it is fulfilled.

    What a response is depends on the dialect of its connection, which alone knows how to write it.
    """

    __slots__ = ("begun_us", "correlation_id", "form", "kind", "response", "session", "size_bytes")

    def __init__(self, session: Session, correlation_id: int, form: object, begun_us: int, size_bytes: int) -> None:
        self.session = session
        self.correlation_id = correlation_id
        self.form = form
        """How the request was written, for whoever writes the response in kind; nobody else looks at it."""
        self.begun_us = begun_us
        self.size_bytes = size_bytes
        """What the request holds in memory until it is answered."""
        self.kind = ""
        self.response: object | None = None

    def fulfil(self, response: object) -> None:
        assert self.response is None, "answered twice"
        assert response is not None
        self.response = response


class Session:
    __slots__ = ("address", "client_id", "connection", "is_local", "muted_until_us", "owed", "unsent_bytes", "user")

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.is_local = False
        """Whether the client is on this machine, and may look at files that it is told of."""
        self.client_id = ""
        self.user: str | None = None
        self.muted_until_us = 0
        """A client over its quota is not read from until then."""
        self.owed: deque[Reply] = deque()
        self.unsent_bytes = 0
        """About how much the fulfilled replies hold that have not left yet."""
        self.connection: object = None
        """Whatever the shell sends replies by."""

    def expect(self, correlation_id: int, form: object, begun_us: int = 0, size_bytes: int = 0) -> Reply:
        reply = Reply(self, correlation_id, form, begun_us, size_bytes)
        self.owed.append(reply)
        return reply

    def take_ready(self) -> list[Reply]:
        """The replies that can leave now: those before the first that is not fulfilled."""
        owed = self.owed
        ready: list[Reply] = []
        while owed and owed[0].response is not None:
            ready.append(owed.popleft())
        return ready
