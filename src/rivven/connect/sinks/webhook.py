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


class Rejected(RivvenError, code=214):
    """The service refuses a record, and the settings don't allow to leave it out."""

    message = (
        "{reason}; the request {key} has {rows} records from {first}: mend them before they come here, "
        "or set on_rejected: drop to go on without them"
    )


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
        "What follows when the service refuses a request for good: stop, or leave its records out with a warning.",
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


class Request(NamedTuple):
    """One body to send. Its key is made of what stays the same if its records come again."""

    key: str
    body: bytes
    rows: int
    first: int


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
    `Retry-After` is kept to. Any other status that is no success is a refusal, which no retry mends: the pipeline
    stops with what the service said, or goes on without these records with `on_rejected: drop`. Redirects are
    refusals.

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
    record_columns = True

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
        waiting: set[Future[int]] = set()
        with ThreadPoolExecutor(settings.max_concurrency, "webhook") as threads:
            try:
                for request in self._requests(batches, task):
                    waiting.add(threads.submit(self._send, caller, request))
                    if len(waiting) >= settings.max_concurrency:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        sent += sum(each.result() for each in done)
                sent += sum(each.result() for each in waiting)
            except BaseException:
                stopping.set()
                raise
            finally:
                threads.shutdown(cancel_futures=True)
                caller.close()
        return sent or None

    def _send(self, caller: Caller, request: Request) -> int:
        """How many records were taken."""
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

        try:
            caller.call(settings.method, settings.url, content=sent, headers=headers)
        except Refused as error:
            if settings.on_rejected == "fail":
                raise Rejected(reason=str(error), key=request.key, rows=request.rows, first=request.first) from None
            logger.warning("left out %d records of request %s: %s", request.rows, request.key, error)
            return 0
        return request.rows

    def _requests(self, batches: Iterator[pa.RecordBatch], task: Task) -> Iterator[Request]:
        """Bodies that are the same for the same records, whatever batches these come in."""
        texts: list[bytes] = []
        size = first = 0
        for batch in batches:
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                text = self._text(row)
                if texts and (
                    len(texts) >= self.settings.batch_size or size + len(text) > self.settings.max_request_bytes
                ):
                    yield self._request(texts, first, task)
                    first, texts, size = first + len(texts), [], 0
                texts.append(text)
                size += len(text) + 1
        if texts:
            yield self._request(texts, first, task)

    def _request(self, texts: list[bytes], first: int, task: Task) -> Request:
        key = f"{task.batch.query_id}-{task.batch.batch_id}-{task.partition}-{first}"
        if self.settings.batch_size == 1:
            return Request(key, texts[0], 1, first)
        if self.settings.content_type.partition(";")[0].strip().lower() in LINES:
            return Request(key, b"\n".join(texts) + b"\n", len(texts), first)
        return Request(key, b"[" + b",".join(texts) + b"]", len(texts), first)

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
