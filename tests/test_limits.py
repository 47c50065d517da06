"""The maxima: each one holds against the others, and nothing is unlimited."""

from __future__ import annotations

import importlib

from rivven import limits
from rivven.log.wal import ENTRY, GROUP
from rivven.record import HEADER_BYTES


def test_the_maxima_agree_with_one_another():
    importlib.reload(limits)


def test_every_limit_is_a_positive_number():
    found = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert found
    assert all(isinstance(value, int) and value > 0 for value in found.values())


def test_any_batch_fits_into_one_write_ahead_file():
    framed_bytes = limits.BATCH_BYTES_MAX + ENTRY.size + GROUP.size
    assert limits.WAL_HEADER_BYTES + framed_bytes <= limits.WAL_FILE_BYTES


def test_a_batch_header_is_as_long_as_the_format_says():
    assert limits.BATCH_HEADER_BYTES == HEADER_BYTES == 61


def test_what_the_index_holds_in_32_bits_fits():
    assert limits.SEGMENT_BYTES_MAX < 2**32
    assert limits.OFFSET_DELTA_MAX < 2**32
