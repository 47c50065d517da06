"""One broker and one Spark session for all tests of the format: a session takes seconds to start.

Modules that use it are marked `xdist_group("spark")`, so that they run in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from rivven.client import blocking
from rivven.spark import start

sys.path.append(str(Path(__file__).parent))  # `from tables import Topics`

from tables import TUNED, Topics, running_broker


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as address:
        yield address


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start("rivven tests", "local[2, 2]", TUNED)  # a task is tried twice
    yield session
    session.stop()


@pytest.fixture(scope="session")
def client(servers: str) -> Iterator[blocking.RivvenClient]:
    with blocking.connect(servers) as connected:
        yield connected


@pytest.fixture(scope="session")
def topics(client: blocking.RivvenClient, spark: SparkSession, servers: str) -> Topics:
    return Topics(client, spark, servers)
