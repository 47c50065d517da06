"""Records from a web service that is asked again and again.

Two ways. A snapshot is all that the service has, taken anew whenever it has changed. An incremental read goes on
where the last one ended, and rests on positions that the service itself gives: the cursor, link, page or offset of a
page, and how many records of that page were taken. Fetching is done where positions are found, since nobody else
knows how much is there, and the records travel to the tasks inside the plan; after a crash a task fetches the range
again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from rivven.connect.caller import Auth, Caller, Refused, Tls, Tries, bare, web_address
from rivven.connect.decode import arrow_schema, typed
from rivven.connect.sdk import ArrowSource, Delivery, Finding, Launch, Position, Settings, Stream, setting
from rivven.errors import RivvenError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STEP_BYTES = 8 << 20
"""No further page is fetched for a micro-batch that has this much."""
SNAPSHOT_BYTES_MAX = 256 << 20
BATCH_ROWS = 10_000
LINK = re.compile(r"<([^>]*)>([^<]*)")

At = str | int | None
"""Where a page is: a cursor, a link, a page number, an offset; None for the first."""


class BadAnswer(RivvenError, code=213):
    """An answer that is not what the settings say."""

    message = "{url}: {text}"


# Settings


class CursorPages(Settings):
    union_tag = "cursor"
    param: str = setting("The parameter that has the cursor.", example="after", least=1)
    path: str | None = setting(
        "Where the answer has the cursor of the next page.", default=None, example="/meta/next"
    )
    field: str | None = setting(
        "Instead of `path`: the field of the last record that is the cursor; unique, and growing.",
        default=None,
        example="id",
    )
    start: int | str | None = setting("The first cursor; without it the first call has none.", default=None)
    place: Literal["query", "body"] = setting("Whether it goes into the query or the body.", default="query")

    def problems(self) -> Iterable[tuple[str, str]]:
        if (self.path is None) == (self.field is None):
            yield "path", "give either path, where the answer has the next cursor, or field, the one of the record"


class LinkPages(Settings):
    union_tag = "link"
    path: str | None = setting(
        "Where the answer has the address of the next page; without it, it is in the header `Link` with rel=next.",
        default=None,
        example="/links/next",
    )


class NumberedPages(Settings):
    union_tag = "page"
    param: str = setting("The parameter that has the number of the page.", default="page", least=1)
    first: int = setting("The number of the first page.", default=1, least=0)


class OffsetPages(Settings):
    union_tag = "offset"
    param: str = setting("The parameter that says how many records to skip.", default="offset", least=1)


Pages = CursorPages | LinkPages | NumberedPages | OffsetPages


class HttpPollSettings(Settings):
    url: str = setting("The address that is asked.", example="http://localhost:8000/orders", check=web_address)
    method: Literal["GET", "POST"] = setting("How it is asked.", default="GET")
    params: dict[str, str] = setting("What stands after the question mark, such as the size of a page.", factory=dict)
    headers: dict[str, str] = setting("Further headers; for keys and passwords there is auth.", factory=dict)
    body: Any = setting("What is sent with POST, as JSON.", default=None)
    auth: Auth | None = setting("Who we are: bearer, basic or api_key.", default=None)
    tls: Tls = setting("Whom we trust.", factory=Tls)
    answer: Literal["json", "jsonl"] = setting(
        "`json` is one document with records in it, `jsonl` has a record in each line.", default="json"
    )
    records_path: str = setting(
        "Where in the document the records are: /data/items or data.items; empty if it is an array, or one record.",
        default="",
        also=("path",),
    )
    mode: Literal["snapshot", "incremental"] = setting(
        "`snapshot` takes all that is there whenever it changes; `incremental` goes on where the last call ended.",
        default="snapshot",
    )
    pagination: Pages | None = setting("How the next page is asked for: cursor, link, page or offset.", default=None)
    skip_unchanged: bool = setting("Leave out a snapshot that is the same as the one before.", default=True)
    format: Literal["json", "text"] = setting(
        "`json` gives the fields of the records as columns, `text` each record as it came, as `value`.",
        default="json",
    )
    schema: str | None = setting(
        "The columns as a Spark DDL; without it they are found from the first page and kept in the state directory.",
        default=None,
        example="id BIGINT, name STRING",
    )
    poll_interval_ms: int = setting("The pause after a call that found nothing more.", default=5000, least=1)
    timeout_secs: float = setting("How long one call may take.", default=30, least=0.01)
    max_retries: int = setting("Further tries of a call that failed.", default=3, least=0)
    retry_backoff_ms: int = setting("The pause before the second try; it doubles each time.", default=1000, least=1)
    max_response_bytes: int = setting("The most that one answer may have.", default=16 << 20, least=1024)
    stream_name: str | None = setting(
        "The name of the stream in the envelope; without it the last part of the path.", default=None
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.mode == "incremental" and self.pagination is None:
            yield "pagination", "incremental needs one: it is what remembers how far it was read"
        if self.answer == "jsonl" and self.records_path:
            yield "records_path", "has no meaning for jsonl, where each line is a record"
        if self.answer == "jsonl" and isinstance(self.pagination, CursorPages | LinkPages) and self.pagination.path:
            yield (
                "pagination",
                "a path is looked for in a JSON document, and jsonl has none; use a field or the header",
            )
        if self.body is not None and self.method == "GET":
            yield "body", "is sent with method: POST alone"
        if isinstance(self.pagination, CursorPages) and self.pagination.place == "body":
            if self.method == "GET":
                yield "pagination", "place: body needs method: POST"
            elif not isinstance(self.body, dict | None):
                yield "body", "must be a mapping, for the cursor goes into it"


# Pages


class Page(NamedTuple):
    """The records of one answer."""

    records: list[bytes]
    next: At
    """Where the page after it is; None if this is the last for now."""
    marks: list[At] | None
    """For pagination by record, where one would go on after each of them."""


class Fetched(NamedTuple):
    """Records that travel inside a plan."""

    records: list[bytes]


class Missing(NamedTuple):
    """A range that the task has to fetch."""

    start: Position
    end: Position


@dataclass
class Ahead:
    """What was fetched and is not yet behind us."""

    start: Position
    records: list[bytes]
    marks: list[Position]
    """The position after each record."""
    complete: bool
    """Whether nothing more was there at `seen_s`."""
    seen_s: float
    end: Position

    def cut(self, rows: int, newest: Position | None) -> Position:
        """The position after at most so many records, not after `newest` where that is one of these."""
        if newest in self.marks:
            rows = min(rows, self.marks.index(newest) + 1)
        if rows >= len(self.marks):
            return self.end
        return self.marks[rows - 1] if rows > 0 else self.start

    def between(self, start: Position, end: Position) -> list[bytes] | None:
        """The records of a range, if all of it is here."""
        first = 0 if start == self.start else self._after(start)
        last = self._after(end)
        return None if first is None or last is None or last < first else self.records[first:last]

    def _after(self, position: Position) -> int | None:
        if position == self.end:
            return len(self.records)
        return self.marks.index(position) + 1 if position in self.marks else None


class HttpPoll(ArrowSource[HttpPollSettings]):
    name = "http"
    aliases = ("http-source", "http-poll", "rest")
    title = "HTTP poll"
    summary = "Asks a web service for records, again and again, page by page."
    docs = """
    With `mode: snapshot` every poll takes all pages, and gives the records again whenever any of them has changed.
    Nobody can ask a service for what it had before, so after a crash the records may be others: at least once.

    With `mode: incremental` a poll goes on where the last one ended. It is exactly once for a service whose pages are
    append-only: a record stays on its page, and new ones come after it. The position is

    - `cursor` with `field`: that field of the last record, which must be unique and grow;
    - `cursor` with `path`, `link` and `page`: the page and the number of records taken from it, so the last page is
      asked for again until it leads to another;
    - `offset`: the number of records.

    If the service no longer has what a position speaks of, the pipeline stops and says so.

    Calls that time out, break off, or are answered by 408, 425, 429 or 5xx are tried again with growing pauses; a
    `Retry-After` is kept to. Links to other hosts and redirects are not followed, as they would take the credentials
    along.
    """
    example = """
    sources:
      orders:
        connector: http
        topic: orders
        key: [id]
        config:
          url: https://shop.example/api/orders
          params: {limit: "500"}
          auth: {type: bearer, token: "${SHOP_TOKEN}"}
          records_path: /data
          mode: incremental
          pagination: {type: cursor, param: after_id, field: id}
          poll_interval_ms: 10000
    """
    extra = "http"
    modules = ("httpx2", "pyarrow")
    delivery: Delivery = "at_least_once"
    rows_per_batch = 100_000

    def __init__(self, settings: HttpPollSettings) -> None:
        super().__init__(settings)
        if settings.mode == "incremental":
            self.delivery = "exactly_once"
        self._caller: Caller | None = None
        self._ahead: Ahead | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    @property
    def stream(self) -> str:
        return self.settings.stream_name or urlsplit(self.settings.url).path.rstrip("/").rpartition("/")[2]

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def check(self) -> list[Finding]:
        found = self.settings.tls.findings("tls")
        if any(each.level == "error" for each in found):
            return found
        try:
            page = self._fetch(self._first())
        except Refused as error:
            fix = "look at auth" if error.facts["status"] in (401, 403) else "look at the address and the parameters"
            return [*found, Finding(str(error), field="url", fix=fix)]
        except RivvenError as error:
            return [*found, Finding(str(error), field="url")]
        finally:
            self.close()
        if not page.records:
            found.append(Finding("the first page has no record", "note", "records_path"))
        return found

    def discover(self) -> list[Stream]:
        try:
            return [Stream(self.stream or self.name, arrow_schema(self._sample()))]
        finally:
            self.close()

    def _sample(self) -> list[bytes]:
        return self._fetch(self._first()).records

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("value", pa.string())])

    def frame(self, spark: SparkSession, launch: Launch) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        frame = super().frame(spark, launch)
        if self.settings.format == "text":
            return frame
        try:
            return typed(
                frame, self.settings.schema, self._sample, launch, F.lit(f"a record of {bare(self.settings.url)}")
            )
        finally:
            self.close()

    # Positions

    def _first(self) -> At:
        match self.settings.pagination:
            case CursorPages(start=start):
                return start
            case NumberedPages(first=first):
                return first
            case OffsetPages():
                return 0
            case _:
                return None

    def start_position(self) -> Position:
        if self.settings.mode == "snapshot":
            return {"poll": 0, "digest": ""}
        return {"at": self._first(), "rows": 0}

    def newest_position(self) -> Position | None:
        """Not a place, which only fetching would tell, but a time: a run ends when nothing more is there after it."""
        return {"until": datetime.now(UTC).isoformat()}

    def advance(self, start: Position, newest: Position | None, rows: int) -> Position:
        now_s = time.time()
        ahead = self._ahead
        rest = ahead.between(start, ahead.end) if ahead is not None else None
        if ahead is not None and rest:
            kept = len(ahead.marks) - len(rest)
            self._ahead = Ahead(start, rest, ahead.marks[kept:], ahead.complete, ahead.seen_s, ahead.end)
            return self._ahead.cut(rows, newest)
        if ahead is not None and ahead.complete and start in (ahead.end, ahead.start):
            since_s = _time_s(newest)
            if now_s < ahead.seen_s + self.settings.poll_interval_ms / 1000 or since_s <= ahead.seen_s:
                return start
        try:
            self._ahead = self._look(start, now_s, rows)
        finally:
            self.close()
        return self._ahead.cut(rows, newest)

    def rows_between(self, start: Position, end: Position) -> int | None:
        found = self._ahead.between(start, end) if self._ahead is not None else None
        return None if found is None else len(found)

    def _look(self, start: Position, now_s: float, rows: int) -> Ahead:
        """What is there after a position, up to some amount."""
        if self.settings.mode == "snapshot":
            records = self._snapshot()
            digest = sha256(b"\n".join(records)).hexdigest()[:32]
            same = digest == start["digest"] and self.settings.skip_unchanged
            end = start if same or not records else {"poll": start["poll"] + 1, "digest": digest}
            taken = [] if end == start else records
            return Ahead(start, taken, [end] * len(taken), True, now_s, end)
        found: list[bytes] = []
        marks: list[Position] = []
        at, skip, size = start["at"], start["rows"], 0
        while True:
            page = self._fetch(at)
            fresh = page.records[skip:]
            found += fresh
            size += sum(map(len, fresh))
            if page.marks is not None:
                marks += [{"at": mark, "rows": 0} for mark in page.marks[skip:]]
            else:
                marks += [{"at": at, "rows": skip + number + 1} for number in range(len(fresh))]
            if page.next is None or page.next == at:
                last = {"at": at, "rows": max(skip, len(page.records))}
                end = last if page.marks is None else marks[-1] if marks else start
                return Ahead(start, found, marks, True, now_s, end)
            at, skip = page.next, 0
            if len(found) >= rows or size >= STEP_BYTES:
                return Ahead(start, found, marks, False, now_s, {"at": at, "rows": 0})

    def plan(self, start: Position, end: Position) -> Sequence[Fetched | Missing]:
        if start == end:
            return []
        found = self._ahead.between(start, end) if self._ahead is not None else None
        if found is None:
            return [Missing(start, end)]
        return [Fetched(found)] if found else []

    def read(self, part: Fetched | Missing) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            found = part.records if isinstance(part, Fetched) else list(self._again(part.start, part.end))
        finally:
            self.close()
        for first in range(0, len(found), BATCH_ROWS):
            texts = [record.decode() for record in found[first : first + BATCH_ROWS]]
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=self.schema())

    def _again(self, start: Position, end: Position) -> Iterator[bytes]:
        """The records of a range that was fetched before, by somebody who is gone."""
        if self.settings.mode == "snapshot":
            yield from self._snapshot()
            return
        at, skip = start["at"], start["rows"]
        while at != end["at"] or end["rows"] > skip:
            page = self._fetch(at)
            if page.marks is not None and end["at"] in page.marks:
                yield from page.records[: page.marks.index(end["at"]) + 1]
                return
            if at == end["at"]:
                if len(page.records) < end["rows"]:
                    break
                yield from page.records[skip : end["rows"]]
                return
            yield from page.records[skip:]
            if page.next is None or page.next == at:
                break
            at, skip = page.next, 0
        else:
            return
        text = (
            f"it no longer has the records up to {end['at']!r}, which it had; begin anew with another state directory"
        )
        raise BadAnswer(url=bare(self.settings.url), text=text)

    def _snapshot(self) -> list[bytes]:
        at, found, size = self._first(), list[bytes](), 0
        while True:
            page = self._fetch(at)
            found += page.records
            size += sum(map(len, page.records))
            if page.next is None or page.next == at:
                return found
            if size > SNAPSHOT_BYTES_MAX:
                text = f"a snapshot has more than {SNAPSHOT_BYTES_MAX:,} bytes; use mode: incremental"
                raise BadAnswer(url=bare(self.settings.url), text=text)
            at = page.next

    # Calls

    def _fetch(self, at: At) -> Page:
        """One page. Numbered pages say nothing of a next one, so that is looked for, and this one looked at again."""
        pages = self.settings.pagination
        page = self._page(at)
        if not isinstance(pages, NumberedPages):
            return page
        assert isinstance(at, int), "numbered pages have a number"
        if self.settings.mode == "snapshot":
            return page._replace(next=at + 1 if page.records else None)
        if page.records and self._page(at + 1).records:
            return self._page(at)._replace(next=at + 1)
        return page

    def _page(self, at: At) -> Page:
        settings, pages = self.settings, self.settings.pagination
        url, params, body = settings.url, dict[str, Any](settings.params), settings.body
        if isinstance(pages, LinkPages) and at is not None:
            url, params = str(at), {}
        elif isinstance(pages, CursorPages) and at is not None and pages.place == "body":
            body = {**(body or {}), pages.param: at}
        elif isinstance(pages, CursorPages | NumberedPages | OffsetPages) and at is not None:
            params[pages.param] = at
        content = msgspec.json.encode(body) if settings.method == "POST" and body is not None else None
        try:
            answer = self._calling().call(settings.method, url, params=params, content=content)
        except Refused as error:
            if isinstance(pages, NumberedPages) and at != pages.first and error.facts["status"] == 404:
                return Page([], None, None)  # how some say that this page is not there
            raise
        document = b"" if settings.answer == "jsonl" else answer.body
        records = self._records(answer.body)
        match pages:
            case CursorPages(field=str(field)):
                marks = [self._cursor(record, field) for record in records]
                if at in marks:  # this service gives the record of the cursor, too
                    seen = marks.index(at) + 1
                    records, marks = records[seen:], marks[seen:]
                return Page(records, marks[-1] if marks else None, marks)
            case CursorPages(path=str(path)):
                following = _value_at(document, path)
                return Page(
                    records, following if isinstance(following, str | int) and following != "" else None, None
                )
            case LinkPages(path=None):
                return Page(records, self._link(next_link(answer.headers.get("link", "")), url), None)
            case LinkPages(path=str(path)):
                return Page(records, self._link(_value_at(document, path), url), None)
            case OffsetPages():
                assert isinstance(at, int), "an offset is a number"
                last = at + len(records)
                return Page(records, last if records else None, list(range(at + 1, last + 1)))
            case _:
                return Page(records, None, None)

    def _calling(self) -> Caller:
        if self._caller is None:
            settings = self.settings
            own = {"Accept": "application/json" if settings.answer == "json" else "*/*"}
            if settings.method == "POST":
                own["Content-Type"] = "application/json"
            self._caller = Caller(
                timeout_s=settings.timeout_secs,
                tries=Tries(settings.max_retries, settings.retry_backoff_ms),
                auth=settings.auth,
                headers=own | settings.headers,
                tls=settings.tls,
                bytes_max=settings.max_response_bytes,
                bytes_setting="max_response_bytes",
            )
        return self._caller

    def _records(self, body: bytes) -> list[bytes]:
        if self.settings.answer == "jsonl":
            return [line for line in body.split(b"\n") if line.strip()]
        raw = _raw_at(body, self.settings.records_path) if body.strip() else b"null"
        if raw is None:
            text = f"the answer is no JSON with something at {self.settings.records_path!r}; look at records_path"
            raise BadAnswer(url=bare(self.settings.url), text=text)
        try:
            if raw.lstrip()[:1] == b"[":
                return [bytes(each) for each in msgspec.json.decode(raw, type=list[msgspec.Raw])]
            return [] if msgspec.json.decode(raw) is None else [raw]
        except msgspec.DecodeError as error:
            raise BadAnswer(url=bare(self.settings.url), text=f"the answer is no JSON: {error}") from None

    def _cursor(self, record: bytes, field: str) -> At:
        found = _value_at(record, field)
        if isinstance(found, bool) or not isinstance(found, str | int):
            text = f"a record has no text or whole number at {field!r} to be its cursor; look at pagination.field"
            raise BadAnswer(url=bare(self.settings.url), text=text)
        return found

    def _link(self, link: Any, base: str) -> str | None:
        if not isinstance(link, str) or not link:
            return None
        whole = urljoin(base, link)
        if _origin(whole) != _origin(self.settings.url):
            text = f"its next page is elsewhere, at {bare(whole)}; our credentials don't go there"
            raise BadAnswer(url=bare(self.settings.url), text=text)
        return whole


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _time_s(newest: Position | None) -> float:
    text = (newest or {}).get("until")
    return datetime.fromisoformat(text).timestamp() if text else float("inf")


def steps_of(path: str) -> list[str]:
    """The names on a path: a JSON pointer if it begins with a slash, else names with dots between."""
    if path.startswith("/"):
        return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]
    return path.split(".") if path else []


def _raw_at(document: bytes, path: str) -> bytes | None:
    """What stands at a path, byte for byte; None if nothing does."""
    raw = document
    try:
        for step in steps_of(path):
            if raw.lstrip()[:1] == b"[":
                items = msgspec.json.decode(raw, type=list[msgspec.Raw])
                raw = bytes(items[int(step)])
            else:
                raw = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[step])
    except (msgspec.DecodeError, KeyError, IndexError, ValueError):
        return None
    return raw


def _value_at(document: bytes, path: str) -> Any:
    raw = _raw_at(document, path)
    return None if raw is None else msgspec.json.decode(raw)


def next_link(header: str) -> str | None:
    """The address with rel=next of a `Link` header."""
    for address, rest in LINK.findall(header):
        marks = [mark.strip().strip(",").replace('"', "").lower() for mark in rest.split(";")]
        if any(mark.startswith("rel=") and "next" in mark[4:].split() for mark in marks):
            return str(address)
    return None
