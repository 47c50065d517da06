"""A transform in Python: a function of yours that takes Arrow batches and gives Arrow batches."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rivven.connect.sdk import Finding, Settings, Transform, setting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _place(text: str) -> str | None:
    return None if PLACE.fullmatch(text) else f"{text!r} is no function; write it as module:name"


class PythonSettings(Settings):
    function: str = setting("The function, as module:name.", check=_place, example="shop.cleaning:normalize")
    schema: str | None = setting(
        "The columns that it gives, as a Spark DDL; without it they are those that it takes.", default=None
    )


class PythonTransform(Transform[PythonSettings]):
    name = "python"
    aliases = ("arrow",)
    title = "Python function"
    summary = "Calls a Python function with Arrow batches."
    docs = """
    The function takes a `pyarrow.RecordBatch` with all columns, those about the record (`__key`, `__topic` and so on)
    among them, and returns one; it may have more rows or fewer. It runs on the executors, so its module must be
    installed there, or be on their PYTHONPATH.

        def normalize(batch):
            return batch.set_column(1, "email", pc.utf8_lower(batch.column("email")))
    """
    example = """
    transforms:
      - type: python
        config: {function: "shop.cleaning:normalize"}
    """
    extra = "spark"
    modules = ("pyarrow",)

    def check(self) -> list[Finding]:
        try:
            function_at(self.settings.function)
        except (ImportError, AttributeError, TypeError) as error:
            return [Finding(str(error), field="function", fix="install its module, or put it on PYTHONPATH")]
        return []

    def apply(self, frame: DataFrame) -> DataFrame:
        place = self.settings.function
        function_at(place)
        schema = self.settings.schema or frame.schema

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            function = function_at(place)
            for batch in batches:
                yield function(batch)

        return frame.mapInArrow(run, schema)


def function_at(place: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    module, _, name = place.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise TypeError(f"{place} is {type(found).__name__}, not a function")
    made: Callable[[pa.RecordBatch], pa.RecordBatch] = found
    return made
