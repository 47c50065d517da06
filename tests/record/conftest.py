"""Both twins behind one name: a test that takes `record` runs once on the package as built, once on a pure copy."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import rivven.record

VECTORS = Path(__file__).parent.parent / "vectors"


def pure_copy() -> ModuleType:
    """The whole package imported a second time under another name, as `RIVVEN_PURE=1` would have it."""
    name = "rivven_record_pure"
    if name in sys.modules:
        return sys.modules[name]
    place = Path(rivven.record.__file__).parent
    spec = importlib.util.spec_from_file_location(
        name, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    copy = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = os.environ.get("RIVVEN_PURE")
    os.environ["RIVVEN_PURE"] = "1"
    try:
        spec.loader.exec_module(copy)
    finally:
        if before is None:
            del os.environ["RIVVEN_PURE"]
        else:
            os.environ["RIVVEN_PURE"] = before
    return copy


@pytest.fixture(scope="session")
def pure() -> ModuleType:
    copy = pure_copy()
    assert not copy.NATIVE
    return copy


@pytest.fixture(scope="session")
def native() -> ModuleType:
    if not rivven.record.NATIVE:
        pytest.skip(
            "NO NATIVE TWIN: build it with `python setup.py build_ext --inplace`; half the tests are left out"
        )
    return rivven.record


@pytest.fixture(scope="session", params=["pure", "native"])
def record(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.getfixturevalue(request.param)
    return module


@pytest.fixture(scope="session")
def reseal() -> Callable[[bytearray], bytearray]:
    """Make length and CRC true again after the batch was tampered with, so that the inner parser is reached."""

    def act(batch: bytearray) -> bytearray:
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[17:21] = rivven.record.crc32c(bytes(batch[21:])).to_bytes(4, "big")
        return batch

    return act
