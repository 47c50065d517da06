"""Large values in an object store: a directory, and a server that speaks S3."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
import pyarrow as pa
import pytest

from rivven.client import blocking
from rivven.connect.kit import TransformKit
from rivven.connect.sdk import BadSettings
from rivven.connect.stores import StoreTrouble, open_store
from rivven.connect.transforms.blobs import ExternalizeBlob, ExternalizeBlobSettings, content_type, references

sys.path.append(str(Path(__file__).parent))

from object_servers import s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = "large " * 100


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


class TestExternalizeBlob(TransformKit):
    connector = ExternalizeBlob
    bad_settings: ClassVar[dict[str, Any]] = {"prefix": "a/../b"}

    def make_settings(self, home: Path) -> dict[str, Any]:
        return {"storage_type": "local", "path": str(home / "blobs")}


def parsed(**given: Any) -> ExternalizeBlobSettings:
    return ExternalizeBlobSettings.parse(given)


def refer(settings: ExternalizeBlobSettings, *values: bytes | None) -> list[dict[str, Any] | None]:
    made = references(settings, pa.array(values, pa.binary())).to_pylist()
    return [None if text is None else json.loads(text) for text in made]


def test_a_value_is_kept_under_its_hash_and_equal_ones_once(tmp_path: Path) -> None:
    settings = parsed(path=str(tmp_path), prefix="blobs")
    first, nothing, again, other = refer(settings, b"one", None, b"one", b"\xff\x00")
    digest = hashlib.sha256(b"one").hexdigest()
    file = tmp_path / "blobs" / digest[:2] / digest
    assert nothing is None
    assert (
        first
        == again
        == {
            "__externalized": True,
            "url": file.as_uri(),
            "size": 3,
            "content_type": "text/plain; charset=utf-8",
            "sha256": digest,
        }
    )
    assert other is not None
    assert other["content_type"] == "application/octet-stream"
    assert file.read_bytes() == b"one"
    assert refer(settings, b"one") == [first], "what comes again has the same name"
    assert sum(each.is_file() for each in tmp_path.rglob("*")) == 2


def test_the_same_in_s3(s3: str) -> None:
    access = {"endpoint": s3, "access_key_id": "key", "secret_access_key": "secret"}
    settings = parsed(storage_type="s3", bucket="events", prefix="large", s3=access)
    assert ExternalizeBlob(settings).check() == []
    (reference,) = refer(settings, b"%PDF-1.7 and so on")
    assert reference is not None
    assert (reference["size"], reference["content_type"]) == (18, "application/pdf")
    path = reference["url"].removeprefix("s3://events/")
    assert path == f"large/{reference['sha256'][:2]}/{reference['sha256']}"
    store = open_store(settings.access, "events")
    assert bytes(obstore.get(store, path).bytes()) == b"%PDF-1.7 and so on"


def test_a_store_that_refuses_is_told_without_its_secrets(s3: str) -> None:
    access = {"endpoint": s3, "access_key_id": "key", "secret_access_key": "very-secret"}
    settings = parsed(storage_type="s3", bucket="not-there", s3=access)
    with pytest.raises(StoreTrouble, match="putting large values into the s3 store") as failed:
        refer(settings, b"x")
    assert "very-secret" not in str(failed.value)
    (finding,) = ExternalizeBlob(settings).check()
    assert (finding.level, finding.field) == ("error", "bucket")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "path: is missing: storage_type local needs it"),
        ({"storage_type": "s3"}, "bucket: is missing"),
        ({"storage_type": "azure", "account": "a"}, "container: is missing"),
        ({"path": "x", "size_threshold": 0}, "size_threshold: must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSettings, match=why):
        parsed(**given)


def test_where_objects_are() -> None:
    assert parsed(storage_type="gcs", bucket="b").url("a/b") == "gs://b/a/b"
    azure = parsed(storage_type="azure", account="acc", container="c")
    assert azure.url("a") == "https://acc.blob.core.windows.net/c/a"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("ä".encode(), "text/plain; charset=utf-8"),
        (b"\xff", "application/octet-stream"),
    ],
)
def test_the_type_is_told_by_the_first_bytes(value: bytes, kind: str) -> None:
    assert content_type(value) == kind


# Through Spark


def content(reference: dict[str, Any]) -> bytes:
    return Path(url2pathname(urlsplit(reference["url"]).path)).read_bytes()


def test_only_large_values_of_the_fields_are_taken_out(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, LARGE, bytearray(b"\xff" * 600), (LARGE,)), (2, "small", bytearray(b"\x01"), ("small",))]
    frame = spark.createDataFrame(rows, "id INT, text STRING, raw BINARY, deep STRUCT<text: STRING>").coalesce(1)
    given = {"path": str(tmp_path), "size_threshold": 500}
    every = ExternalizeBlob(parsed(**given)).apply(frame)
    assert every.schema == frame.schema, "fields keep their types"
    large, small = every.orderBy("id").collect()
    assert content(json.loads(large["text"])) == LARGE.encode()
    assert content(json.loads(bytes(large["raw"]))) == b"\xff" * 600
    assert large["deep"]["text"] == LARGE, "it is no field of the record itself"
    assert tuple(small) == (2, "small", b"\x01", ("small",))
    deep = ExternalizeBlob(parsed(**given, fields=["deep.text"])).apply(frame).orderBy("id").first()
    assert deep is not None
    assert content(json.loads(deep["deep"]["text"])) == LARGE.encode()
    assert deep["text"] == LARGE
    with pytest.raises(ValueError, match="fields: id is int, neither a text nor bytes"):
        ExternalizeBlob(parsed(**given, fields=["id"])).apply(frame)


def test_a_batch_that_comes_again_makes_nothing_twice(
    spark: SparkSession, servers: str, client: blocking.RivvenClient, tmp_path: Path
) -> None:
    from pipelines import forget_commit, records, run_once

    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": number, "text": LARGE + str(number % 3)}) for number in range(6)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    text = f"""
broker: {{bootstrap_servers: ["{servers}"]}}
sources:
  docs:
    connector: file
    topic: documents
    envelope: plain
    config: {{path: "{tmp_path}/in", format: jsonl, schema: "id BIGINT, text STRING", watch: false}}
    transforms:
      - type: externalize_blob
        config: {{path: "{tmp_path}/blobs", size_threshold: 100}}
"""
    assert run_once(spark, tmp_path, text)["docs"].state == "done"
    forget_commit(tmp_path, "docs", "sources")
    assert run_once(spark, tmp_path, text)["docs"].progress.rows == 6, "the batch came again"
    values = [json.loads(each.value) for each in records(client, "documents")]
    assert sorted(each["id"] for each in values) == list(range(6))
    for each in values:
        assert content(json.loads(each["text"])) == (LARGE + str(each["id"] % 3)).encode()
    assert sum(file.is_file() for file in (tmp_path / "blobs").rglob("*")) == 3, "equal values are kept once"
