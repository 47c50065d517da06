"""docs/guides/spark.md does what it shows: its blocks run from top to bottom."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tables import running_broker

pytestmark = pytest.mark.xdist_group("spark")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "spark.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_block_prints_what_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    blocks = [*FENCE.findall(PAGE.read_text()), ("", "")]
    names: dict[str, object] = {}
    ran = 0
    with running_broker(tmp_path / "data") as address:
        for (language, text), (kind, shown) in pairwise(blocks):
            if language != "python":
                continue
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(text.replace("localhost:9092", address), str(PAGE), "exec"), names)
            if printed.getvalue():
                assert kind == "text", text
                assert printed.getvalue() == shown, text
            ran += 1
        names["client"].close()  # type: ignore[attr-defined]
    assert ran > 5
    assert names["spark"] is spark, "a session that runs is taken"
    spark.catalog.dropTempView("orders")
