"""The connectors that speak HTTP, against a server of our own that fails in all the ways servers do."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import pickle
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rivven.connect.caller import Breaker, Caller, Pace, Refused, TooLong, Tries, Unanswered, retry_after_s
from rivven.connect.kit import SinkKit, SourceKit, rows_of
from rivven.connect.sdk import BadSettings, Batch, RowRefused, Task
from rivven.connect.sinks.webhook import HttpWebhook, Rejected
from rivven.connect.sources.poll import BadAnswer, HttpPoll, next_link

sys.path.append(str(Path(__file__).parent))  # `from pipelines import run_once`

from pipelines import forget_commit, run_once

Reply = tuple[int, dict[str, str], bytes]
QUERY = "11111111-2222-3333-4444-555555555555"


class Asked:
    """One request as the server saw it."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.headers, self.body = method, headers, body
        parts = urlsplit(target)
        self.path = parts.path
        self.params = {name: values[-1] for name, values in parse_qs(parts.query).items()}

    def json(self) -> Any:
        packed = self.headers.get("content-encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)


class Server:
    """Answers by `answer`; before that, each of `troubles` takes one request for itself."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.taken: list[Asked] = []
        """Of these, what was answered with success."""
        self.troubles: list[str | Reply] = []
        self.answer: Callable[[Asked], Reply] = lambda _: (200, {}, b"{}")
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer is two writes, and the second would wait 40 ms

            def do_GET(self) -> None:
                outer.handle(self)

            do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that go away are part of the play."""

        self._listener = Listener(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._listener.socket = tls.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.server_address[1]}"

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.command, handler.path, headers, body)
        with self._lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            trouble = self.troubles.pop(0) if self.troubles else None
        try:
            if isinstance(trouble, str):
                self._make(trouble, handler)
            else:
                reply = trouble or self.answer(asked)
                if reply[0] < 300:
                    self.taken.append(asked)
                self._send(handler, reply)
        finally:
            with self._lock:
                self._now -= 1

    def _make(self, trouble: str, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        if trouble == "reset":  # a connection that is closed with a zero linger is reset
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        elif trouble == "cut":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1, 2")
        elif trouble == "slow":
            time.sleep(0.6)
        elif trouble == "drip":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(8):
                handler.wfile.write(b" ")
                time.sleep(0.1)

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        status, headers, body = reply
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def ok(value: Any, **headers: str) -> Reply:
    return 200, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


class Feed:
    """An append-only feed of numbered items, served by every kind of page there is."""

    def __init__(self, count: int, page: int = 4) -> None:
        self.items = [{"id": number, "name": f"item {number}"} for number in range(1, count + 1)]
        self.page = page

    def add(self, count: int) -> None:
        last = len(self.items)
        self.items += [{"id": last + number, "name": f"item {last + number}"} for number in range(1, count + 1)]

    def __call__(self, asked: Asked) -> Reply:
        return getattr(self, asked.path.strip("/").replace("-", "_"))(asked.params, asked)

    def by_field(self, params: dict[str, str], _: Asked) -> Reply:
        after = int(params.get("after", 0))
        return ok({"data": [item for item in self.items if item["id"] > after][: self.page]})

    def since(self, params: dict[str, str], _: Asked) -> Reply:
        """As `by_field`, with the record of the cursor in it."""
        after = int(params.get("after", 0))
        return ok({"data": [item for item in self.items if item["id"] >= after][: self.page]})

    def _slice(self, number: int) -> tuple[list[dict[str, Any]], bool]:
        first = number * self.page
        return self.items[first : first + self.page], len(self.items) > first + self.page

    def by_token(self, params: dict[str, str], _: Asked) -> Reply:
        number = int(params.get("token", "t0")[1:])
        found, more = self._slice(number)
        return ok({"data": found, "meta": {"next": f"t{number + 1}" if more else None}})

    def by_body(self, _: dict[str, str], asked: Asked) -> Reply:
        return self.by_token(asked.json(), asked)

    def by_link(self, params: dict[str, str], _: Asked) -> Reply:
        number = int(params.get("n", 0))
        found, more = self._slice(number)
        links = f'</by-link?n=0>; rel="first", </by-link?n={number + 1}>; rel="next"' if more else ""
        return ok({"data": found, "links": {"next": f"?n={number + 1}" if more else ""}}, Link=links)

    def by_page(self, params: dict[str, str], _: Asked) -> Reply:
        found, _more = self._slice(int(params["page"]) - 1)
        return ok({"data": found}) if found or params["page"] == "1" else (404, {}, b"no such page")

    def by_offset(self, params: dict[str, str], _: Asked) -> Reply:
        first = int(params["offset"])
        return ok({"data": self.items[first : first + self.page]})


WAYS: dict[str, dict[str, Any]] = {
    "by-field": {"type": "cursor", "param": "after", "field": "id"},
    "since": {"type": "cursor", "param": "after", "field": "id"},
    "by-token": {"type": "cursor", "param": "token", "path": "/meta/next"},
    "by-body": {"type": "cursor", "param": "token", "path": "meta.next", "place": "body"},
    "by-link": {"type": "link"},
    "by-page": {"type": "page"},
    "by-offset": {"type": "offset"},
}


def poll(server: Server, way: str, **more: Any) -> HttpPoll:
    given = {"url": f"{server.url}/{way}", "records_path": "/data", "mode": "incremental", "pagination": WAYS[way]}
    given |= {"poll_interval_ms": 1, "retry_backoff_ms": 1, "timeout_secs": 0.3}
    given |= {"method": "POST", "body": {"size": 4}} if way == "by-body" else {}
    made = HttpPoll.configured(given | more)
    assert isinstance(made, HttpPoll)
    return made


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [json.loads(row["value"])["id"] for row in rows]


# The source


class TestPoll(SourceKit):
    connector = HttpPoll
    bad_settings: ClassVar[dict[str, Any]] = {"url": "ftp://example.com"}
    way = "by-field"
    rows_expected = 22

    @pytest.fixture(autouse=True)
    def _serve(self, server: Server) -> None:
        server.answer = Feed(22)
        self.server = server

    def make_settings(self, home: Path) -> dict[str, Any]:  # noqa: ARG002
        return {
            "url": f"{self.server.url}/{self.way}",
            "records_path": "/data",
            "mode": "incremental",
            "pagination": WAYS[self.way],
        }


class TestPollByToken(TestPoll):
    way = "by-token"


class TestPollOfSnapshots(TestPoll):
    def make_settings(self, home: Path) -> dict[str, Any]:
        return super().make_settings(home) | {"mode": "snapshot"}


@pytest.mark.parametrize("way", WAYS)
def test_a_feed_is_read_once_whatever_its_pages_are_like(server, way):
    feed = server.answer = Feed(10)
    source = poll(server, way)
    position, seen = source.start_position(), []
    for added in (0, 1, 5, 0, 2):  # pages that grow, fill up, and are followed by others
        feed.add(added)
        time.sleep(0.002)
        while (end := source.advance(position, source.newest_position(), 3)) != position:
            rows = rows_of(source, position, end)
            assert rows_of(pickle.loads(pickle.dumps(source)), position, end) == rows, "as after a crash"
            seen += ids(rows)
            position = json.loads(json.dumps(end))
            time.sleep(0.002)
    assert seen == list(range(1, 19))
    source.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_range_stays_what_it_was_when_more_has_come(server, way):
    feed = server.answer = Feed(6)
    source = poll(server, way)
    start = source.start_position()
    end = source.advance(start, source.newest_position(), 100)
    feed.add(9)
    assert ids(rows_of(pickle.loads(pickle.dumps(source)), start, end)) == [1, 2, 3, 4, 5, 6]


def test_a_range_that_is_gone_is_an_error(server):
    feed = server.answer = Feed(6)
    source = poll(server, "by-field")
    start = source.start_position()
    end = source.advance(start, source.newest_position(), 100)
    del feed.items[3:]
    with pytest.raises(BadAnswer, match="no longer has the records up to 6"):
        rows_of(poll(server, "by-field"), start, end)


def test_a_run_with_an_end_has_one_though_the_feed_goes_on(server):
    feed = server.answer = Feed(6)
    source = poll(server, "by-field")
    position, last = source.start_position(), source.newest_position()
    while (end := source.advance(position, last, 4)) != position:
        position = end
        time.sleep(0.002)
    feed.add(1)
    assert source.advance(position, last, 4) == position
    assert source.advance(position, source.newest_position(), 4) == {"at": 7, "rows": 0}


def test_it_does_not_ask_more_often_than_told(server):
    server.answer = Feed(3)
    source = poll(server, "by-field", poll_interval_ms=60_000)
    end = source.advance(source.start_position(), source.newest_position(), 100)
    calls = len(server.asked)
    for _ in range(5):
        assert source.advance(end, source.newest_position(), 100) == end
    assert len(server.asked) == calls


def test_a_snapshot_comes_again_when_it_has_changed(server):
    feed = server.answer = Feed(5)
    source = poll(server, "by-page", mode="snapshot")
    assert source.delivery == "at_least_once"
    assert HttpPoll.delivery == "at_least_once"
    start = source.start_position()
    first = source.advance(start, source.newest_position(), 2)
    assert ids(rows_of(source, start, first)) == [1, 2, 3, 4, 5], "all of it, whatever the rows allowed"
    time.sleep(0.002)
    assert source.advance(first, source.newest_position(), 2) == first, "nothing has changed"
    feed.items[0]["name"] = "another"
    time.sleep(0.002)
    second = source.advance(first, source.newest_position(), 2)
    assert second["poll"] == 2
    assert len(rows_of(source, first, second)) == 5


@pytest.mark.parametrize(
    "troubles",
    [
        [(500, {}, b"oh")],
        [(503, {}, b""), (502, {}, b"")],
        [(429, {"Retry-After": "0"}, b"")],
        ["reset"],
        ["cut"],
        ["slow"],
        ["drip"],
        ["reset", (500, {}, b""), "cut"],
    ],
    ids=str,
)
def test_what_passes_is_tried_again(server, troubles):
    server.answer = Feed(3)
    server.troubles = list(troubles)
    source = poll(server, "by-field")
    start = source.start_position()
    assert ids(rows_of(source, start, source.advance(start, source.newest_position(), 10))) == [1, 2, 3]
    assert len(server.asked) == 2 + len(troubles)


def test_what_does_not_pass_ends_in_an_error_that_says_what_was_answered(server):
    server.troubles = [(500, {}, b"the database is away")] * 10
    with pytest.raises(Unanswered, match=r"after 4 tries: status 500: the database is away"):
        poll(server, "by-field").advance({"at": None, "rows": 0}, None, 10)
    assert len(server.asked) == 4


def test_a_refusal_is_not_tried_again_and_shows_no_query(server):
    server.troubles = [(403, {}, b"who are you")]
    source = poll(server, "by-field", params={"key": "hush"})
    with pytest.raises(Refused, match="refused with status 403: who are you") as caught:
        source.advance({"at": None, "rows": 0}, None, 10)
    assert "hush" not in str(caught.value)
    assert len(server.asked) == 1


def test_redirects_and_links_to_other_hosts_are_not_followed(server):
    server.troubles = [(302, {"Location": "http://127.0.0.2:1/?token=x"}, b"")]
    with pytest.raises(Refused, match=r"it leads elsewhere, to http://127\.0\.0\.2:1/; give that address"):
        poll(server, "by-field").advance({"at": None, "rows": 0}, None, 10)
    server.answer = lambda _: ok({"data": [], "next": "http://127.0.0.2:1/"})
    with pytest.raises(BadAnswer, match="its next page is elsewhere"):
        poll(server, "by-link", pagination={"type": "link", "path": "next"}).advance(
            {"at": None, "rows": 0}, None, 10
        )
    assert len(server.asked) == 2


def test_an_answer_may_not_be_larger_than_allowed_even_if_it_is_packed(server):
    packed = gzip.compress(b"[" + b" " * 1_000_000 + b"]")
    assert len(packed) < 2000
    server.answer = lambda _: (200, {"Content-Encoding": "gzip"}, packed)
    with pytest.raises(TooLong, match=r"more than 2,000 bytes; .* max_response_bytes"):
        poll(server, "by-field", max_response_bytes=2000).advance({"at": None, "rows": 0}, None, 10)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "no JSON with something at '/data'"),
        (b'{"items": []}', "no JSON with something at '/data'"),
        (b'{"data": [{"name": "no id"}]}', "has no text or whole number at 'id'"),
        (b'{"data": [1, 2', "no JSON"),
    ],
)
def test_an_answer_that_is_not_as_said_is_explained(server, body, why):
    server.answer = lambda _: (200, {}, body)
    with pytest.raises(BadAnswer, match=why):
        poll(server, "by-field").advance({"at": None, "rows": 0}, None, 10)


def test_records_keep_every_digit(server):
    server.answer = lambda _: (200, {}, b'[{"n": 12345678901234567890.123456789}, {"n": 1.0}]')
    source = HttpPoll.configured({"url": server.url})
    start = source.start_position()
    rows = rows_of(source, start, source.advance(start, None, 10))
    assert [row["value"] for row in rows] == ['{"n": 12345678901234567890.123456789}', '{"n": 1.0}']


def test_lines_are_records(server):
    server.answer = lambda _: (200, {}, b'{"id": 1}\n\n{"id": 2}\n')
    source = HttpPoll.configured({"url": server.url, "answer": "jsonl"})
    start = source.start_position()
    assert ids(rows_of(source, start, source.advance(start, None, 10))) == [1, 2]


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ({"type": "bearer", "token": "t0k"}, "authorization", "Bearer t0k"),
        ({"type": "basic", "username": "ada", "password": "pw"}, "authorization", "Basic YWRhOnB3"),
        ({"type": "api_key", "header_name": "X-Key", "key": "k3y"}, "x-key", "k3y"),
    ],
)
def test_we_say_who_we_are(server, auth, header, value):
    server.answer = Feed(1)
    source = poll(server, "by-field", auth=auth, headers={"X-More": "1"}, params={"limit": "7"})
    assert source.check() == []
    assert server.asked[0].headers[header] == value
    assert server.asked[0].headers["x-more"] == "1"
    assert server.asked[0].params == {"limit": "7"}
    assert not any(word in repr(source) for word in ("t0k", "'pw'", "k3y"))


def test_check_and_discover_speak_of_what_is_there(server):
    server.answer = Feed(2)
    (stream,) = poll(server, "by-field").discover()
    assert (stream.name, stream.schema) == ("by-field", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    server.troubles = [(401, {}, b"")]
    (finding,) = poll(server, "by-field").check()
    assert (finding.level, finding.field, finding.fix) == ("error", "url", "look at auth")
    (finding,) = poll(server, "by-field", tls={"ca_cert_path": "/nowhere"}).check()
    assert finding.field == "tls.ca_cert_path"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"mode": "incremental"}, "pagination: incremental needs one"),
        ({"pagination": {"type": "cursor", "param": "a"}}, "give either path"),
        ({"pagination": {"type": "pages"}}, "did you mean 'page'"),
        ({"url": "http://ada:pw@host/"}, "must not have a password in it"),
        ({"url": "http://host:port/"}, "is no address"),
        ({"body": {"a": 1}}, "method: POST"),
        ({"answer": "jsonl", "records_path": "/a"}, "records_path: has no meaning for jsonl"),
    ],
)
def test_settings_that_do_not_fit_are_named(wrong, why):
    with pytest.raises(BadSettings, match=why):
        HttpPoll.configured({"url": "http://localhost/"} | wrong)


def test_the_next_link_is_found_among_others():
    assert next_link('<http://a/1>; rel="prev", <http://a/3?x=1,2>; title="b"; rel="next last"') == "http://a/3?x=1,2"
    assert next_link("<http://a/3>; rel=next") == "http://a/3"
    assert next_link('<http://a/3>; rel="nextish"') is None
    assert next_link("") is None


# Calls


def test_pauses_double_and_are_uneven():
    even, rng = Tries(backoff_ms=100, jitter=False), Random(7)
    assert [even.pause_s(failures, rng) for failures in (1, 2, 3, 30)] == [0.1, 0.2, 0.4, 60.0]
    uneven = [Tries(backoff_ms=100).pause_s(1, rng) for _ in range(50)]
    assert all(0.05 <= pause <= 0.1 for pause in uneven)
    assert len(set(uneven)) == 50


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7", 7.0),
        ("Mon, 16 Nov 2026 12:00:09 GMT", 9.0),
        ("Mon, 16 Nov 2026 11:00:00 GMT", 0.0),
        ("99999999", 600.0),
        ("soon", None),
        ("", None),
    ],
)
def test_a_server_may_say_when_to_come_back(text, wanted):
    assert retry_after_s({"retry-after": text}, datetime(2026, 11, 16, 12, tzinfo=UTC)) == wanted


def test_a_call_waits_as_long_as_the_server_asks_for(server):
    slept: list[float] = []
    caller = Caller(tries=Tries(3, 1, jitter=False), sleep=slept.append)
    server.troubles = [(429, {"Retry-After": "3"}, b""), (503, {}, b"")]
    assert caller.call("GET", server.url).status == 200
    assert slept == [3.0, 0.002]
    caller.close()


def test_the_pace_is_kept():
    now = [100.0]
    pace = Pace(10, lambda: now[0])
    assert [round(pace.wait_s(), 3) for _ in range(3)] == [0.0, 0.1, 0.2]
    now[0] = 200.0
    assert pace.wait_s() == 0.0


def test_the_breaker_opens_waits_and_sends_one_ahead():
    now = [0.0]
    breaker = Breaker(2, 30, lambda: now[0])
    breaker.tell(well=False)
    breaker.tell(well=True)
    breaker.tell(well=False)
    assert breaker.wait_s() == 0.0, "not two in a row"
    breaker.tell(well=False)
    assert breaker.wait_s() == 30.0
    now[0] = 31.0
    assert breaker.wait_s() == 0.0, "one goes ahead"
    assert breaker.wait_s() == 30.0, "and the others wait"
    breaker.tell(well=False)
    assert breaker.wait_s() == 30.0
    breaker.tell(well=True)
    assert breaker.wait_s() == 0.0


# The sink


def hook(server: Server, **more: Any) -> HttpWebhook:
    made = HttpWebhook.configured({"url": server.url, "retry_backoff_ms": 1, "timeout_secs": 0.3} | more)
    assert isinstance(made, HttpWebhook)
    return made


def table(count: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(range(count), pa.int64()), **columns})


def send(sink: HttpWebhook, *batches: pa.RecordBatch, batch_id: int = 3) -> Any:
    return pickle.loads(pickle.dumps(sink)).write(iter(batches), Task(Batch(QUERY, batch_id), 1, "a"))


class TestWebhook(SinkKit):
    connector = HttpWebhook
    bad_settings: ClassVar[dict[str, Any]] = {"url": "example.com"}

    @pytest.fixture(autouse=True)
    def _serve(self, server: Server) -> None:
        self.server = server

    def make_settings(self, home: Path) -> dict[str, Any]:  # noqa: ARG002
        return {"url": self.server.url, "batch_size": 3}

    def written(self, home: Path) -> list[dict[str, Any]]:  # noqa: ARG002
        return [row for asked in self.server.taken if asked.method == "POST" for row in asked.json()]

    def hopeless(self) -> pa.RecordBatch:
        def picky(asked: Asked) -> Reply:
            bad = any(row["name"] == "hopeless" for row in asked.json())
            return (422, {}, b"not that one") if bad else (200, {}, b"")

        self.server.answer = picky
        return pa.RecordBatch.from_pydict({"id": [90, 91, 92], "name": ["hopeless"] * 3})


def test_a_record_is_an_object_with_what_is_known_of_it(server):
    about = {"__key": pa.array([b"k"]), "__topic": pa.array(["orders"]), "__offset": pa.array([7])}
    moment = pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    assert send(hook(server), table(1, at=moment, data=pa.array([b"\xff"]), **about)) == 1
    assert server.asked[0].json() == {
        "id": 0,
        "at": "2026-01-02T00:00:00Z",
        "data": "/w==",
        "__about": {"key": "k", "topic": "orders", "offset": 7},
    }
    assert send(hook(server, include_metadata=False), table(1, **about)) == 1
    assert server.asked[1].json() == {"id": 0}


def test_requests_are_the_same_however_the_records_come(server):
    sink = hook(server, batch_size=4, max_concurrency=1)
    whole = table(10)
    assert send(sink, whole) == 10
    assert send(sink, whole.slice(0, 1), whole.slice(1, 6), whole.slice(7)) == 10
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert keys[:3] == [f"{QUERY}-3-1-{first}" for first in (0, 4, 8)]
    assert keys[3:] == keys[:3]
    assert [asked.body for asked in server.asked[3:]] == [asked.body for asked in server.asked[:3]]
    assert [len(asked.json()) for asked in server.asked[:3]] == [4, 4, 2]


def test_a_retry_has_the_same_key_and_a_receiver_can_drop_it(server):
    taken: dict[str, Any] = {}

    def take(asked: Asked) -> Reply:
        taken.setdefault(asked.headers["idempotency-key"], asked.json())
        return 200, {}, b""

    server.answer = take
    server.troubles = ["reset", (500, {}, b""), "slow", (503, {"Retry-After": "0"}, b""), "cut", "reset"]
    assert send(hook(server, max_retries=6), table(20)) == 20
    assert send(hook(server, max_retries=6), table(20)) == 20
    assert [each["id"] for each in sorted(taken.values(), key=lambda each: each["id"])] == list(range(20))


def test_a_signature_can_be_verified_and_is_made_anew_for_a_retry(server):
    server.troubles = [(500, {}, b"")]
    sink = hook(server, signing={"secret": "s3cret"}, compression_threshold_bytes=10, batch_size=50)
    assert send(sink, table(50)) == 50
    for asked in server.asked:
        assert asked.headers["content-encoding"] == "gzip"
        moment = asked.headers["x-webhook-timestamp"]
        wanted = hmac.new(b"s3cret", moment.encode() + b"." + asked.body, hashlib.sha256).hexdigest()
        assert asked.headers["x-webhook-signature"] == f"sha256={wanted}"
    assert len(server.asked[0].json()) == 50
    assert "s3cret" not in repr(sink)
    send(hook(server, signing={"secret": "s", "include_timestamp": False, "header_name": "X-S"}), table(1))
    plain = hmac.new(b"s", server.asked[-1].body, hashlib.sha256).hexdigest()
    assert server.asked[-1].headers["x-s"] == f"sha256={plain}"


def test_lines_and_the_limit_of_bytes(server):
    sink = hook(
        server, batch_size=100, content_type="application/x-ndjson", max_request_bytes=1024, max_concurrency=1
    )
    assert send(sink, table(10, text=pa.array(["x" * 300] * 10))) == 10
    lines = [asked.body.splitlines() for asked in server.asked]
    assert [len(each) for each in lines] == [3, 3, 3, 1]
    assert json.loads(lines[3][0])["id"] == 9


def test_no_more_requests_at_once_than_allowed(server):
    def slowly(_: Asked) -> Reply:
        time.sleep(0.02)
        return 200, {}, b""

    server.answer = slowly
    assert send(hook(server, max_concurrency=3), table(30)) == 30
    assert server.most_at_once == 3


def test_the_rate_is_kept(server):
    began = time.monotonic()
    assert send(hook(server, rate_limit_rps=50), table(11)) == 11
    assert time.monotonic() - began >= 0.2


def test_a_breaker_leaves_a_sick_service_alone_and_loses_nothing(server):
    server.troubles = [(500, {}, b"")] * 4
    began = time.monotonic()
    settings = {"circuit_breaker_threshold": 3, "circuit_breaker_reset_secs": 0.2, "max_concurrency": 2}
    assert send(hook(server, **settings, max_retries=5), table(10)) == 10
    assert time.monotonic() - began >= 0.2
    assert sorted({asked.json()["id"] for asked in server.asked}) == list(range(10))


def test_a_refused_record_stops_the_pipeline_or_is_left_out(server, caplog):
    def picky(asked: Asked) -> Reply:
        return (422, {}, b"no sevens") if asked.json()["id"] == 7 else (200, {}, b"")

    server.answer = picky
    about = {"__topic": pa.array(["orders"] * 10), "__partition": pa.array([2] * 10), "__offset": pa.array(range(10))}
    with pytest.raises(
        RowRefused, match=r"at offset 7 of partition 2 of topic orders cannot be written: POST .* 422"
    ):
        send(hook(server, max_concurrency=1), table(10, **about))
    assert len(server.asked) == 8, "no retry, and nothing after it"
    assert send(hook(server, on_rejected="drop"), table(10)) == 9
    assert "left out the record of request" in caplog.text


def test_of_a_refused_request_the_records_are_found_that_are_to_blame(server):
    def picky(asked: Asked) -> Reply:
        bad = [row["id"] for row in asked.json() if row["id"] % 10 == 3]
        return (400, {}, f"what is {bad}?".encode()) if bad else (200, {}, b"")

    server.answer = picky
    refused: list[tuple[int, str]] = []
    task = Task(Batch(QUERY, 3), 1, "a", lambda rows, why: refused.append((rows.to_pylist()[0]["id"], why)))
    parts = [table(40).slice(0, 13), table(40).slice(13, 27)]
    assert hook(server, batch_size=16).write(iter(parts), task) == 36
    assert sorted(number for number, _ in refused) == [3, 13, 23, 33]
    assert all(f"status 400: what is [{number}]?" in why for number, why in refused)
    assert sorted(row["id"] for asked in server.taken for row in asked.json()) == [
        number for number in range(40) if number % 10 != 3
    ]
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert len(set(keys)) == len(keys), "what was refused is not sent again under the same key"


@pytest.mark.parametrize("status", [401, 403, 404, 405, 301])
def test_an_answer_about_us_stops_everything_and_blames_no_record(server, status):
    server.answer = lambda _: (status, {}, b"go away")
    task = Task(Batch(QUERY, 3), 1, "a", lambda rows, why: pytest.fail(f"{why}: {rows}"))
    for policy in ("fail", "drop"):
        with pytest.raises(Rejected, match=rf"refused with status {status}.*look at url, method"):
            hook(server, on_rejected=policy).write(iter([table(3)]), task)


def test_what_json_cannot_have_is_refused_before_anybody_is_asked(server):
    names = pa.array([b"fine", b"\xff", b"fine"], pa.binary()).view(pa.string())
    refused: list[str] = []
    task = Task(Batch(QUERY, 3), 1, "a", lambda _, why: refused.append(why))
    assert hook(server).write(iter([table(3, name=names)]), task) == 2
    assert sorted(asked.json()["id"] for asked in server.taken) == [0, 2]  # several at a time
    assert len(refused) == 1
    assert refused[0].startswith("JSON cannot have it: 'utf-8' codec")


def test_when_one_request_is_refused_those_that_wait_give_up_as_well(server):
    def picky(asked: Asked) -> Reply:
        if asked.json()["id"] == 1:
            return 400, {}, b"no"
        return 503, {"Retry-After": "60"}, b""

    server.answer = picky
    began = time.monotonic()
    with pytest.raises(RowRefused):
        send(hook(server, max_concurrency=4), table(4))
    assert time.monotonic() - began < 30


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_server_is_trusted_if_its_authority_is(tmp_path):
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", "/CN=hook", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(tmp_path / "own.key"), "-out", str(tmp_path / "own.pem")),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "own.key")
    server = Server(context)
    try:
        assert send(hook(server, tls={"ca_cert_path": str(tmp_path / "own.pem")}, timeout_secs=5), table(2)) == 2
        assert send(hook(server, tls={"accept_invalid_certs": True}, timeout_secs=5), table(1)) == 1
        with pytest.raises(Unanswered, match="CERTIFICATE_VERIFY_FAILED"):
            send(hook(server, timeout_secs=5, max_retries=1), table(1))
    finally:
        server.close()
    assert len(server.asked) == 3


def test_check_asks_and_changes_nothing(server):
    assert hook(server).check() == []
    assert server.asked[-1].method == "HEAD"
    server.answer = lambda asked: (200 if asked.path == "/healthy" else 404, {}, b"")
    assert hook(server).check() == [], "it is there"
    assert hook(server, health_check_url=f"{server.url}/healthy").check() == []
    assert [each.field for each in hook(server, health_check_url=f"{server.url}/ill").check()] == ["health_check_url"]
    server.answer = lambda _: (401, {}, b"")
    assert [each.level for each in hook(server).check()] == ["warning"]
    server.close()
    (finding,) = hook(server).check()
    assert (finding.level, finding.field) == ("error", "url")


# Through Spark


def test_from_a_service_to_a_webhook(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    feed, taken = Feed(50, page=7), dict[str, Any]()

    def answer(asked: Asked) -> Reply:
        if asked.path != "/hook":
            return feed(asked)
        taken.setdefault(asked.headers["idempotency-key"], asked.json())
        return 204, {}, b""

    server.answer = answer
    server.troubles = ["reset", (500, {}, b"")]
    text = f"""
    pipelines:
      notify:
        source:
          connector: http
          config:
            url: {server.url}/by-token
            records_path: /data
            mode: incremental
            pagination: {{type: cursor, param: token, path: /meta/next}}
            retry_backoff_ms: 1
        transforms:
          - type: filter
            config: {{where: "id <> 13"}}
        sink:
          connector: webhook
          config: {{url: "{server.url}/hook", batch_size: 20, retry_backoff_ms: 1}}
    """
    for added in (0, 8):
        feed.add(added)
        (work,) = run_once(spark, tmp_path, text).values()
        assert (work.state, work.error) == ("done", "")
        assert work.plan.delivery == "at_least_once", "of which the sink is the reason"
        forget_commit(tmp_path, "notify")
    keys, calls = set(taken), sum(asked.path == "/hook" for asked in server.asked)
    run_once(spark, tmp_path, text)
    assert sum(asked.path == "/hook" for asked in server.asked) > calls
    assert set(taken) == keys, "what comes again has the keys that it had"
    sent = sorted((row["id"], row["name"]) for rows in taken.values() for row in rows)
    assert sent == [(number, f"item {number}") for number in range(1, 59) if number != 13], "each once, in two runs"
