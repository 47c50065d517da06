"""Calls to HTTP servers of others: who we are to them, when a call is worth another try, and how fast we may go.

A `Caller` is what the connectors that speak HTTP share. A call either gives an answer of the 2xx kind, or raises:
`Refused` for what another try would not mend, `Unanswered` when the tries are used up. Answers are read up to a
limit, counted after decompression, so that no server can fill our memory.

The client is httpx2: it speaks HTTP/2 as well, and takes a call apart into connecting, sending and reading, with a
limit for each. It is loaded when the first call is made.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rivven.errors import RivvenError

from .sdk import Finding, Secret, Settings, setting

if TYPE_CHECKING:
    import httpx2

ANSWER_EXCERPT_CHARS = 300
BACKOFF_MS_MAX = 60_000
RETRY_AFTER_S_MAX = 600.0
BREAKER_LOOK_S = 0.5
WORTH_ANOTHER_TRY = frozenset({408, 425, 429})
"""Of the 4xx, those that speak about the moment and not about the request."""


class Refused(RivvenError, code=210):
    """The server will not take this call, however often it comes."""

    message = "{method} {url} was refused with status {status}: {excerpt}"


class Unanswered(RivvenError, code=211, retriable=True):
    """No try had a useful answer."""

    message = "{method} {url} has no useful answer after {tries} tries: {reason}"


class TooLong(RivvenError, code=212):
    """An answer above the limit."""

    message = "the answer of {url} has more than {bytes_max:,} bytes; ask for smaller pages or raise {setting}"


# Settings


def web_address(value: str) -> str | None:
    """What is wrong with an address, if anything is."""
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018  # it is read to see whether it is a number
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must begin with http:// or https:// and name a host"
    if parts.username is not None or parts.password is not None:
        return "must not have a password in it; use auth"
    return None


class Bearer(Settings):
    union_tag = "bearer"
    token: Secret = setting("Sent as `Authorization: Bearer TOKEN`.", least=1)


class Basic(Settings):
    union_tag = "basic"
    username: str = setting("The name.")
    password: Secret = setting("The password.")


class ApiKey(Settings):
    union_tag = "api_key"
    header_name: str = setting("The header that has the key.", default="X-API-Key", least=1)
    key: Secret = setting("The key.", least=1)


Auth = Bearer | Basic | ApiKey


class Tls(Settings):
    ca_cert_path: str | None = setting(
        "A PEM file with the authorities to trust, in place of those of the system.", default=None
    )
    accept_invalid_certs: bool = setting("Trust anybody; for tests alone.", default=False)

    def context(self) -> ssl.SSLContext:
        if self.ca_cert_path is None and not self.accept_invalid_certs:
            return _system_context()
        made = ssl.create_default_context(cafile=self.ca_cert_path)
        if self.accept_invalid_certs:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made

    def findings(self, name: str) -> list[Finding]:
        """What is wrong with the files."""
        try:
            self.context()
        except (OSError, ssl.SSLError) as error:
            text = f"{self.ca_cert_path} cannot be read as PEM: {error}"
            return [Finding(text, field=f"{name}.ca_cert_path", fix="name a file with certificates in PEM")]
        if self.accept_invalid_certs:
            return [Finding("anybody between us and the server can read along", "warning", name)]
        return []


@cache
def _system_context() -> ssl.SSLContext:
    """Made once: it reads all the authorities that the system trusts."""
    return ssl.create_default_context()


def auth_headers(auth: Auth | None) -> dict[str, str]:
    match auth:
        case Bearer(token=token):
            return {"Authorization": f"Bearer {token.reveal()}"}
        case ApiKey(header_name=name, key=key):
            return {name: key.reveal()}
        case _:
            return {}


# When, and how fast


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a call is made, and how long the pauses between are."""

    retries: int = 3
    backoff_ms: int = 1000
    jitter: bool = True

    def pause_s(self, failures: int, rng: Random) -> float:
        """The pause after so many failures: twice the one before; with jitter anything from half of that."""
        whole: float = min(self.backoff_ms * 2 ** min(failures - 1, 32), BACKOFF_MS_MAX) / 1000
        return whole * (0.5 + rng.random() / 2) if self.jitter else whole


class Pace:
    """At most so many calls per second, evenly spread; 0 for no limit."""

    def __init__(self, per_second: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._gap_s = 1 / per_second if per_second else 0.0
        self._now_s = now_s
        self._next_s = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """How long the caller has to wait for its turn, which is taken by asking."""
        with self._lock:
            now_s = self._now_s()
            turn_s = max(now_s, self._next_s)
            self._next_s = turn_s + self._gap_s
            return turn_s - now_s


class Breaker:
    """Leaves a server alone for a while after failures in a row; then one call goes ahead and tells for all.

    Nobody's record is dropped: who meets an open breaker waits. With a threshold of 0 it never opens.
    """

    def __init__(self, threshold: int, reset_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._threshold = threshold
        self._reset_s = reset_s
        self._now_s = now_s
        self._failures = 0
        self._open_until_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return 0 < self._threshold <= self._failures

    def wait_s(self) -> float:
        """How long to wait before asking again; 0 says go. Of those who wait, one goes at a time."""
        with self._lock:
            if not self.is_open:
                return 0.0
            left_s = self._open_until_s - self._now_s()
            if left_s > 0:
                return left_s
            self._open_until_s = self._now_s() + self._reset_s  # the others wait for what this one finds
            return 0.0

    def tell(self, *, well: bool) -> None:
        with self._lock:
            self._failures = 0 if well else self._failures + 1
            if self.is_open:
                self._open_until_s = self._now_s() + self._reset_s


# Calling


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def _no_headers() -> dict[str, str]:
    return {}


@dataclass
class Caller:
    """One client of one server, for any number of threads."""

    timeout_s: float = 30.0
    tries: Tries = field(default_factory=Tries)
    auth: Auth | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: Tls | None = None
    http2: bool = False
    keepalive_s: float = 90.0
    connections: int = 4
    pace: Pace = field(default_factory=lambda: Pace(0))
    breaker: Breaker = field(default_factory=lambda: Breaker(0, 0))
    bytes_max: int = 16 << 20
    bytes_setting: str = "the limit"
    sleep: Callable[[float], None] = time.sleep
    rng: Random = field(default_factory=Random)
    _made: httpx2.Client | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _client(self) -> httpx2.Client:
        import httpx2

        with self._lock:
            if self._made is None:
                basic = self.auth if isinstance(self.auth, Basic) else None
                self._made = httpx2.Client(
                    auth=(basic.username, basic.password.reveal()) if basic else None,
                    headers={"User-Agent": "rivven-connect", **self.headers, **auth_headers(self.auth)},
                    verify=(self.tls or Tls()).context(),
                    http2=self.http2,
                    timeout=self.timeout_s,
                    limits=httpx2.Limits(
                        max_connections=self.connections,
                        max_keepalive_connections=self.connections,
                        keepalive_expiry=self.keepalive_s,
                    ),
                    follow_redirects=False,  # a redirect may lead anywhere, and would take our credentials along
                )
            return self._made

    def close(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made.close()
                self._made = None

    def call(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Callable[[], Mapping[str, str]] = _no_headers,
    ) -> Answer:
        """The answer of the first try that has one. `headers` is asked for each try anew: a signature has a time."""
        import httpx2

        reason = ""
        for tried in range(1, self.tries.retries + 2):
            self._wait_for_my_turn()
            wait_s: float | None = None
            try:
                answer = self._try(method, url, params, content, headers())
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            except BaseException:
                self.breaker.tell(well=True)  # it did answer
                raise
            else:
                if 200 <= answer.status < 300:
                    self.breaker.tell(well=True)
                    return answer
                if answer.status < 500 and answer.status not in WORTH_ANOTHER_TRY:
                    self.breaker.tell(well=True)
                    raise Refused(method=method, url=bare(url), status=answer.status, excerpt=_excerpt(answer))
                reason = f"status {answer.status}: {_excerpt(answer)}"
                wait_s = retry_after_s(answer.headers, datetime.now(UTC))
            self.breaker.tell(well=False)
            if tried <= self.tries.retries:
                pause_s = self.tries.pause_s(tried, self.rng)
                self.sleep(pause_s if wait_s is None else max(wait_s, pause_s))
        raise Unanswered(method=method, url=bare(url), tries=self.tries.retries + 1, reason=reason)

    def _wait_for_my_turn(self) -> None:
        while (wait_s := self.breaker.wait_s()) > 0:
            self.sleep(min(wait_s, BREAKER_LOOK_S))  # another's success may close it sooner
        if (wait_s := self.pace.wait_s()) > 0:
            self.sleep(wait_s)

    def _try(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None,
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        import httpx2

        address = httpx2.URL(url)
        if params:
            address = address.copy_merge_params(dict(params))
        deadline_s = time.monotonic() + self.timeout_s
        with self._client().stream(method, address, content=content, headers=dict(headers)) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > self.bytes_max:
                    raise TooLong(url=bare(url), bytes_max=self.bytes_max, setting=self.bytes_setting)
                if time.monotonic() > deadline_s:  # the client's own limit is for each chunk, and a drip never ends
                    raise httpx2.ReadTimeout(f"the answer is not complete after {self.timeout_s:g} s")
            return Answer(response.status_code, response.headers, bytes(body))


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """What the server asks for in `Retry-After`, as a number or a date, within reason; None if it does not."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        wanted_s = float(text) if text.isdecimal() else (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(wanted_s, 0.0), RETRY_AFTER_S_MAX)


def bare(url: str) -> str:
    """An address for people: without its query, where keys like to hide."""
    return url.partition("?")[0]


def _excerpt(answer: Answer) -> str:
    text = " ".join(answer.body[: ANSWER_EXCERPT_CHARS * 4].decode("utf-8", "replace").split())
    if 300 <= answer.status < 400:
        text = f"it leads elsewhere, to {bare(answer.headers.get('location', ''))}; give that address"
    return text[:ANSWER_EXCERPT_CHARS] or "(no text)"
