"""The four compressions a batch may have, each bounded: what unpacks to more than asked for is refused, not built.

Invariant: whatever the bytes, `decompress` returns them unpacked or raises `Malformed`, and never holds much more
than `bytes_max` while it finds out.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame

from rivven.errors import Malformed, UnsupportedCodec
from rivven.ports import Buffer

from .header import Codec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

XERIAL_MAGIC = b"\x82SNAPPY\x00"
"""How Java's snappy streams open: this, two 32-bit versions, then blocks behind their 32-bit lengths."""
XERIAL_HEADER_BYTES = 16
SNAPPY_RATIO_MAX = 22
"""Snappy's densest element makes 64 bytes of 3, so a longer claim is a lie, found before room is made for it."""
GZIP_WBITS = 31


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Pack `data` as clients of every language read it. `level` means what it means to the codec; snappy has none."""
    packer = _PACKERS.get(codec)
    if packer is None:
        raise UnsupportedCodec(codec=codec)
    return packer(data, level)


def decompress(codec: Codec, data: Buffer, bytes_max: int) -> Buffer:
    unpacker = _UNPACKERS.get(codec)
    if unpacker is None:
        raise UnsupportedCodec(codec=codec)
    return unpacker(data, bytes_max)


def _same(data: Buffer, level: int | None) -> bytes:  # noqa: ARG001
    return bytes(data)


def _bounded(data: Buffer, bytes_max: int) -> Buffer:
    if len(data) > bytes_max:
        raise _bomb(Codec.NONE, bytes_max)
    return data


def _gzip(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, GZIP_WBITS)
    return packer.compress(data) + packer.flush()


def _gunzip(data: Buffer, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(GZIP_WBITS)
    try:
        unpacked = unpacker.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _bad(Codec.GZIP, str(error)) from None
    return _whole(Codec.GZIP, unpacked, bytes_max, ended=unpacker.eof, unused=unpacker.unused_data)


def _lz4(data: Buffer, level: int | None) -> bytes:
    # Java reads independent blocks alone.
    packed: bytes = lz4.frame.compress(data, level or 0, block_linked=False, store_size=False)
    return packed


def _unlz4(data: Buffer, bytes_max: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        unpacked: bytes = unpacker.decompress(data, max_length=bytes_max + 1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise _bad(Codec.LZ4, str(error)) from None
    return _whole(Codec.LZ4, unpacked, bytes_max, ended=unpacker.eof, unused=unpacker.unused_data or b"")


def _zstd(data: Buffer, level: int | None) -> bytes:
    return zstd.compress(data, level)


def _unzstd(data: Buffer, bytes_max: int) -> bytes:
    unpacker = zstd.ZstdDecompressor()
    try:
        unpacked = unpacker.decompress(data, bytes_max + 1)
    except zstd.ZstdError as error:
        raise _bad(Codec.ZSTD, str(error)) from None
    return _whole(Codec.ZSTD, unpacked, bytes_max, ended=unpacker.eof, unused=unpacker.unused_data)


def _snappy(data: Buffer, level: int | None) -> bytes:  # noqa: ARG001
    return bytes(cramjam.snappy.compress_raw(data))


def _unsnappy(data: Buffer, bytes_max: int) -> Buffer:
    """Raw as librdkafka writes it, or in the blocks that Java writes."""
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _unsnappy_raw(data, bytes_max)
    unpacked = bytearray()
    for block in _xerial_blocks(memoryview(data)):
        unpacked += _unsnappy_raw(block, bytes_max - len(unpacked))
    return unpacked


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = XERIAL_HEADER_BYTES
    if len(data) < at:
        raise _bad(Codec.SNAPPY, "a stream header cut short")
    while at < len(data):
        block_bytes = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if not 0 < block_bytes <= len(data) - at:
            raise _bad(Codec.SNAPPY, f"a block of {block_bytes} bytes where {len(data) - at} are left")
        yield data[at : at + block_bytes]
        at += block_bytes


def _unsnappy_raw(data: Buffer, bytes_max: int) -> Buffer:
    claimed = _snappy_claim(data)
    if claimed > bytes_max:
        raise _bomb(Codec.SNAPPY, bytes_max)
    if claimed > SNAPPY_RATIO_MAX * len(data):
        raise _bad(Codec.SNAPPY, f"{len(data)} bytes claim to hold {claimed}")
    try:
        unpacked = memoryview(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _bad(Codec.SNAPPY, str(error)) from None
    if len(unpacked) != claimed:
        raise _bad(Codec.SNAPPY, f"{len(unpacked)} bytes where {claimed} were claimed")
    return unpacked


def _snappy_claim(data: Buffer) -> int:
    """The length that a raw block opens with: an unsigned varint of 32 bits."""
    claimed = 0
    for place, byte in enumerate(bytes(data[:5])):
        claimed |= (byte & 0x7F) << 7 * place
        if byte < 0x80 and claimed < 2**32:
            return claimed
    raise _bad(Codec.SNAPPY, "no length at the start")


def _whole(codec: Codec, unpacked: bytes, bytes_max: int, *, ended: bool, unused: bytes) -> bytes:
    if len(unpacked) > bytes_max:
        raise _bomb(codec, bytes_max)
    if not ended:
        raise _bad(codec, "cut short")
    if unused:
        raise _bad(codec, f"{len(unused)} bytes after its end")
    return unpacked


def _bomb(codec: Codec, bytes_max: int) -> Malformed:
    return _bad(codec, f"unpacks to more than {bytes_max} bytes")


def _bad(codec: Codec, reason: str) -> Malformed:
    return Malformed(what=f"{codec.name.lower()} data", reason=reason)


_PACKERS: dict[Codec, Callable[[Buffer, int | None], bytes]] = {
    Codec.NONE: _same,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_UNPACKERS: dict[Codec, Callable[[Buffer, int], Buffer]] = {
    Codec.NONE: _bounded,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
