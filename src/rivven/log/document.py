"""A small JSON document on disk, replaced atomically and checked by a CRC.

The file is `{"version": 1, "crc32c": "0a1b2c3d", "body": {...}}`; the CRC covers the bytes of `body` as they
stand. A second copy, `<name>.bak`, is written after the first, against damage.
Invariant: at any moment, crash or not, the name holds a whole document, the old one or the new one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from rivven.ports import Disk
from rivven.record import crc32c

T = TypeVar("T")

VERSION = 1


class _Envelope(msgspec.Struct):
    version: int
    crc32c: str
    body: msgspec.Raw


class Document(Generic[T]):
    """One named document whose body is a msgspec type."""

    def __init__(self, disk: Disk, path: str, body_type: type[T]) -> None:
        self._disk = disk
        self._path = path
        self._type = body_type

    def load(self) -> tuple[T | None, str]:
        """The body and where it came from: "file", "backup", "missing" or "damaged"; the last two without one."""
        if (body := self._parse(self._path)) is not None:
            return body, "file"
        if (body := self._parse(self._path + ".bak")) is not None:
            return body, "backup"
        return None, "damaged" if self._disk.exists(self._path) else "missing"

    def _parse(self, path: str) -> T | None:
        try:
            data = read_whole(self._disk, path)
        except FileNotFoundError:
            return None
        return unseal(data, self._type)

    def save(self, body: T) -> None:
        """Replace the document. When this returns the new one is durable."""
        directory, data = self._path.rpartition("/")[0], seal(body)
        write_whole(self._disk, self._path, data)
        self._disk.sync_dir(directory)
        with suppress(OSError):  # the document is safe; a copy of the one before is better than none
            write_whole(self._disk, self._path + ".bak", data)


def seal(body: object) -> bytes:
    raw = msgspec.json.encode(body)
    return msgspec.json.encode(_Envelope(VERSION, f"{crc32c(raw):08x}", msgspec.Raw(raw))) + b"\n"


def unseal(data: bytes, body_type: type[T]) -> T | None:
    """The body, or None for anything that is not a whole document of this type."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.version != VERSION or envelope.crc32c != f"{crc32c(bytes(envelope.body)):08x}":
            return None
        return msgspec.json.decode(envelope.body, type=body_type)
    except (msgspec.DecodeError, UnicodeDecodeError):  # text that is not UTF-8 is told by the latter
        return None


def read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(file.length(), 0)
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a file by way of a temporary one. Without `sync` a crash may leave it missing, old or torn."""
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(data, 0)
        if sync:
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
