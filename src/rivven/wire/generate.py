"""Turns `rivven.proto` into `rivven.desc` beside it. Run as a script, by whoever builds the package.

The result is the compiled schema as data, not as Python: generated Python demands a protobuf no older than the
protoc that wrote it, and registers its names for the whole process; data does neither.
It imports nothing of rivven, so that it runs before anything is built, and needs no compiler: grpcio-tools brings
its own protoc. A result that is newer than its source is left alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "rivven.proto"
RESULT = HERE / "rivven.desc"


def generate(*, anew: bool = False) -> bool:
    """Whether there was something to do."""
    if not anew and RESULT.exists() and RESULT.stat().st_mtime_ns > SOURCE.stat().st_mtime_ns:
        return False
    protoc = import_module("grpc_tools.protoc")  # only here: it is no part of a running rivven
    failed = protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={RESULT}", str(SOURCE)])
    if failed:
        raise SystemExit(f"protoc could not read {SOURCE}")
    return True


if __name__ == "__main__":
    generate(anew="--anew" in sys.argv)
