"""Records and the batches that carry them: bytes in, values out, and back. A pure and a native twin do the loops."""

from .batch import complete, decode, encode, number, patch, rewrite, stamp, validate, walk
from .columnar import batches_of, from_arrow, pieces, to_arrow
from .compression import compress, decompress
from .header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    Record,
)
from .marker import decode_marker, encode_marker
from .partitioner import partition_for_key
from .pure import NewRecord
from .pure_builder import RECORD_OVERHEAD_BYTES, Built
from .twin import NATIVE, builder, kernel

ATOMIC = builder.ATOMIC
BatchBuilder = builder.BatchBuilder
Sorter = builder.Sorter

complete_plain = kernel.complete_plain
crc32c = kernel.crc32c
fit = kernel.fit
murmur2 = kernel.murmur2
parse_header = kernel.parse_header
plain_run = kernel.plain_run
scan = kernel.scan
seek = kernel.seek

__all__ = [
    "ATOMIC",
    "CODEC_MASK",
    "CONTROL",
    "DELETE_HORIZON",
    "HEADER_BYTES",
    "LOG_APPEND_TIME",
    "NATIVE",
    "PREFIX_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "TRANSACTIONAL",
    "BatchBuilder",
    "BatchHeader",
    "Built",
    "Codec",
    "NewRecord",
    "Record",
    "Sorter",
    "batches_of",
    "complete",
    "complete_plain",
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
    "number",
    "parse_header",
    "partition_for_key",
    "patch",
    "pieces",
    "plain_run",
    "rewrite",
    "scan",
    "seek",
    "stamp",
    "to_arrow",
    "validate",
    "walk",
]
