"""How a producer gathers and sends: the options as callers give them, and as the outbox goes by them.

Invariant: a `Sending` makes sense, since whatever does not is refused when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from rivven.limits import KIB, MIB
from rivven.record import Codec

from .failures import ConfigException

BATCH_BYTES_MAX = 1_000_000
"""Just below the largest batch that a topic takes unless it was configured."""
BUFFER_BYTES = 32 * MIB
REQUEST_BYTES_MAX = 1 * MIB
"""One large batch, or many small ones: while the server writes one request the next is on its way."""
DELIVERY_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a producer gathers and sends."""

    batch_bytes: int = 16 * KIB
    linger_ms: int = 5
    batch_bytes_max: int = BATCH_BYTES_MAX
    buffer_bytes: int = BUFFER_BYTES
    request_bytes_max: int = REQUEST_BYTES_MAX
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    codec: Codec = Codec.NONE
    level: int | None = None
    acks: int = -1
    idempotent: bool = True
    """Number what is sent, so that the server stores it once however often it comes. Without acknowledgements there
    is nothing to send again, and nothing to number."""

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "batch_bytes_max", "buffer_bytes", "request_bytes_max", "delivery_timeout_ms"):
            if getattr(self, name) < 1:
                raise ConfigException(reason=f"{name} must be at least 1, not {getattr(self, name)}")
        if self.linger_ms < 0 or self.acks not in (-1, 0, 1):
            raise ConfigException(reason="linger_ms is 0 or more, and acks -1, 0 or 1")


class SendOptions(TypedDict, total=False):
    """How a producer gathers and sends; see `RivvenClient.producer`."""

    batch_size: int
    linger_ms: int
    compression: str
    compression_level: int | None
    acks: int
    buffer_bytes: int
    batch_bytes_max: int
    request_bytes_max: int
    delivery_timeout_ms: int
    idempotent: bool


def sending(
    batch_size: int = 16384,
    linger_ms: int = 5,
    compression: str = "none",
    compression_level: int | None = None,
    acks: int = -1,
    buffer_bytes: int = BUFFER_BYTES,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    request_bytes_max: int = REQUEST_BYTES_MAX,
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    idempotent: bool = True,
) -> Sending:
    return Sending(
        batch_bytes=batch_size,
        linger_ms=linger_ms,
        batch_bytes_max=batch_bytes_max,
        buffer_bytes=buffer_bytes,
        request_bytes_max=request_bytes_max,
        delivery_timeout_ms=delivery_timeout_ms,
        codec=_codec(compression),
        level=compression_level,
        acks=acks,
        idempotent=idempotent,
    )


def _codec(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise ConfigException(reason=f"no compression {name!r}; there are {names}") from None
