"""Which twin runs: the native one where it was built, the pure one otherwise or when `RIVVEN_PURE=1` asks for it.

Every other module of this package takes its byte loops from here, so both twins run under the same logic.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from . import pure as kernel
from . import pure_builder as builder
from . import pure_columns as columns

NATIVE = False

if not TYPE_CHECKING and os.environ.get("RIVVEN_PURE", "0") in ("", "0"):
    try:
        from . import _native, _native_builder, _native_columns
    except ImportError:
        logging.getLogger("rivven").warning("running on the pure twin: slower; install a C compiler and reinstall")
    else:
        kernel, builder, columns, NATIVE = _native, _native_builder, _native_columns, True

__all__ = ["NATIVE", "builder", "columns", "kernel"]
