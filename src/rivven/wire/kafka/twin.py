"""Which functions read and write Produce and Fetch: the native ones where they were built, else the made ones.

`RIVVEN_PURE=1` asks for the made ones, as it does for the twins of `record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rivven.record import NATIVE

if TYPE_CHECKING:
    from .codec import Reader, Writer

PRODUCE, FETCH = 0, 1


def readers(key: int, made: Mapping[int, Reader]) -> dict[int, Reader]:
    """What reads the requests of an api, by version."""
    fast = native(key)
    if fast is None:
        return dict(made)
    read = fast.produce_reader if key == PRODUCE else fast.fetch_reader
    return {version: read(version, one) for version, one in made.items()}


def writers(key: int, made: Mapping[int, Writer]) -> dict[int, Writer]:
    """What writes the responses of an api, by version."""
    fast = native(key)
    if fast is None:
        return dict(made)
    write = fast.produce_writer if key == PRODUCE else fast.fetch_writer
    return {version: write(version, one) for version, one in made.items()}


def native(key: int) -> Any:
    """The native module, for an api that it has; None where it was not built or not wanted."""
    if not NATIVE or key not in (PRODUCE, FETCH):
        return None
    try:
        return import_module("._fast", __package__)
    except ImportError:
        return None
