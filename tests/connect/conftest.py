"""One broker and one Spark session for the tests that run pipelines, and one, which the tests of the format use too,
for the others that need them; most tests here need neither."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rivven.client import blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1] / "spark"))  # `from tables import running_broker`

pytest.register_assert_rewrite("rivven.connect.kit")

PIPELINES = ("test_http.py", "test_refusals.py", "test_run.py")
"""They take as long as all others together."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share a session run in one worker. First of all hooks: xdist's own looks for the mark and no more
    after that, and a mark that comes later costs another session in another worker."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and {"spark", "servers"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("pipelines" if item.path.name in PIPELINES else "spark"))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tables import running_broker

    with running_broker(tmp_path_factory.mktemp("broker") / "data") as address:
        yield address


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tables import TUNED

    from rivven.spark import start

    session = start("rivven tests", "local[2, 2]", TUNED)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def client(servers: str) -> Iterator[blocking.RivvenClient]:
    with blocking.connect(servers) as connected:
        yield connected
