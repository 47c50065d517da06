"""Rows that a sink refuses: the letters that tell of them, and pipelines that go on, or end with a clear word."""

from __future__ import annotations

import base64
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rivven.client import blocking
from rivven.connect import refusals
from rivven.connect.refusals import Letters, RowRefused, place_of, row_json
from rivven.connect.sdk import Batch, Task

sys.path.append(str(Path(__file__).parent))  # `from pipelines import run_once`

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENVELOPE = {"original_topic", "connector_name", "payload_b64", "error", "retry_count", "timestamp"}


def rows(*ids: int, **columns: Any) -> pa.RecordBatch:
    about = {
        "__topic": pa.array(["orders"] * len(ids)),
        "__partition": pa.array([2] * len(ids), pa.int32()),
        "__offset": pa.array([100 + each for each in ids], pa.int64()),
        "__key": pa.array([b"k%d" % each for each in ids]),
    }
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), **columns, **about})


def letters_of(letters: Letters) -> list[tuple[bytes | None, dict[str, Any]]]:
    found = [row for batch in letters.batches() for row in batch.to_pylist()]
    assert {row["topic"] for row in found} <= {"dead"}
    return [(row["key"], json.loads(row["value"])) for row in found]


def test_a_letter_has_the_envelope_the_row_and_where_it_was() -> None:
    letters = Letters("archive", "dead")
    letters.refuse(rows(1, 2), "too blue")
    (key, first), (_, second) = letters_of(letters)
    letters.close()
    assert set(first) == ENVELOPE
    assert key == b"k1"
    assert json.loads(base64.b64decode(first["payload_b64"])) == {"id": 1}, "without what speaks about the record"
    assert (first["original_topic"], first["connector_name"], first["retry_count"]) == ("orders", "archive", 0)
    assert second["error"] == "the record at offset 102 of partition 2 of topic orders: too blue"
    assert datetime.fromisoformat(first["timestamp"]).tzinfo is not None


def test_letters_beyond_memory_go_to_disk_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MEMORY_BYTES_MAX", 1000)
    letters = Letters("archive", "dead")
    for number in range(2500):
        letters.refuse(rows(number), "no")
    assert letters.count == 2500
    assert letters._file._rolled, "it is on disk"
    found = [json.loads(base64.b64decode(letter["payload_b64"]))["id"] for _, letter in letters_of(letters)]
    letters.close()
    assert found == list(range(2500))


def test_a_letter_fits_into_a_topic_however_large_the_row_and_its_reason_are() -> None:
    letters = Letters("archive", "dead")
    letters.refuse(rows(1, text=pa.array(["ä" * (5 << 20)])), "r" * 100_000)
    ((_, letter),) = letters_of(letters)
    (batch,) = letters.batches()
    letters.close()
    assert len(batch.column("value")[0].as_py()) < (1 << 20) - 256
    assert len(base64.b64decode(letter["payload_b64"])) == refusals.PAYLOAD_BYTES_MAX
    assert letter["error"].endswith("... (the payload is cut to 737,280 bytes)")


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([b"\xff\x00"], pa.binary()).view(pa.string()), "/wA="),
        (pa.array([2**62], pa.timestamp("us")), str(2**62)),
        (pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())), {"a": 1, "b": 2}),
        (pa.array([float("nan")]), None),
        (pa.array([{"deep": [1, None]}]), {"deep": [1, None]}),
        (pa.array([None], pa.string()), None),
    ],
)
def test_a_row_that_nobody_could_write_is_still_shown(column: pa.Array, shown: Any) -> None:
    assert json.loads(row_json(pa.RecordBatch.from_pydict({"x": column}))) == {"x": shown}


def test_without_a_topic_for_letters_the_row_is_named() -> None:
    task = Task(Batch("q", 0), 0, "a")
    task.refuse(rows(), "nothing is no reason to stop")
    with pytest.raises(RowRefused) as failed:
        task.refuse(rows(7, 8), "too blue")
    assert str(failed.value) == (
        "the record at offset 107 of partition 2 of topic orders (and 1 more with it) cannot be written: too blue; "
        "mend it before it comes to this sink, or give the sink or pipeline a dead_letter_topic to go on without it"
    )
    assert place_of(pa.RecordBatch.from_pydict({"id": [1]})) == "a record"


def test_what_could_not_be_read_becomes_a_letter_with_its_text_and_the_rest_goes_on() -> None:
    letters = Letters("copy", "dead")
    texts = pa.array([None, b"not \xff json", b"{"], pa.binary()).view(pa.string())
    mixed = pa.RecordBatch.from_pydict({"id": pa.array([1, None, None]), "__corrupt": texts})
    plain = pa.RecordBatch.from_pydict({"id": [2]})
    found = list(letters.readable(iter([mixed, mixed.slice(1), plain])))
    told = [letter for _, letter in letters_of(letters)]
    letters.close()
    assert [batch.to_pydict() for batch in found] == [{"id": [1]}, {"id": [2]}]
    assert [base64.b64decode(letter["payload_b64"]) for letter in told] == 2 * [b"not \xff json", b"{"]
    assert set(told[0]) == ENVELOPE
    assert (told[0]["original_topic"], told[0]["error"]) == ("", "the record cannot be read")


def test_what_a_transform_refused_becomes_a_letter_with_the_row_as_it_is() -> None:
    letters = Letters("copy", "dead")
    why = pa.array([b"id: '\xff' is no int"], pa.binary()).view(pa.string())
    mark = pa.StructArray.from_arrays([pa.array(["orders"]), pa.array([b"k"]), why], ["topic", "key", "error"])
    bad = {"id": pa.nulls(1, pa.int64()), "name": ["x"], "__offset": [7], "__corrupt": ["bad"], "__refused": mark}
    assert list(letters.readable(iter([pa.RecordBatch.from_pydict(bad)]))) == []
    ((key, letter),) = letters_of(letters)
    letters.close()
    assert (key, letter["original_topic"], letter["error"]) == (b"k", "orders", "id: '\ufffd' is no int")
    assert json.loads(base64.b64decode(letter["payload_b64"])) == {"id": None, "name": "x"}


# Through Spark


CAST = """
    transforms:
      - {{type: mask, config: {{fields: [name]}}}}
      - {{type: cast, config: {{specs: {{id: int, amount: "decimal(6,2)"}}}}}}
      - {{type: filter, config: {{where: amount > 1}}}}
      - {{type: drop, config: {{fields: [name]}}}}
    dead_letter_topic: {topic}-dead
"""
BAD_CASTS = [("1", "2.5", "ann"), ("2", "two", "bob"), ("x", "3", "cy"), ("4", "0.5", "di"), ("5", "12345", "ed")]


def letters_in(client: blocking.RivvenClient, topic: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By the error: the letter and its payload."""
    from pipelines import records

    found = [json.loads(each.value) for each in records(client, topic)]
    return {each["error"]: (each, json.loads(base64.b64decode(each["payload_b64"]))) for each in found}


@pytest.mark.parametrize("sort", ["sources", "pipelines"])
def test_a_record_that_cannot_be_cast_becomes_a_letter_and_the_others_go_on(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path, sort: str
) -> None:
    from pipelines import records, run_once

    topic = f"cast-{sort}"
    (tmp_path / "in.csv").write_text("id,amount,name\n" + "".join(",".join(row) + "\n" for row in BAD_CASTS))
    source = f'{{path: "{tmp_path}/in.csv", schema: "id STRING, amount STRING, name STRING", watch: false}}'
    if sort == "sources":
        entry = f"    connector: file\n    config: {source}\n    topic: {topic}\n    envelope: plain"
    else:
        entry = f"    source: {{connector: file, config: {source}}}\n"
        entry += f"    sink: {{connector: topic, config: {{topic: {topic}, envelope: plain}}}}"
    head = f'broker: {{bootstrap_servers: ["{servers}"]}}\n{sort}:\n  shop:\n'
    works = run_once(spark, tmp_path, head + entry + CAST.format(topic=topic))
    assert [(work.state, work.error) for work in works.values()] == [("done", "")]
    assert [json.loads(each.value) for each in records(client, topic)] == [{"id": 1, "amount": 2.5}]
    found = letters_in(client, f"{topic}-dead")
    assert {error: payload for error, (_, payload) in found.items()} == {
        "a record: amount: 'two' is no decimal(6,2)": {"id": 2, "amount": None},
        "a record: id: 'x' is no int": {"id": None, "amount": 3.0},
        "a record: amount: '12345' is no decimal(6,2)": {"id": 5, "amount": None},
    }


def test_a_sink_says_which_record_could_not_be_cast(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import run_once

    client.create_topic("cast-sink", 1)
    with client.producer("cast-sink") as producer:
        for id_, amount, name in BAD_CASTS:
            producer.send(json.dumps({"id": id_, "amount": amount, "name": name}).encode(), key=name.encode())
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sinks:
  out:
    connector: file
    topics: [cast-sink]
    consumer_group: casters
    start_offset: earliest
    config: {{path: "{tmp_path}/out", format: jsonl}}
""" + CAST.format(topic="cast-sink")
    works = run_once(spark, tmp_path, text)
    assert {(work.state, work.error) for work in works.values()} == {("done", "")}
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert list(map(json.loads, lines)) == [{"id": 1, "amount": 2.5}]
    found = letters_in(client, "cast-sink-dead")
    letter, payload = found[
        "the record at offset 1 of partition 0 of topic cast-sink: amount: 'two' is no decimal(6,2)"
    ]
    assert payload == {"id": 2, "amount": None}
    assert (letter["original_topic"], letter["connector_name"]) == ("cast-sink", "out")
    assert len(found) == 3


def test_a_pipeline_puts_aside_what_it_cannot_read_and_what_its_sink_refuses_once(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import forget_commit, records, run_once

    (tmp_path / "in").mkdir()
    places = ["near", "x" * 400, "near", "far"]
    lines = [json.dumps({"id": number, "place": place}) for number, place in enumerate(places)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*lines[:1], "not json", *lines[1:]]))
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
pipelines:
  copy:
    source:
      connector: file
      config: {{path: "{tmp_path}/in", format: jsonl, schema: "id BIGINT, place STRING", watch: false}}
    transforms:
      - {{type: filter, config: {{where: "id < 3"}}}}
      - {{type: content_router, config: {{routes: [{{when: "id > 0", topic: elsewhere}}]}}}}
    sink: {{connector: file, config: {{path: "{tmp_path}/out", format: jsonl, partition_by: [place]}}}}
"""
    strict = run_once(spark, tmp_path / "strict", text)["copy"]
    assert strict.state == "failed"
    kind = text + "    dead_letter_topic: copy-dead\n"
    work = run_once(spark, tmp_path, kind)["copy"]
    assert (work.state, work.error) == ("done", "")
    forget_commit(tmp_path, "copy")
    assert run_once(spark, tmp_path, kind)["copy"].progress.rows == 5, "the batch came again"
    written = [
        json.loads(line)["id"]
        for file in (tmp_path / "out").rglob("part-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sorted(written) == [0, 2]
    letters = [json.loads(each.value) for each in records(client, "copy-dead")]
    payloads = {base64.b64decode(letter["payload_b64"]): letter for letter in letters}
    assert len(letters) == len(payloads) == 2
    assert payloads[b"not json"]["error"] == "the record cannot be read"
    refused = payloads[json.dumps({"id": 1, "place": "x" * 400}, separators=(",", ":")).encode()]
    assert refused["error"].startswith("a record: partition_by place has a value of 400 characters")
    assert {letter["original_topic"] for letter in letters} == {""}, "not where the router sends it"
    assert {letter["connector_name"] for letter in letters} == {"copy"}
    assert set(refused) == ENVELOPE


def test_so_does_one_that_ends_in_a_topic(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import records, run_once

    client.create_topic("small", 1, configs={"max.message.bytes": "2000"})
    lines = [json.dumps({"id": number, "text": "x" * length}) for number, length in enumerate((10, 2500, 20))]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, '{"id": 3, "text":']))
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
pipelines:
  load:
    dead_letter_topic: small-dead
    source:
      connector: file
      config: {{path: "{tmp_path}/in.jsonl", schema: "id BIGINT, text STRING", watch: false}}
    sink: {{connector: topic, config: {{topic: small}}}}
"""
    work = run_once(spark, tmp_path, text)["load"]
    assert (work.state, work.error) == ("done", "")
    assert [json.loads(each.value)["id"] for each in records(client, "small")] == [0, 2]
    letters = [json.loads(each.value) for each in records(client, "small-dead")]
    payloads = [base64.b64decode(letter["payload_b64"]) for letter in letters]
    assert [json.loads(payloads[0])["id"], payloads[1]] == [1, b'{"id": 3, "text":']
    assert [letter["original_topic"] for letter in letters] == ["", ""]


def test_a_query_that_would_lose_what_cannot_be_read_ends_instead(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import records, run_once

    (tmp_path / "in.jsonl").write_text('{"id": 1}\nnot json\n')
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
pipelines:
  ask:
    dead_letter_topic: ask-dead
    source: {{connector: file, config: {{path: "{tmp_path}/in.jsonl", schema: "id BIGINT", watch: false}}}}
    transforms: [{{type: sql, config: {{query: "SELECT id + 1 AS id FROM input"}}}}]
    sink: {{connector: file, config: {{path: "{tmp_path}/out"}}}}
"""
    work = run_once(spark, tmp_path, text)["ask"]
    assert (work.state, work.errors) == ("failed", 1)
    assert work.error == (
        "a record cannot be read, and the transform sql does not let __corrupt pass, which has its text: not json"
    )
    text = text.replace("AS id FROM", "AS id, __corrupt FROM")
    assert run_once(spark, tmp_path / "kind", text)["ask"].state == "done"
    (letter,) = records(client, "ask-dead")
    assert base64.b64decode(json.loads(letter.value)["payload_b64"]) == b"not json"


def test_a_sink_goes_on_without_what_it_refuses_and_each_letter_is_there_once(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import forget_commit, records, run_once

    client.create_topic("refusals", 1)
    with client.producer("refusals") as producer:
        for number in range(20):
            place = "x" * 400 if number % 10 == 3 else f"p{number % 2}"
            producer.send(b"%d" % number, key=place.encode())
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sinks:
  out:
    connector: file
    topics: [refusals]
    consumer_group: refusals
    start_offset: earliest
    format: text
    config: {{path: "{tmp_path}/out", format: jsonl, partition_by: [key]}}
"""
    works = run_once(spark, tmp_path / "strict", text)
    assert (works["out"].state, works["out"].errors) == ("failed", 1), "no retry mends a row"
    assert works["out"].error.startswith(
        "the record at offset 3 of partition 0 of topic refusals (and 1 more with it) cannot be written: "
        "partition_by key has a value of 400 characters"
    )
    kind = text + "    dead_letter_topic: refusals-dead\n"
    works = run_once(spark, tmp_path, kind)
    assert {work.state for work in works.values()} == {"done"}, [work.error for work in works.values()]
    forget_commit(tmp_path, "out", "sinks")
    assert run_once(spark, tmp_path, kind)["out"].progress.rows == 20, "the batch came again"
    lines = [
        int(json.loads(line)["value"])
        for file in (tmp_path / "out").rglob("part-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sorted(lines) == [number for number in range(20) if number % 10 != 3]
    found = records(client, "refusals-dead")
    letters = [json.loads(each.value) for each in found]
    payloads = [json.loads(base64.b64decode(letter["payload_b64"])) for letter in letters]
    assert [payload["value"] for payload in payloads] == ["3", "13"]
    assert letters[1]["error"].startswith("the record at offset 13 of partition 0 of topic refusals: partition_by")
    assert {letter["connector_name"] for letter in letters} == {"out"}


def test_letters_of_an_attempt_that_lost_are_never_seen_and_those_of_a_batch_that_comes_again_once(
    servers: str, client: blocking.RivvenClient
) -> None:
    from pipelines import records

    from rivven.connect.bridge import Letterbox
    from rivven.spark import decide, writing_of

    client.create_topic("lost-letters", 1)
    box = Letterbox("out", "lost-letters", writing_of({"servers": servers}))

    def post(batch_id: int, *ids: int) -> Any:
        letters = Letters("out", "lost-letters")
        letters.refuse(rows(*ids), "no")
        written = box.post(letters, Batch("a-query-of-its-own", batch_id))
        letters.close()
        return written

    post(0, 1)  # the driver died after the sink's commit and before this was decided
    again = post(0, 1)
    decide(box.writing, [again, None])
    late = post(0, 1)  # and again, between our decision and Spark's
    decide(box.writing, [late])
    decide(box.writing, [post(3, 2, 5)])  # batches without letters have no number
    found = [
        json.loads(base64.b64decode(json.loads(each.value)["payload_b64"]))["id"]
        for each in records(client, "lost-letters")
    ]
    assert found == [1, 2, 5]
    none = Letters("out", "lost-letters")
    assert box.post(none, Batch("a-query-of-its-own", 4)) is None
    none.close()


def test_a_record_too_large_for_its_topic_is_a_letter(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import records, run_once

    client.create_topic("large-in", 1, configs={"max.message.bytes": "4000000"})
    client.create_topic("large-out", 1, configs={"max.message.bytes": "2000"})
    with client.producer("large-in") as producer:
        for number, length in enumerate((10, 2500, 20, 2_000_000)):
            producer.send(json.dumps({"id": number, "text": "x" * length}).encode())
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sinks:
  copy:
    connector: topic
    topics: [large-in]
    consumer_group: large
    start_offset: earliest
    envelope: plain
    schema: id BIGINT, text STRING
    config: {{topic: large-out}}
"""
    failed = run_once(spark, tmp_path / "strict", text)["copy"]
    assert (failed.state, failed.errors) == ("failed", 1)
    assert failed.error.startswith("the record at offset 1 of partition 0 of topic large-in: it has 2518 bytes")
    works = run_once(spark, tmp_path, text + "    dead_letter_topic: large-dead\n")
    assert {work.state for work in works.values()} == {"done"}, [work.error for work in works.values()]
    assert [json.loads(each.value)["id"] for each in records(client, "large-out")] == [0, 2]
    letters = [json.loads(each.value) for each in records(client, "large-dead")]
    assert [letter["original_topic"] for letter in letters] == ["large-in", "large-in"]
    assert json.loads(base64.b64decode(letters[0]["payload_b64"]))["id"] == 1
    assert letters[1]["error"].endswith("(the payload is cut to 737,280 bytes)")
