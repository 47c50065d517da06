"""Records and the batches that carry them: bytes in, values out, and back. A pure and a native twin do the loops."""

from .batch import decode, encode, patch, rewrite, stamp, validate, walk
from .columnar import from_arrow, to_arrow
from .compression import compress, decompress
from .header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    Record,
)
from .marker import decode_marker, encode_marker
from .partitioner import partition_for_key
from .pure import NewRecord
from .twin import NATIVE, kernel

crc32c = kernel.crc32c
fit = kernel.fit
murmur2 = kernel.murmur2
parse_header = kernel.parse_header
scan = kernel.scan
seek = kernel.seek

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "DELETE_HORIZON",
    "HEADER_BYTES",
    "LOG_APPEND_TIME",
    "NATIVE",
    "TRANSACTIONAL",
    "BatchHeader",
    "Codec",
    "NewRecord",
    "Record",
    "compress",
    "crc32c",
    "decode",
    "decode_marker",
    "decompress",
    "encode",
    "encode_marker",
    "fit",
    "from_arrow",
    "murmur2",
    "parse_header",
    "partition_for_key",
    "patch",
    "rewrite",
    "scan",
    "seek",
    "stamp",
    "to_arrow",
    "validate",
    "walk",
]
