"""The conformance kit: what every connector must keep to, as tests that any package can run.

Subclass `SourceKit`, `SinkKit` or `TransformKit` in a test file, name the connector and settings that work, and
pytest does the rest. Nothing here needs Spark.

    class TestWeather(SourceKit):
        connector = Weather
        settings = {"city": "Berlin"}
        bad_settings = {"city": ""}
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .sdk import (
    ArrowSink,
    ArrowSource,
    Batch,
    Connector,
    Finding,
    Position,
    RowRefused,
    Sink,
    Source,
    Task,
    Transform,
)
from .settings import HIDDEN, BadSettings, Settings, fields_of, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

PROBE = "kit-probe-secret"


class ConnectorKit:
    """What all three kinds have in common."""

    connector: ClassVar[type[Connector[Any]]]
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that work."""
    bad_settings: ClassVar[Mapping[str, Any] | None] = None
    """Settings of which exactly one is wrong in itself; None if nothing can be."""

    def make_settings(self, home: Path) -> dict[str, Any]:  # noqa: ARG002
        """Settings that work, where they name a place: `home` is an empty directory."""
        return dict(self.settings)

    def make(self, home: Path) -> Any:
        return self.connector.configured(self.make_settings(home))

    def test_it_says_who_it_is(self) -> None:
        made = self.connector
        assert made.name == made.name.lower().strip(), "a name is lower case"
        assert made.title, "it has a title"
        assert made.summary.endswith("."), "its summary is a sentence"
        assert made.settings_type is not Settings, "it has settings of its own"
        assert made.name not in made.aliases, "an alias is another name"

    def test_every_setting_is_described(self) -> None:
        for field in fields_of(self.connector.settings_type):
            assert field.doc.strip().endswith((".", ",", ":")), f"{field.key}: its text is a sentence"

    def test_the_schema_is_complete(self) -> None:
        schema = schema_of(self.connector.settings_type)
        assert set(schema["properties"]) == {field.key for field in fields_of(self.connector.settings_type)}
        assert self.connector.spec()["settings"] == schema

    def test_an_unknown_setting_is_named_with_the_nearest(self, tmp_path: Path) -> None:
        good = self.make_settings(tmp_path)
        known = fields_of(self.connector.settings_type)[0].key
        wrong = f"{known}x"
        text = self._refused({**good, wrong: 1})
        assert repr(wrong) in text
        assert known in text

    def test_a_missing_setting_is_named(self, tmp_path: Path) -> None:
        good = self.make_settings(tmp_path)
        for field in fields_of(self.connector.settings_type):
            if field.required:
                text = self._refused({name: value for name, value in good.items() if name != field.key})
                assert field.key in text, "the error names the field"

    def test_a_bad_setting_is_named(self, tmp_path: Path) -> None:
        if self.bad_settings is None:
            return
        good = self.make_settings(tmp_path)
        text = self._refused({**good, **self.bad_settings})
        assert any(name in text for name in self.bad_settings), f"the error names the field: {text}"

    def _refused(self, values: Mapping[str, Any]) -> str:
        try:
            self.connector.configured(values)
        except BadSettings as error:
            return str(error)
        raise AssertionError(f"{dict(values)} should have been refused")

    def test_it_can_be_pickled(self, tmp_path: Path) -> None:
        made = self.make(tmp_path)
        again = pickle.loads(pickle.dumps(made))
        assert again.settings == made.settings

    def test_secrets_are_not_shown(self, tmp_path: Path) -> None:
        good = self.make_settings(tmp_path)
        for field in fields_of(self.connector.settings_type):
            if not field.secret or "a secret text" not in field.type_text:
                continue
            shown, plain = self._shown({**good, field.key: PROBE})
            assert PROBE not in shown, f"{field.key} is shown"
            assert plain.get(field.key, HIDDEN) == HIDDEN

    def _shown(self, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """What one sees of a connector with these settings, or of the error about them."""
        try:
            made = self.connector.configured(values)
        except BadSettings as error:
            return str(error), {}
        return repr(made), made.settings.as_dict()

    def test_check_answers_with_findings(self, tmp_path: Path) -> None:
        found = self.make(tmp_path).check()
        assert all(isinstance(each, Finding) for each in found)
        errors = [str(each) for each in found if each.level == "error"]
        assert not errors, f"settings that work have errors: {errors}"


class SourceKit(ConnectorKit):
    """For a source; most of it for an ArrowSource."""

    rows_expected: ClassVar[int | None] = None
    """How many records the settings give, where that is known."""

    def test_it_is_a_source(self) -> None:
        assert issubclass(self.connector, Source)
        assert self.connector.delivery in ("exactly_once", "at_least_once")

    def test_discover_gives_columns(self, tmp_path: Path) -> None:
        for stream in self.make(tmp_path).discover():
            assert stream.name
            assert stream.schema.names

    def _range(self, source: ArrowSource[Any], rows: int) -> tuple[Position, Position]:
        start = source.start_position()
        return start, source.advance(start, source.newest_position(), rows)

    def test_a_position_is_json(self, tmp_path: Path) -> None:
        import json

        source = self.make(tmp_path)
        if isinstance(source, ArrowSource):
            for position in self._range(source, 1000):
                assert json.loads(json.dumps(position)) == position

    def test_the_same_range_gives_the_same_records(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if not isinstance(source, ArrowSource) or source.delivery != "exactly_once":
            return
        start, end = self._range(source, 1000)
        first = rows_of(source, start, end)
        again = rows_of(pickle.loads(pickle.dumps(source)), dict(start), dict(end))
        assert first == again
        assert first, "there is something to read"
        source.close()

    def test_two_steps_give_what_one_gives(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if not isinstance(source, ArrowSource) or source.delivery != "exactly_once":
            return
        start, end = self._range(source, 1000)
        middle = source.advance(start, end, 10)
        whole = rows_of(source, start, end)
        assert sorted(map(str, rows_of(source, start, middle) + rows_of(source, middle, end))) == sorted(
            map(str, whole)
        )
        if self.rows_expected is not None:
            assert len(whole) == self.rows_expected
        source.close()

    def test_nothing_stands_between_a_position_and_itself(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if isinstance(source, ArrowSource):
            start, _ = self._range(source, 1000)
            assert rows_of(source, start, start) == []
            source.close()

    def test_batches_have_the_schema(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if not isinstance(source, ArrowSource):
            return
        start, end = self._range(source, 1000)
        wanted = source.schema()
        for part in source.plan(start, end):
            for batch in source.read(part):
                assert batch.schema.names == wanted.names
                assert batch.schema.types == wanted.types
        source.close()

    def test_parts_can_be_pickled(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if isinstance(source, ArrowSource):
            parts = list(source.plan(*self._range(source, 1000)))
            assert pickle.loads(pickle.dumps(parts)) == parts
            source.close()


def rows_of(source: ArrowSource[Any], start: Position, end: Position) -> list[dict[str, Any]]:
    """All records between two positions."""
    if start == end:
        return []
    return [row for part in source.plan(start, end) for batch in source.read(part) for row in batch.to_pylist()]


class SinkKit(ConnectorKit):
    """For a sink; most of it for an ArrowSink that says it is exactly once."""

    query: ClassVar[str] = "11111111-2222-3333-4444-555555555555"

    def written(self, home: Path) -> list[dict[str, Any]]:
        """The records that are visible on the other side, as dicts; None values may be left out."""
        raise NotImplementedError

    def sample(self, first: int, count: int) -> pa.RecordBatch:
        """Records to write; `id` tells them apart."""
        import pyarrow as pa

        ids = list(range(first, first + count))
        return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": [f"name {each}" for each in ids]})

    def hopeless(self) -> pa.RecordBatch | None:
        """Records that the sink refuses one and all, in the columns of `sample`; None if it takes whatever comes."""
        return None

    def test_it_is_a_sink(self) -> None:
        assert issubclass(self.connector, Sink)
        assert self.connector.delivery in ("exactly_once", "at_least_once")

    def _sink(self, home: Path) -> ArrowSink[Any] | None:
        sink = self.make(home)
        if not isinstance(sink, ArrowSink):
            return None
        sink.prepare(self.sample(0, 1).schema)
        return sink

    def _write(self, sink: ArrowSink[Any], batch: Batch, attempt: str, *parts: pa.RecordBatch) -> list[Any]:
        receipts = []
        for place, part in enumerate(parts):
            copy: ArrowSink[Any] = pickle.loads(pickle.dumps(sink))
            receipts.append(copy.write(iter([part]), Task(batch, place, f"{attempt}{place}")))
            copy.close()
        again: list[Any] = pickle.loads(pickle.dumps(receipts))
        return [receipt for receipt in again if receipt is not None]

    def _write_with(self, sink: ArrowSink[Any], batch: Batch, attempt: str) -> tuple[list[Any], list[Any]]:
        """Write records among which are hopeless ones; the receipts, and what was refused with its reason."""
        import pyarrow as pa

        bad = self.hopeless()
        assert bad is not None, "the caller has looked"
        mixed = pa.Table.from_batches([self.sample(0, 2), bad, self.sample(2, 2)]).combine_chunks().to_batches()
        refused: list[tuple[pa.RecordBatch, str]] = []
        copy: ArrowSink[Any] = pickle.loads(pickle.dumps(sink))
        task = Task(batch, 0, attempt, lambda rows, reason: refused.append((rows, reason)))
        receipt = copy.write(iter(mixed), task)
        copy.close()
        return [] if receipt is None else [receipt], refused

    def _ids(self, home: Path) -> list[int]:
        return sorted(int(row["id"]) for row in self.written(home))

    def test_what_is_committed_is_visible(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None:
            return
        batch = Batch(self.query, 0)
        receipts = self._write(sink, batch, "a", self.sample(0, 5), self.sample(5, 5))
        if receipts:
            sink.commit(receipts, batch)
        sink.close()
        assert self._ids(tmp_path) == list(range(10))

    def test_what_is_not_committed_is_not_visible(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        self._write(sink, Batch(self.query, 0), "a", self.sample(0, 5))
        assert self._ids(tmp_path) == []

    def test_a_batch_that_comes_again_is_there_once(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        batch = Batch(self.query, 0)
        for attempt in ("a", "b"):  # as after a crash between our commit and Spark's
            sink.commit(self._write(sink, batch, attempt, self.sample(0, 5)), batch)
        assert self._ids(tmp_path) == list(range(5))

    def test_an_attempt_that_lost_leaves_nothing(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        batch = Batch(self.query, 0)
        self._write(sink, batch, "lost", self.sample(0, 5))
        sink.commit(self._write(sink, batch, "won", self.sample(0, 5)), batch)
        assert self._ids(tmp_path) == list(range(5))

    def test_batches_add_up(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        for number in range(3):
            batch = Batch(self.query, number)
            sink.commit(self._write(sink, batch, "a", self.sample(number * 5, 5)), batch)
        assert self._ids(tmp_path) == list(range(15))

    def test_a_new_query_begins_at_batch_zero_and_is_not_taken_for_the_old(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        for number, query in enumerate((self.query, self.query.replace("1", "9"))):
            batch = Batch(query, 0)
            sink.commit(self._write(sink, batch, "a", self.sample(number * 5, 5)), batch)
        assert self._ids(tmp_path) == list(range(10))

    def test_an_aborted_batch_leaves_nothing_and_can_come_again(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None or sink.delivery != "exactly_once":
            return
        batch = Batch(self.query, 0)
        sink.abort(self._write(sink, batch, "a", self.sample(0, 5)), batch)
        assert self._ids(tmp_path) == []
        sink.commit(self._write(sink, batch, "b", self.sample(0, 5)), batch)
        assert self._ids(tmp_path) == list(range(5))

    def test_hopeless_rows_are_refused_alone_and_again(self, tmp_path: Path) -> None:
        sink, bad = self._sink(tmp_path), self.hopeless()
        if sink is None or bad is None:
            return
        batch = Batch(self.query, 0)
        for attempt in ("a", "b"):  # as after a crash: the letters of the first attempt may be lost
            receipts, refused = self._write_with(sink, batch, attempt)
            assert sum(rows.num_rows for rows, _ in refused) == bad.num_rows, "each bad row is refused, and no other"
            assert all(set(bad.schema.names) <= set(rows.schema.names) for rows, _ in refused), "with its columns"
            assert all(reason for _, reason in refused), "with a reason"
            if receipts:
                sink.commit(receipts, batch)
        sink.close()
        found = self._ids(tmp_path)
        assert sorted(set(found)) == [0, 1, 2, 3], "the others go through"
        assert len(found) == 4 or sink.delivery == "at_least_once"

    def test_without_a_place_for_it_a_hopeless_row_ends_the_pipeline(self, tmp_path: Path) -> None:
        sink, bad = self._sink(tmp_path), self.hopeless()
        if sink is None or bad is None:
            return
        with suppress(RowRefused), closing(sink):
            sink.write(iter([bad]), Task(Batch(self.query, 0), 0, "a"))
            raise AssertionError("the sink has swallowed a row")

    def test_a_task_without_records_is_well(self, tmp_path: Path) -> None:
        sink = self._sink(tmp_path)
        if sink is None:
            return
        empty: Iterator[pa.RecordBatch] = iter([])
        sink.write(empty, Task(Batch(self.query, 0), 0, "a"))


class TransformKit(ConnectorKit):
    """For a transform."""

    def test_it_is_a_transform(self) -> None:
        assert issubclass(self.connector, Transform)
