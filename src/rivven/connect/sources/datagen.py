"""Records made up on the spot: orders, users, page views and more, as fast as Spark can take them.

Every value is a hash of (seed, column, row number), so any range of rows can be made again, in any process, and is
the same each time. The seed and the time of the first row are part of the position: that holds over restarts, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rivven.connect.sdk import ArrowSource, Position, Settings, setting

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]
    Array = pa.Array[Any]

BATCH_ROWS = 32_768
PART_ROWS_MIN = 50_000
"""Below this a second task costs more than it brings."""

Pattern = Literal["sequence", "random", "users", "orders", "pageviews", "events", "metrics", "key_value"]


class DatagenSettings(Settings):
    pattern: Pattern = setting("What the records are like.", default="random")
    events_per_second: int = setting("Records per second; 0 for as many as possible.", default=10, least=0)
    max_events: int = setting("Records after which it ends; 0 for no end.", default=0, least=0)
    stream_name: str = setting("The name of the stream in the envelope.", default="datagen", least=1)
    namespace: str | None = setting("What the stream belongs to, for the envelope.", default=None)
    include_sequence: bool = setting("Give each record its number, as `sequence`.", default=True)
    include_timestamp: bool = setting("Give each record a time, as `timestamp`.", default=True)
    custom_fields: dict[str, Any] = setting("Fields with a fixed value that every record has.", factory=dict)
    seed: int | None = setting(
        "The same seed makes the same records; without one each new run makes others.",
        default=None,
        least=0,
        most=2**64 - 1,
    )
    cdc_mode: bool = setting("Make inserts, updates and deletes of rows instead of records.", default=False)
    parallelism: int = setting("The most tasks that work at once.", default=4, least=1, most=1024)
    batch_size: int = setting(
        "Records in one step.", default=100, least=1, ignored="a micro-batch has what its trigger and rate allow"
    )


class Rows(NamedTuple):
    """A range of rows to be made."""

    first: int
    end: int
    seed: int
    since_us: int


class Datagen(ArrowSource[DatagenSettings]):
    name = "datagen"
    aliases = ("generate", "faker", "mock-data")
    title = "Data generator"
    summary = "Makes up records: orders, users, page views, events, metrics, or plain numbers."
    docs = """
    For first steps, demos and load tests. The same seed makes the same records, whatever the number of tasks, and
    after a restart it goes on where it stopped. With `events_per_second: 0` it makes about a million records per
    second and core.

    With `cdc_mode` six of ten records are inserts, three are updates and one is a delete of an earlier row; the
    envelope's `event_type` says which.
    """
    example = """
    sources:
      orders:
        connector: datagen
        topic: orders
        config:
          pattern: orders
          events_per_second: 1000
          max_events: 100000
          seed: 7
    """
    extra = "spark"
    modules = ("pyarrow", "numpy")
    delivery = "exactly_once"

    @property
    def bounded(self) -> bool:
        return self.settings.max_events > 0

    @property
    def stream(self) -> str:
        return self.settings.stream_name

    @property
    def namespace(self) -> str | None:
        return self.settings.namespace

    def schema(self) -> pa.Schema:
        return self._make(Rows(0, 0, 0, 0)).schema

    def rate(self) -> float:
        return float(self.settings.events_per_second)

    def start_position(self) -> Position:
        seed = self.settings.seed if self.settings.seed is not None else SystemRandom().getrandbits(63)
        return {"row": 0, "seed": str(seed), "since_us": time.time_ns() // 1000}

    def newest_position(self) -> Position | None:
        return {"row": self.settings.max_events} if self.bounded else None

    def advance(self, start: Position, newest: Position | None, rows: int) -> Position:
        end = start["row"] + rows
        return {**start, "row": end if newest is None else max(start["row"], min(end, newest["row"]))}

    def rows_between(self, start: Position, end: Position) -> int:
        return int(end["row"] - start["row"])

    def plan(self, start: Position, end: Position) -> Sequence[Rows]:
        first, last = start["row"], end["row"]
        parts = max(1, min(self.settings.parallelism, (last - first) // PART_ROWS_MIN))
        edges = [first + (last - first) * place // parts for place in range(parts + 1)]
        seed, since_us = int(end["seed"]), end["since_us"]
        return [Rows(a, b, seed, since_us) for a, b in pairwise(edges) if a < b]

    def read(self, part: Rows) -> Iterator[pa.RecordBatch]:
        for first in range(part.first, part.end, BATCH_ROWS):
            yield self._make(part._replace(first=first, end=min(first + BATCH_ROWS, part.end)))

    def _make(self, rows: Rows) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        index = np.arange(rows.first, rows.end, dtype=np.int64)
        draw = Draw(rows.seed, index)
        columns: dict[str, Any] = {}
        kinds = draw.pick(CHANGE, CHANGES) if self.settings.cdc_mode else None
        identity = draw.identities() if self.settings.cdc_mode else index
        per_row_us = 1_000_000 / self.settings.events_per_second if self.settings.events_per_second else 1.0
        times = pa.array(rows.since_us + (index * per_row_us).astype(np.int64), pa.timestamp("us", tz="UTC"))
        columns |= PATTERNS[self.settings.pattern](draw, identity)
        if self.settings.include_sequence:
            columns["sequence"] = pa.array(index)
        if self.settings.include_timestamp:
            columns["timestamp"] = times
        for name, value in self.settings.custom_fields.items():
            columns[name] = _constant(value, len(index))
        if kinds is not None:
            columns["__event_type"] = kinds
        columns["__timestamp"] = times
        return pa.RecordBatch.from_pydict(columns)


def _constant(value: Any, count: int) -> Array:
    import msgspec
    import pyarrow as pa

    if value is not None and not isinstance(value, bool | int | float | str):
        value = msgspec.json.encode(value).decode()
    one: Any = pa.scalar(value, pa.string()) if value is None else pa.scalar(value)
    made: Array = pa.repeat(one, count)
    return made


class Draw:
    """Columns for a range of rows. `lane` tells the columns of one row apart."""

    def __init__(self, seed: int, index: Numbers) -> None:
        self._seed = seed
        self._index = index

    def bits(self, lane: int) -> Numbers:
        """64 random bits per row: splitmix64 of the row number, started at a place of its own for seed and lane."""
        import numpy as np

        begin = _mix(np.array([self._seed % 2**64], np.uint64) + np.uint64(lane * 0x632BE59BD9B4E019 % 2**64))
        return _mix(begin + self._index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))

    def whole(self, lane: int, first: int, end: int) -> Array:
        """Whole numbers from `first` to before `end`."""
        import numpy as np
        import pyarrow as pa

        return pa.array((self.bits(lane) % np.uint64(end - first)).astype(np.int64) + first)

    def decimal(self, lane: int, most: float, digits: int = 2) -> Array:
        """Numbers from 0 to `most`, rounded."""
        import numpy as np
        import pyarrow as pa

        share = (self.bits(lane) >> np.uint64(11)).astype(np.float64) / 2**53
        return pa.array(np.round(share * most, digits))

    def pick(self, lane: int, choices: Sequence[str]) -> Array:
        import numpy as np
        import pyarrow as pa

        return pa.array(choices).take((self.bits(lane) % np.uint64(len(choices))).astype(np.int64))

    def flag(self, lane: int, percent: int) -> Array:
        import numpy as np
        import pyarrow as pa

        return pa.array(self.bits(lane) % np.uint64(100) < percent)

    def text(self, *parts: Any) -> Array:
        """Texts put together from parts that are columns or the same for all rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts: list[Any] = [
            pa.scalar(part) if isinstance(part, str) else pc.cast(part, pa.string()) for part in parts
        ]
        joined: Array = pc.binary_join_element_wise(*texts, pa.scalar(""))
        return joined

    def hexadecimal(self, lane: int) -> Array:
        """Texts of 16 hexadecimal digits."""
        import numpy as np
        import pyarrow as pa

        data = np.ascontiguousarray(self.bits(lane).astype(">u8")).view(np.uint8)
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)
        text = np.stack([digits[data >> 4], digits[data & 15]], axis=1).reshape(-1)
        ends = np.arange(0, len(text) + 1, 16, dtype=np.int32)
        return pa.StringArray.from_buffers(
            len(self._index), pa.py_buffer(ends.tobytes()), pa.py_buffer(text.tobytes())
        )

    def identities(self) -> Numbers:
        """The row that a change is about: a new one for an insert, else one that came before."""
        import numpy as np

        earlier = (self.bits(CHANGE + 1) % (self._index.astype(np.uint64) + np.uint64(1))).astype(np.int64)
        inserted = self.bits(CHANGE) % np.uint64(len(CHANGES)) < CHANGES.count("insert")
        chosen: Numbers = np.where(inserted, self._index, earlier)
        return chosen


def _mix(value: Numbers) -> Numbers:
    import numpy as np

    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Numbers = value ^ (value >> np.uint64(31))
    return mixed


CHANGE = 90
CHANGES = ("insert",) * 6 + ("update",) * 3 + ("delete",)
COUNTRIES = ("DE", "FR", "US", "GB", "JP", "BR", "IN", "SE", "PL", "ZA")
CITIES = ("Berlin", "Lyon", "Austin", "Leeds", "Osaka", "Recife", "Pune", "Malmö", "Gdańsk", "Durban")
FIRST_NAMES = ("Ada", "Bela", "Chen", "Dana", "Emil", "Fatou", "Gita", "Hugo", "Ines", "Jonas", "Kofi", "Lena")
LAST_NAMES = ("Adler", "Brandt", "Costa", "Diaz", "Eriksen", "Fischer", "Gupta", "Hara", "Ito", "Jansen", "Kaya")
PRODUCTS = ("lamp", "chair", "desk", "shelf", "kettle", "carpet", "clock", "vase", "mirror", "stool")
PAGES = ("/", "/shop", "/cart", "/checkout", "/help", "/account", "/blog", "/search")

Columns = dict[str, Any]


def _sequence(draw: Draw, identity: Numbers) -> Columns:  # noqa: ARG001
    import pyarrow as pa

    return {"n": pa.array(identity)}


def _random(draw: Draw, identity: Numbers) -> Columns:
    import pyarrow as pa

    return {
        "id": pa.array(identity),
        "value": draw.decimal(1, 1000.0, 4),
        "label": draw.pick(2, ("red", "green", "blue", "yellow")),
        "flag": draw.flag(3, 50),
    }


def _users(draw: Draw, identity: Numbers) -> Columns:
    import pyarrow as pa

    first, last = draw.pick(1, FIRST_NAMES), draw.pick(2, LAST_NAMES)
    number = pa.array(identity)
    return {
        "user_id": number,
        "name": draw.text(first, " ", last),
        "email": draw.text(first, ".", last, number, "@example.com"),
        "phone": draw.text("+49 30 ", draw.whole(3, 1_000_000, 10_000_000)),
        "age": draw.whole(4, 18, 90),
        "country": draw.pick(5, COUNTRIES),
        "city": draw.pick(5, CITIES),
        "active": draw.flag(6, 80),
    }


def _orders(draw: Draw, identity: Numbers) -> Columns:
    import pyarrow as pa
    import pyarrow.compute as pc

    quantity, price = draw.whole(3, 1, 10), pc.add(draw.decimal(4, 490.0), 9.99)
    customer = draw.whole(1, 1, 10_000)
    return {
        "order_id": pa.array(identity),
        "customer_id": customer,
        "email": draw.text("customer", customer, "@example.com"),
        "product": draw.pick(2, PRODUCTS),
        "quantity": quantity,
        "unit_price": pc.round(price, 2),
        "amount": pc.round(pc.multiply(pc.cast(quantity, pa.float64()), price), 2),
        "currency": draw.pick(5, ("EUR", "EUR", "USD", "GBP")),
        "country": draw.pick(6, COUNTRIES),
        "status": draw.pick(7, ("created", "paid", "paid", "shipped", "delivered", "returned")),
    }


def _pageviews(draw: Draw, identity: Numbers) -> Columns:
    import pyarrow as pa

    return {
        "view_id": pa.array(identity),
        "user_id": draw.whole(1, 1, 100_000),
        "page": draw.pick(2, PAGES),
        "referrer": draw.pick(3, ("search", "mail", "ad", "direct", "direct")),
        "browser": draw.pick(4, ("firefox", "chromium", "safari", "edge")),
        "duration_ms": draw.whole(5, 100, 60_000),
        "status": draw.whole(6, 200, 201),
    }


def _events(draw: Draw, identity: Numbers) -> Columns:  # noqa: ARG001
    return {
        "event_id": draw.hexadecimal(1),
        "event_name": draw.pick(2, ("login", "logout", "view", "click", "purchase", "share")),
        "user_id": draw.whole(3, 1, 100_000),
        "session_id": draw.hexadecimal(4),
        "platform": draw.pick(5, ("web", "ios", "android")),
        "value": draw.decimal(6, 100.0),
    }


def _metrics(draw: Draw, identity: Numbers) -> Columns:  # noqa: ARG001
    return {
        "metric": draw.pick(1, ("cpu_percent", "memory_percent", "disk_percent", "load_percent")),
        "host": draw.text("host-", draw.whole(2, 1, 100)),
        "region": draw.pick(3, ("north", "south", "east", "west")),
        "value": draw.decimal(4, 100.0, 3),
    }


def _key_value(draw: Draw, identity: Numbers) -> Columns:
    import pyarrow as pa

    return {"key": draw.text("key-", pa.array(identity % 10_000)), "value": draw.hexadecimal(1)}


PATTERNS: dict[str, Callable[[Draw, Numbers], Columns]] = {
    "sequence": _sequence,
    "random": _random,
    "users": _users,
    "orders": _orders,
    "pageviews": _pageviews,
    "events": _events,
    "metrics": _metrics,
    "key_value": _key_value,
}
