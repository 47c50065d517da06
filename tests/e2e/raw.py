"""The native protocol by hand: sockets and bytes, written from the protocol's tables and from nothing else.

Nothing here imports the code under test, so a mistake that its encoder and its decoder share is seen.
A request is its name and its fields in the order of the postcard table; both encodings take the same ones, and
replies come back as a name and fields in that order too, whichever encoding they came in.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

POSTCARD, PROTOBUF = 0, 1
FORMATS = (POSTCARD, PROTOBUF)

# Postcard

Kind = Any
"""A name such as "u32", or a tuple: ("opt", kind), ("list", kind), ("tuple", kinds...), ("map", key, value)."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def pack(kind: Kind, value: Any) -> bytes:
    match kind:
        case "bool" | "u8":
            return bytes([value])
        case "u16" | "u32" | "u64":
            return varint(value)
        case "i32" | "i64":
            return varint(zigzag(value))
        case "str":
            return varint(len(value.encode())) + value.encode()
        case "bytes":
            return varint(len(value)) + value
        case ("opt", inner):
            return b"\0" if value is None else b"\1" + pack(inner, value)
        case ("list", inner):
            return varint(len(value)) + b"".join(pack(inner, item) for item in value)
        case ("tuple", *inners):
            return b"".join(pack(inner, item) for inner, item in zip(inners, value, strict=True))
    raise AssertionError(kind)


class Cursor:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        assert count <= self.left, "the reply is too short"
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def unpack(self, kind: Kind) -> Any:
        match kind:
            case "bool":
                return {0: False, 1: True}[self.take(1)[0]]
            case "u8":
                return self.take(1)[0]
            case "u16" | "u32" | "u64":
                return self.varint()
            case "i32" | "i64":
                number = self.varint()
                return number >> 1 if number % 2 == 0 else -(number >> 1) - 1
            case "str":
                return self.take(self.varint()).decode()
            case "bytes":
                return self.take(self.varint())
            case ("opt", inner):
                return self.unpack(inner) if {0: False, 1: True}[self.take(1)[0]] else None
            case ("list", inner):
                return tuple(self.unpack(inner) for _ in range(self.varint()))
            case ("tuple", *inners):
                return tuple(self.unpack(inner) for inner in inners)
            case ("map", key, value):
                return {self.unpack(key): self.unpack(value) for _ in range(self.varint())}
        raise AssertionError(kind)


def opt(kind: Kind) -> Kind:
    return ("opt", kind)


def many(kind: Kind) -> Kind:
    return ("list", kind)


RECORD = ("tuple", opt("bytes"), "bytes")
REQUESTS: dict[str, tuple[int, list[Kind]]] = {
    "Publish": (4, ["str", opt("u32"), opt("bytes"), "bytes", opt("u64")]),
    "Consume": (5, ["str", "u32", "u64", "u32", opt("u8"), opt("u64")]),
    "CreateTopic": (6, ["str", opt("u32")]),
    "ListTopics": (7, []),
    "DeleteTopic": (8, ["str"]),
    "CommitOffset": (9, ["str", "str", "u32", "u64"]),
    "GetOffset": (10, ["str", "str", "u32"]),
    "GetMetadata": (11, ["str"]),
    "Ping": (13, []),
    "GetOffsetBounds": (14, ["str", "u32"]),
    "ListGroups": (15, []),
    "DescribeGroup": (16, ["str"]),
    "DeleteGroup": (17, ["str"]),
    "GetOffsetForTimestamp": (18, ["str", "u32", "i64"]),
    "DescribeQuotas": (27, [many(("tuple", "str", opt("str")))]),
    "AlterQuotas": (28, [many(("tuple", "str", opt("str"), "str", opt("u64")))]),
    "AlterTopicConfig": (29, ["str", many(("tuple", "str", opt("str")))]),
    "CreatePartitions": (30, ["str", "u32", many(many("str"))]),
    "DeleteRecords": (31, ["str", many(("tuple", "u32", "u64"))]),
    "DescribeTopicConfigs": (32, [many("str")]),
    "Handshake": (33, ["u32", "str"]),
    "PublishBatch": (38, ["str", opt("u32"), many(RECORD), opt("u64")]),
}
MESSAGE = ("tuple", "u64", "u32", opt("bytes"), "bytes", "i64", many(("tuple", "str", "bytes")))
CONFIG_VALUE = ("tuple", "str", "bool", "bool", "bool")
RESPONSES: dict[int, tuple[str, list[Kind]]] = {
    3: ("Published", ["u64", "u32"]),
    4: ("Messages", [many(MESSAGE)]),
    5: ("TopicCreated", ["str", "u32"]),
    6: ("Topics", [many("str")]),
    7: ("TopicDeleted", []),
    8: ("OffsetCommitted", []),
    9: ("Offset", [opt("u64")]),
    10: ("Metadata", ["str", "u32"]),
    12: ("Pong", []),
    13: ("OffsetBounds", ["u64", "u64"]),
    14: ("Groups", [many("str")]),
    15: ("GroupDescription", ["str", ("map", "str", ("map", "u32", "u64"))]),
    16: ("GroupDeleted", []),
    17: ("OffsetForTimestamp", [opt("u64")]),
    18: ("Error", ["str"]),
    19: ("Ok", []),
    28: ("QuotasDescribed", [many(("tuple", "str", opt("str"), ("map", "str", "u64")))]),
    29: ("QuotasAltered", ["u64"]),
    30: ("Throttled", ["u64", "str", "str"]),
    31: ("TopicConfigAltered", ["str", "u64"]),
    32: ("PartitionsCreated", ["str", "u32"]),
    33: ("RecordsDeleted", ["str", many(("tuple", "u32", "u64", opt("str")))]),
    34: ("TopicConfigsDescribed", [many(("tuple", "str", ("map", "str", CONFIG_VALUE)))]),
    35: ("HandshakeResult", ["u32", "bool", "str"]),
    40: ("PublishedBatch", ["u64", "u32", "u32"]),
}


def postcard(name: str, *fields: Any) -> bytes:
    number, kinds = REQUESTS[name]
    return varint(number) + b"".join(pack(kind, field) for kind, field in zip(kinds, fields, strict=True))


def read_postcard(payload: bytes) -> tuple[str, tuple[Any, ...]]:
    cursor = Cursor(payload)
    name, kinds = RESPONSES[cursor.varint()]
    fields = tuple(cursor.unpack(kind) for kind in kinds)
    assert cursor.left == 0, f"{cursor.left} bytes after {name}"
    return name, fields


# Protobuf: a message is its fields' encodings; what is None is left out, zero only where presence is tracked


def number_field(field: int, value: int | bool | None) -> bytes:
    return b"" if value is None else varint(field << 3) + varint(int(value) & (2**64 - 1))


def bytes_field(field: int, value: bytes | str | None) -> bytes:
    if value is None:
        return b""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def plain(field: int, value: int | bytes | str) -> bytes:
    """A field without presence: its default is not written."""
    if not value:
        return b""
    return number_field(field, value) if isinstance(value, int) else bytes_field(field, value)


def several(field: int, values: Iterable[bytes | str]) -> bytes:
    return b"".join(bytes_field(field, value) for value in values)


def _publish(topic: str, partition: int | None, key: bytes | None, value: bytes, epoch: int | None) -> bytes:
    record = plain(1, key or b"") + plain(2, value) + plain(5, key is not None)
    return plain(1, topic) + number_field(2, partition) + bytes_field(3, record) + number_field(4, epoch)


def _consume(topic: str, partition: int, offset: int, most: int, isolation: int | None, wait: int | None) -> bytes:
    head = plain(1, topic) + plain(2, partition) + plain(3, offset) + plain(4, most)
    return head + plain(6, isolation or 0) + number_field(7, wait)


def _entities(entities: Sequence[tuple[str, str | None]]) -> bytes:
    return several(1, (plain(1, kind) + bytes_field(2, name) for kind, name in entities))


def _alterations(rows: Sequence[tuple[str, str | None, str, int | None]]) -> bytes:
    made = (
        plain(1, kind) + bytes_field(2, name) + plain(3, key) + number_field(4, to) for kind, name, key, to in rows
    )
    return several(1, made)


PROTOBUF_REQUESTS: dict[str, tuple[int, Callable[..., bytes]]] = {
    "Publish": (10, _publish),
    "Consume": (11, _consume),
    "CreateTopic": (12, lambda name, partitions: plain(1, name) + plain(2, partitions or 0)),
    "DeleteTopic": (13, lambda name: plain(1, name)),
    "ListTopics": (14, lambda: b""),
    "GetMetadata": (15, lambda topic: bytes_field(1, topic)),
    "CommitOffset": (16, lambda group, t, p, offset: plain(1, group) + plain(2, t) + plain(3, p) + plain(4, offset)),
    "GetOffset": (17, lambda group, topic, partition: plain(1, group) + plain(2, topic) + plain(3, partition)),
    "Ping": (30, lambda: b""),
    "GetOffsetBounds": (32, lambda topic, partition: plain(1, topic) + plain(2, partition)),
    "ListGroups": (33, lambda: b""),
    "DescribeGroup": (34, lambda group: plain(1, group)),
    "DeleteGroup": (35, lambda group: plain(1, group)),
    "GetOffsetForTimestamp": (36, lambda topic, p, ms: plain(1, topic) + plain(2, p) + plain(3, ms)),
    "AlterTopicConfig": (
        60,
        lambda topic, configs: plain(1, topic) + several(2, (plain(1, k) + bytes_field(2, v) for k, v in configs)),
    ),
    "DescribeTopicConfigs": (61, lambda topics: several(1, topics)),
    "CreatePartitions": (62, lambda topic, count, _assignments: plain(1, topic) + plain(2, count)),
    "DeleteRecords": (
        63,
        lambda topic, offsets: plain(1, topic) + several(2, (plain(1, p) + plain(2, o) for p, o in offsets)),
    ),
    "DescribeQuotas": (80, _entities),
    "AlterQuotas": (81, _alterations),
    "Handshake": (90, lambda version, client_id: plain(1, version) + plain(2, client_id)),
}
PROTOBUF_HEADER = bytes_field(1, number_field(1, 2))


def protobuf(name: str, *fields: Any) -> bytes:
    tag, build = PROTOBUF_REQUESTS[name]
    return PROTOBUF_HEADER + bytes_field(tag, build(*fields))


class Message:
    """A protobuf message taken apart, without a schema."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[Any]] = {}
        cursor = Cursor(data)
        while cursor.left:
            field, wire = divmod(cursor.varint(), 8)
            assert wire in (0, 2), wire
            value = cursor.varint() if wire == 0 else cursor.take(cursor.varint())
            self.fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        return int(self.fields.get(field, [0])[-1])

    def signed(self, field: int) -> int:
        number = self.number(field)
        return number - 2**64 if number >= 2**63 else number

    def given(self, field: int) -> int | None:
        return self.number(field) if field in self.fields else None

    def data(self, field: int) -> bytes:
        return bytes(self.fields.get(field, [b""])[-1])

    def text(self, field: int) -> str:
        return self.data(field).decode()

    def given_text(self, field: int) -> str | None:
        return self.text(field) if field in self.fields else None

    def texts(self, field: int) -> tuple[str, ...]:
        return tuple(item.decode() for item in self.fields.get(field, []))

    def each(self, field: int) -> list[Message]:
        return [Message(item) for item in self.fields.get(field, [])]


def _messages(m: Message) -> tuple[Any, ...]:
    return (
        tuple(
            (
                row.number(1),
                row.number(2),
                row.data(4) if row.number(7) else None,
                row.data(5),
                row.signed(3),
                tuple((header.text(1), header.data(2)) for header in row.each(6)),
            )
            for row in m.each(1)
        ),
    )


def _group(m: Message) -> tuple[Any, ...]:
    return m.text(1), {row.text(1): {at.number(1): at.number(2) for at in row.each(2)} for row in m.each(2)}


def _quotas(m: Message) -> tuple[Any, ...]:
    rows = ((r.text(1), r.given_text(2), {item.text(1): item.number(2) for item in r.each(3)}) for r in m.each(1))
    return (tuple(rows),)


def _configs(m: Message) -> tuple[Any, ...]:
    def value(row: Message) -> tuple[str, bool, bool, bool]:
        return row.text(2), bool(row.number(3)), bool(row.number(4)), bool(row.number(5))

    return (tuple((row.text(1), {item.text(1): value(item) for item in row.each(2)}) for row in m.each(1)),)


def _deleted(m: Message) -> tuple[Any, ...]:
    return m.text(1), tuple((row.number(1), row.number(2), row.text(3) or None) for row in m.each(2))


def _metadata(m: Message) -> tuple[Any, ...]:
    topic = m.each(1)[0]
    parts = topic.each(2)
    assert [part.number(1) for part in parts] == list(range(len(parts)))
    assert all(part.given(2) == 0 for part in parts)
    return topic.text(1), len(parts)


PROTOBUF_RESPONSES: dict[int, tuple[str, Callable[[Message], tuple[Any, ...]]]] = {
    10: ("Published", lambda m: (m.number(1), m.number(2))),
    11: ("Messages", _messages),
    12: ("TopicCreated", lambda m: (m.text(1), m.number(2))),
    13: ("TopicDeleted", lambda _: ()),
    14: ("Topics", lambda m: (m.texts(1),)),
    15: ("Metadata", _metadata),
    16: ("OffsetCommitted", lambda _: ()),
    17: ("Offset", lambda m: (None if m.signed(1) == -1 else m.signed(1),)),
    30: ("Pong", lambda _: ()),
    32: ("OffsetBounds", lambda m: (m.number(1), m.number(2))),
    33: ("Groups", lambda m: (m.texts(1),)),
    34: ("GroupDescription", _group),
    35: ("GroupDeleted", lambda _: ()),
    36: ("OffsetForTimestamp", lambda m: (m.given(1),)),
    60: ("TopicConfigAltered", lambda m: (m.text(1), m.number(2))),
    61: ("TopicConfigsDescribed", _configs),
    62: ("PartitionsCreated", lambda m: (m.text(1), m.number(2))),
    63: ("RecordsDeleted", _deleted),
    80: ("QuotasDescribed", _quotas),
    81: ("QuotasAltered", lambda m: (m.number(1),)),
    82: ("Throttled", lambda m: (m.number(1), m.text(2), m.text(3))),
    90: ("HandshakeResult", lambda m: (m.number(1), bool(m.number(2)), m.text(3))),
    98: ("Ok", lambda _: ()),
    99: ("Error", lambda m: (m.text(2),)),
}


def read_protobuf(payload: bytes) -> tuple[str, tuple[Any, ...]]:
    whole = Message(payload)
    assert whole.each(1)[0].number(1) == 2, "the header's version"
    tags = [tag for tag in whole.fields if tag != 1]
    assert len(tags) == 1, tags
    name, read = PROTOBUF_RESPONSES[tags[0]]
    return name, read(whole.each(tags[0])[0])


# Frames


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def request(name: str, *fields: Any, cid: int = 0, form: int = POSTCARD) -> bytes:
    payload = postcard(name, *fields) if form == POSTCARD else protobuf(name, *fields)
    return frame(struct.pack(">BI", form, cid) + payload)


class Closed(Exception):
    """The other side has closed the connection."""


class Raw:
    """One connection. Replies are read in order, by whoever asks next."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._cid = 100

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = self.socket.recv(min(count, 1024 * 1024))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def body(self) -> bytes:
        return self.exactly(struct.unpack(">I", self.exactly(4))[0])

    def reply(self) -> tuple[int, int, str, tuple[Any, ...]]:
        """The next reply: its format, its correlation id, its name and fields."""
        body = self.body()
        form, cid = struct.unpack_from(">BI", body)
        name, fields = read_postcard(body[5:]) if form == POSTCARD else read_protobuf(body[5:])
        return form, cid, name, fields

    def call(self, name: str, *fields: Any, form: int = POSTCARD) -> tuple[str, tuple[Any, ...]]:
        """Send one request and wait for its reply, which must be in kind."""
        self._cid += 1
        self.send(request(name, *fields, cid=self._cid, form=form))
        answered_form, cid, answer, found = self.reply()
        assert (answered_form, cid) == (form, self._cid)
        return answer, found

    def error(self, name: str, *fields: Any, form: int = POSTCARD) -> str:
        """Send one request that must fail; the text."""
        answer, found = self.call(name, *fields, form=form)
        assert answer == "Error", (answer, found)
        return str(found[0])

    def is_closed(self) -> bool:
        """Whether the other side has closed, or does so while we wait; nothing else may come."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
