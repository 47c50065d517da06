"""Records to a web service, a request for each or for some at a time.

A service cannot hold a request back until a commit, so records are sent by the tasks, at least once. Each request has
a key of its own, which is the same when the same records come again: the service can drop what it has seen.
"""

from __future__ import annotations

import gzip
import hmac
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from rivven.connect.caller import Auth, Breaker, Caller, Pace, Refused, Tls, Tries, web_address
from rivven.connect.sdk import RESERVED, ArrowSink, Finding, Launch, Secret, Settings, Task, setting
from rivven.errors import RivvenError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("rivven.connect.webhook")

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
"""Content types by which several records in a request are lines, and no array."""


ABOUT_US = frozenset({401, 402, 403, 404, 405, 407, 410, 415, 421, 426})
"""Of the 4xx, those that speak of us, the address or the settings: any record would have that answer."""


class Rejected(RivvenError, code=214):
    """The service refuses whatever we send."""

    message = "{reason}; no record is to blame for that: look at url, method, content_type and auth"


class Stopped(Exception):
    """Why a request is not tried again."""


class Signing(Settings):
    secret: Secret = setting("What both sides know.", least=1)
    header_name: str = setting("The header that has the signature.", default="X-Webhook-Signature", least=1)
    algorithm: Literal["sha256"] = setting("The hash of the HMAC.", default="sha256")
    include_timestamp: bool = setting(
        "Sign `TIME.BODY` in place of the body, so that nobody can send it again later.", default=True
    )
    timestamp_header: str = setting(
        "The header that has the time, in seconds.", default="X-Webhook-Timestamp", least=1
    )

    def headers(self, body: bytes, now_s: int) -> dict[str, str]:
        signed = b"%d." % now_s + body if self.include_timestamp else body
        digest = hmac.new(self.secret.reveal().encode(), signed, self.algorithm).hexdigest()
        made = {self.header_name: f"{self.algorithm}={digest}"}
        return made | ({self.timestamp_header: str(now_s)} if self.include_timestamp else {})


class HttpWebhookSettings(Settings):
    url: str = setting("Where the records go.", example="https://shop.example/hooks/orders", check=web_address)
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = setting("How they are sent.", default="POST")
    headers: dict[str, str] = setting("Further headers; for keys and passwords there is auth.", factory=dict)
    content_type: str = setting(
        "What the body says it is; with application/x-ndjson it has a record in each line.",
        default="application/json",
        least=1,
    )
    auth: Auth | None = setting("Who we are: bearer, basic or api_key.", default=None)
    signing: Signing | None = setting("Sign each request, so that the service knows who sent it.", default=None)
    tls: Tls = setting("Whom we trust.", factory=Tls)
    batch_size: int = setting(
        "Records in one request: 1 sends an object, more send an array of them.", default=1, least=1, most=100_000
    )
    max_request_bytes: int = setting(
        "A request with several records is sent before it is larger.", default=4 << 20, least=1024
    )
    include_metadata: bool = setting(
        "Add topic, partition, offset, key and time as `__about`, where they are known.", default=True
    )
    idempotency_header: str = setting(
        "The header that has the key of the request; empty for none.", default="Idempotency-Key"
    )
    compression_threshold_bytes: int = setting(
        "Bodies of this size and more are sent gzipped; 0 for never.", default=0, least=0
    )
    max_concurrency: int = setting("Requests at once; 1 keeps the order.", default=4, least=1, most=256)
    rate_limit_rps: float = setting("Requests per second; 0 for no limit.", default=0, least=0)
    parallelism: int = setting(
        "Tasks that send at once, each with its own limits of concurrency and rate.", default=1, least=1, most=1024
    )
    timeout_secs: float = setting("How long one request may take.", default=30, least=0.01)
    max_retries: int = setting("Further tries of a request that failed.", default=3, least=0)
    retry_backoff_ms: int = setting("The pause before the second try; it doubles each time.", default=1000, least=1)
    retry_jitter: bool = setting("Make the pauses uneven, so that not all come back at once.", default=True)
    circuit_breaker_threshold: int = setting(
        "Failures in a row after which the service is left alone for a while; 0 for never.", default=0, least=0
    )
    circuit_breaker_reset_secs: float = setting("How long it is left alone.", default=30, least=0.01)
    on_rejected: Literal["fail", "drop"] = setting(
        "What follows when the service refuses a record: `fail` puts it into the dead-letter topic, or stops if "
        "there is none; `drop` leaves it out with a warning.",
        default="fail",
    )
    health_check_url: str | None = setting(
        "What `rivven-connect check` asks with GET; without it, it asks for the head of the url.",
        default=None,
        check=web_address,
    )
    http2: bool = setting("Speak HTTP/2 with servers that offer it over TLS.", default=True)
    keepalive_secs: float = setting("How long a connection that is not used is kept.", default=90, least=0)
    batch_timeout_ms: int = setting(
        "How long to wait for more records.", default=1000, least=0, ignored="the end of a micro-batch sends the rest"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.content_type.partition(";")[0].strip().lower() in LINES and self.batch_size == 1:
            yield "batch_size", "must be above 1 for a content type of lines"


class Row(NamedTuple):
    """A record where it came: kept until the service has answered, since it may refuse it."""

    batch: pa.RecordBatch
    place: int


class Request(NamedTuple):
    """One body to send. Its key is made of what stays the same if its records come again."""

    key: str
    body: bytes
    texts: list[bytes]
    rows: list[Row]
    first: int

    @property
    def refused(self) -> pa.RecordBatch:
        return self.rows[0].batch.slice(self.rows[0].place, 1)


class Sent(NamedTuple):
    """What became of a request: how many records were taken, and requests of one record each that were not."""

    rows: int
    refused: list[tuple[Request, str]]


class HttpWebhook(ArrowSink[HttpWebhookSettings]):
    name = "http-webhook"
    aliases = ("webhook", "http-sink", "rest-api", "http")
    title = "HTTP webhook"
    summary = "Sends records to a web service, with retries, signatures and limits."
    docs = """
    At least once: after a crash the last micro-batch is sent again. Each request has an `Idempotency-Key` made of the
    query, the micro-batch, the task and the number of its first record in it; the same records come again under the
    same key, as long as `batch_size` and `parallelism` are not changed in between. A service that remembers the keys
    of the last minutes has every record once.

    A request that times out, breaks off, or is answered by 408, 425, 429 or 5xx is tried again with growing pauses;
    `Retry-After` is kept to. Any other status of the 4xx kind, such as 400, 413 or 422, is a refusal, which no retry
    mends. A refused request with several records is cut in half and sent again, each half under a key of its own,
    until the records are found that the service will not have. These go to the `dead_letter_topic` of the sink with
    what the service said, and the others are delivered; without such a topic the pipeline stops.

    An answer that speaks of us and not of a record stops the pipeline at once: 401, 403, 404, 405, 410, 415 and the
    like, and redirects.

    With `signing`, the signature is the HMAC of the time, a dot and the body as it is sent, after compression:
    `X-Webhook-Signature: sha256=...`. A retry has a new time and a new signature.

    Bytes in a record are sent as base64, numbers of arbitrary precision as texts.
    """
    example = """
    sinks:
      notify:
        connector: http-webhook
        topics: [orders]
        consumer_group: notify
        config:
          url: https://shop.example/hooks/orders
          batch_size: 100
          signing: {secret: "${HOOK_SECRET}"}
          circuit_breaker_threshold: 10
    """
    extra = "http"
    modules = ("httpx2", "pyarrow")
    delivery = "at_least_once"
    record_columns = RESERVED

    def check(self) -> list[Finding]:
        settings = self.settings
        found = settings.tls.findings("tls")
        if any(each.level == "error" for each in found):
            return found
        name = "health_check_url" if settings.health_check_url else "url"
        caller = self._caller(Tries(0))
        try:
            caller.call("GET" if settings.health_check_url else "HEAD", settings.health_check_url or settings.url)
        except Refused as error:
            if settings.health_check_url:
                found.append(Finding(str(error), field=name))
            elif error.facts["status"] in (401, 403):
                found.append(Finding(str(error), "warning", name, "look at auth"))
            # else it is there, and does not answer HEAD, which few webhooks do
        except RivvenError as error:
            found.append(Finding(str(error), field=name, fix="is the service up, and the address right?"))
        finally:
            caller.close()
        return found

    def _caller(self, tries: Tries) -> Caller:
        settings = self.settings
        return Caller(
            timeout_s=settings.timeout_secs,
            tries=tries,
            auth=settings.auth,
            headers=settings.headers,
            tls=settings.tls,
            http2=settings.http2,
            keepalive_s=settings.keepalive_secs,
            connections=settings.max_concurrency,
            pace=Pace(settings.rate_limit_rps),
            breaker=Breaker(settings.circuit_breaker_threshold, settings.circuit_breaker_reset_secs),
            bytes_max=1 << 20,
            bytes_setting="nothing: a webhook should answer in a few words",
        )

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        # Not repartition: its order of rows is another each time, and the keys are made from that
        return super().start(frame.coalesce(self.settings.parallelism), launch)

    def write(self, batches: Iterator[pa.RecordBatch], task: Task) -> int | None:
        settings, sent = self.settings, 0
        stopping = threading.Event()

        def nap(seconds: float) -> None:
            if stopping.wait(seconds):
                raise Stopped("another request has failed for good")

        caller = self._caller(Tries(settings.max_retries, settings.retry_backoff_ms, settings.retry_jitter))
        caller.sleep = nap
        waiting: set[Future[Sent]] = set()

        def settle(done: Iterable[Future[Sent]]) -> int:
            count = 0
            for each in done:
                result = each.result()
                count += result.rows
                for request, reason in result.refused:
                    self._refuse(request, reason, task)
            return count

        with ThreadPoolExecutor(settings.max_concurrency, "webhook") as threads:
            try:
                for request in self._requests(batches, task):
                    waiting.add(threads.submit(self._send, caller, request))
                    if len(waiting) >= settings.max_concurrency:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        sent += settle(done)
                sent += settle(waiting)
            except BaseException:
                stopping.set()
                raise
            finally:
                threads.shutdown(cancel_futures=True)
                caller.close()
        return sent or None

    def _refuse(self, request: Request, reason: str, task: Task) -> None:
        if self.settings.on_rejected == "fail":
            task.refuse(request.refused, reason)
        else:
            logger.warning("left out the record of request %s: %s", request.key, reason)

    def _send(self, caller: Caller, request: Request) -> Sent:
        """Deliver the records of a request; of one that is refused, all that the service takes in smaller ones."""
        try:
            self._call(caller, request)
        except Refused as error:
            status = error.facts["status"]
            if status < 400 or status in ABOUT_US:
                raise Rejected(reason=str(error)) from None
            if len(request.rows) == 1:
                return Sent(0, [(request, str(error))])
            halves = [self._send(caller, half) for half in self._halves(request)]
            return Sent(sum(each.rows for each in halves), [bad for each in halves for bad in each.refused])
        return Sent(len(request.rows), [])

    def _halves(self, request: Request) -> Iterator[Request]:
        """Two requests in place of one, under keys that say so: the first must not be taken for the whole again."""
        middle = len(request.rows) // 2
        stem = request.key.partition("+")[0].rpartition("-")[0]
        for start, end in ((0, middle), (middle, len(request.rows))):
            key = f"{stem}-{request.first + start}+{end - start}"
            yield self._request(request.texts[start:end], request.rows[start:end], request.first + start, key)

    def _call(self, caller: Caller, request: Request) -> None:
        settings, body = self.settings, request.body
        packed = 0 < settings.compression_threshold_bytes <= len(body)
        sent = gzip.compress(body, 6, mtime=0) if packed else body

        def headers() -> dict[str, str]:
            made = {"Content-Type": settings.content_type}
            if packed:
                made["Content-Encoding"] = "gzip"
            if settings.idempotency_header:
                made[settings.idempotency_header] = request.key
            if settings.signing is not None:
                made |= settings.signing.headers(sent, int(time.time()))
            return made

        caller.call(settings.method, settings.url, content=sent, headers=headers)

    def _requests(self, batches: Iterator[pa.RecordBatch], task: Task) -> Iterator[Request]:
        """Bodies that are the same for the same records, whatever batches these come in."""
        stem = f"{task.batch.query_id}-{task.batch.batch_id}-{task.partition}"
        texts: list[bytes] = []
        rows: list[Row] = []
        size = first = 0
        for batch in batches:
            for place, text in self._texts(batch, task):
                if texts and (
                    len(texts) >= self.settings.batch_size or size + len(text) > self.settings.max_request_bytes
                ):
                    yield self._request(texts, rows, first, f"{stem}-{first}")
                    first, texts, rows, size = first + len(texts), [], [], 0
                texts.append(text)
                rows.append(Row(batch, place))
                size += len(text) + 1
        if texts:
            yield self._request(texts, rows, first, f"{stem}-{first}")

    def _texts(self, batch: pa.RecordBatch, task: Task) -> Iterator[tuple[int, bytes]]:
        """The rows as JSON, with their places; one that cannot be JSON is refused before anybody is asked."""
        try:
            found: Iterable[Any] = batch.to_pylist(maps_as_pydicts="lossy")
        except (ValueError, OverflowError):
            found = (None for _ in range(batch.num_rows))
        for place, row in enumerate(found):
            try:
                yield place, self._text(row or batch.slice(place, 1).to_pylist(maps_as_pydicts="lossy")[0])
            except (ValueError, OverflowError) as error:
                task.refuse(batch.slice(place, 1), f"JSON cannot have it: {error}")

    def _request(self, texts: list[bytes], rows: list[Row], first: int, key: str) -> Request:
        if self.settings.batch_size == 1:
            body = texts[0]
        elif self.settings.content_type.partition(";")[0].strip().lower() in LINES:
            body = b"\n".join(texts) + b"\n"
        else:
            body = b"[" + b",".join(texts) + b"]"
        return Request(key, body, texts, rows, first)

    def _text(self, row: dict[str, Any]) -> bytes:
        data = {name: value for name, value in row.items() if name not in RESERVED}
        if self.settings.include_metadata:
            about = {name[2:]: _readable(row[name]) for name in row if name in RESERVED and row[name] is not None}
            data |= {"__about": about} if about else {}
        return msgspec.json.encode(data, enc_hook=str)


def _readable(value: Any) -> Any:
    """Keys are bytes that are texts nearly always."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
