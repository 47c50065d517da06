"""Where the servers are and how patiently they are asked: one value that a client and its children share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rivven.wire import CAPABILITIES

from .failures import ConfigException

PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    client_id: str = "rivven-client"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    attempts_max: int = 5
    """How often one request is tried where trying again is safe."""
    backoff_ms: int = 50
    backoff_ms_max: int = 2_000
    breaker_failures: int = 5
    """After so many failures in a row an address is left alone for `breaker_open_ms`."""
    breaker_open_ms: int = 5_000
    idle_ms_max: int = 100_000
    """A connection that was idle for longer is not trusted: servers close theirs after two minutes."""
    capabilities: int = int(CAPABILITIES)
    """What this client owns up to in the handshake; 0 makes it speak the protocol's first version."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_ms", "request_timeout_ms", "attempts_max", "backoff_ms", "breaker_failures"):
            if getattr(self, name) < 1:
                raise ConfigException(reason=f"{name} must be at least 1, not {getattr(self, name)}")


def parse_addresses(text: str | Sequence[str]) -> tuple[Address, ...]:
    """`host:port`, several with commas between or as a list; the port may be left out.

    >>> parse_addresses("broker-1, [::1]:9094")
    (Address(host='broker-1', port=9092), Address(host='::1', port=9094))
    """
    parts = text.split(",") if isinstance(text, str) else list(text)
    addresses = tuple(_parse(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise ConfigException(reason="no address to connect to; give one as host:port")
    return addresses


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65_536)):
        raise ConfigException(reason=f"{text!r} is no address; use host:port")
    return Address(host, int(port) if port else PORT)
