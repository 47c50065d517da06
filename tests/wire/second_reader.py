"""A second reader of the common requests, written from the byte tables alone and sharing nothing with the package.

It is slow, takes one byte at a time, and knows no limits: what it reads, the other must read alike.
"""

from __future__ import annotations


class Bytes:
    """Bytes with a place."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def u(self) -> int:
        number, place = 0, 1
        while (byte := self.byte()) >= 128:
            number += (byte - 128) * place
            place *= 128
        return number + byte * place

    def i(self) -> int:
        number = self.u()
        return -(number + 1) // 2 if number % 2 else number // 2

    def raw(self) -> bytes:
        return bytes([self.byte() for _ in range(self.u())])

    def s(self) -> str:
        return self.raw().decode()

    def flag(self) -> bool:
        return {0: False, 1: True}[self.byte()]

    def maybe(self, read):
        return read() if self.flag() else None

    def many(self, *reads) -> list:
        return [tuple(read() for read in reads) for _ in range(self.u())]


def one(entries: list) -> list:
    return [entry for (entry,) in entries]


KNOWN = {
    4: ("Publish", lambda b: (b.s(), b.maybe(b.u), b.maybe(b.raw), b.raw(), b.maybe(b.u))),
    5: ("Consume", lambda b: (b.s(), b.u(), b.u(), b.u(), b.maybe(b.byte), b.maybe(b.u))),
    6: ("CreateTopic", lambda b: (b.s(), b.maybe(b.u))),
    9: ("CommitOffset", lambda b: (b.s(), b.s(), b.u(), b.u())),
    12: ("GetClusterMetadata", lambda b: (one(b.many(b.s)),)),
    13: ("Ping", lambda _: ()),
    18: ("GetOffsetForTimestamp", lambda b: (b.s(), b.u(), b.i())),
    20: (
        "IdempotentPublish",
        lambda b: (b.s(), b.maybe(b.u), b.maybe(b.raw), b.raw(), b.u(), b.u(), b.i(), b.maybe(b.u)),
    ),
    24: ("AddOffsetsToTxn", lambda b: (b.s(), b.u(), b.u(), b.s(), b.many(b.s, b.u, b.i))),
    34: ("JoinGroup", lambda b: (b.s(), b.s(), b.u(), b.u(), b.s(), one(b.many(b.s)))),
    35: (
        "SyncGroup",
        lambda b: (b.s(), b.u(), b.s(), b.many(b.s, lambda: b.many(b.s, lambda: one(b.many(b.u))))),
    ),
    36: ("Heartbeat", lambda b: (b.s(), b.u(), b.s())),
    38: (
        "PublishBatch",
        lambda b: (b.s(), b.maybe(b.u), b.many(lambda: b.maybe(b.raw), b.raw), b.maybe(b.u)),
    ),
    40: ("ProduceBatches", lambda b: (b.i(), b.u(), b.many(b.s, lambda: b.many(b.u, b.raw)), b.maybe(b.s))),
    41: (
        "FetchBatches",
        lambda b: (b.u(), b.u(), b.u(), b.byte(), b.many(b.s, lambda: b.many(b.u, b.u, b.u, b.i))),
    ),
    44: ("RegisterOwner", lambda b: (b.s(), b.flag())),
    45: ("BeginOwnedTransaction", lambda b: (b.s(), b.u(), b.u(), b.maybe(b.u), b.s(), b.u(), b.u())),
    46: ("Decide", lambda b: (b.s(), b.u(), b.u(), b.many(b.u, b.u))),
    47: ("ForgetOwner", lambda b: (b.s(), b.u())),
    48: (
        "FindBatches",
        lambda b: (b.u(), b.u(), b.u(), b.byte(), b.many(b.s, lambda: b.many(b.u, b.u, b.u, b.i))),
    ),
}


def request(data: bytes) -> tuple:
    """The name of a request and its fields, in plain tuples and lists."""
    b = Bytes(data)
    name, read = KNOWN[b.u()]
    return name, *read(b)
