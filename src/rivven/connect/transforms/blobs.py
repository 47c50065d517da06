"""Large values out of the way: into an object store, and a reference to them into the record.

Exactly once rests on names: an object is called after the SHA-256 of what it has. A batch that comes again puts the
same bytes under the same names and makes the same references, so nothing is there twice, whoever was killed when. An
object is put before its reference goes anywhere; a batch that is given up leaves objects that nobody refers to, and
that do no harm.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import msgspec

from rivven.connect.sdk import Finding, Settings, Transform, setting
from rivven.connect.stores import Access, AzureAccess, GcsAccess, LocalAccess, S3Access, finding, open_store, trouble

from .columns import column, data_columns, replaced, split, type_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

REQUESTS_MAX = 8
"""Uploads at the same time, in each task."""
BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}
"""Types that can be told by the first bytes."""


class ExternalizeBlobSettings(Settings):
    storage_type: Literal["local", "s3", "gcs", "azure"] = setting("The kind of store.", default="local")
    path: str | None = setting(
        "For local: the directory, which all machines that run tasks must see.", default=None, least=1
    )
    bucket: str | None = setting("For s3 and gcs: the bucket; it must be there already.", default=None, least=1)
    region: str | None = setting(
        "For s3: the region; else that of the environment (AWS_REGION), else us-east-1.", default=None, least=1
    )
    account: str | None = setting("For azure: the storage account.", default=None, least=1)
    container: str | None = setting("For azure: the container; it must be there already.", default=None, least=1)
    prefix: str = setting("What the names of all objects begin with.", default="", example="blobs/orders")
    size_threshold: int = setting("Values of more bytes than this are taken out.", default=10_240, least=1)
    fields: list[str] = setting(
        "The fields to look at; `a.b` is a field of a struct. Without any, all texts and bytes of the record.",
        factory=list,
    )
    s3: S3Access = setting("How else to reach S3: credentials, endpoint.", factory=S3Access)
    gcs: GcsAccess = setting("How else to reach Google Cloud Storage.", factory=GcsAccess)
    azure: AzureAccess = setting("How else to reach Azure Blob Storage.", factory=AzureAccess)

    def problems(self) -> Iterable[tuple[str, str]]:
        needed = {"local": ("path",), "s3": ("bucket",), "gcs": ("bucket",), "azure": ("account", "container")}
        for name in needed[self.storage_type]:
            if getattr(self, name) is None:
                yield name, f"is missing: storage_type {self.storage_type} needs it"
        if self.prefix.strip("/") and any(part in ("", ".", "..") for part in self.prefix.strip("/").split("/")):
            yield "prefix", f"must be names joined by single slashes, not {self.prefix!r}"

    @property
    def access(self) -> Access:
        match self.storage_type:
            case "local":
                return LocalAccess(root=str(Path(self.path or "").absolute()))
            case "s3":
                return replace(self.s3, region=self.region or self.s3.region)
            case "gcs":
                return self.gcs
            case _:
                return replace(self.azure, account=self.account)

    @property
    def place(self) -> str:
        """The bucket, container, or nothing for a directory."""
        return self.bucket or self.container or "" if self.storage_type != "local" else ""

    def url(self, name: str) -> str:
        """Where an object is, for whoever reads the record."""
        match self.storage_type:
            case "local":
                return (Path(self.path or "").absolute() / name).as_uri()
            case "s3":
                return f"s3://{self.bucket}/{name}"
            case "gcs":
                return f"gs://{self.bucket}/{name}"
            case _:
                endpoint = self.azure.endpoint or f"https://{self.account}.blob.core.windows.net"
                return f"{endpoint.rstrip('/')}/{self.container}/{name}"


class ExternalizeBlob(Transform[ExternalizeBlobSettings]):
    name = "externalize_blob"
    aliases = ("externalize",)
    title = "Externalize blobs"
    summary = "Puts large values into an object store, and a reference to them into the record."
    docs = """
    The value of a text or binary field with more than `size_threshold` bytes is replaced by a text, which is JSON:

        {"__externalized":true,"url":"s3://my-blobs/9f/9f86d0…","size":184320,
         "content_type":"image/png","sha256":"9f86d0…"}

    Shorter values stay as they are. A field keeps its type: in a binary one the reference is the bytes of that text.
    The object has the bytes of the value and is called after their SHA-256, below `prefix`: equal values are kept
    once, and a batch that comes again after a crash writes the same objects and the same references.
    An object is in the store before its reference is in a topic. Nothing deletes objects; a lifecycle rule of the
    store can, once the records that refer to them are gone.

    Put it behind transforms that look into the field, and behind `mask`: what is in the store is what was in the
    field at that point.
    """
    example = """
    transforms:
      - type: externalize_blob
        config:
          storage_type: s3
          bucket: my-blobs
          prefix: orders
          fields: [invoice_pdf]
          s3: {access_key_id: "${AWS_ACCESS_KEY_ID}", secret_access_key: "${AWS_SECRET_ACCESS_KEY}"}
    """
    extra = "objects"
    modules = ("obstore", "pyarrow")

    def check(self) -> list[Finding]:
        """Write and delete a small object, since rights cannot be asked for."""
        import obstore

        settings = self.settings
        probe = _named(settings, f"probe-{uuid4().hex}")
        try:
            store = open_store(settings.access, settings.place, brief=True)
            obstore.put(store, probe, b"rivven-connect check")
            obstore.delete(store, probe)
        except Exception as error:  # a store raises what it likes, and all of it is worth a line
            found = finding(error, settings.access, settings, settings.place)
            renamed = {"local.root": "path", "bucket": "container" if settings.storage_type == "azure" else "bucket"}
            return [Finding(found.text, found.level, renamed.get(found.field, found.field), found.fix)]
        return []

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import BinaryType, StringType

        for path in self.settings.fields or data_columns(frame):
            split(frame, path)
            kind = type_of(frame, path)
            if isinstance(kind, StringType | BinaryType):
                value = column(frame, path)
                frame = replaced(frame, path, F.coalesce(self._reference(value).cast(kind), value))
            elif self.settings.fields:
                raise ValueError(f"fields: {path} is {kind.simpleString()}, neither a text nor bytes; cast it before")
        return frame

    def _reference(self, value: Column) -> Column:
        """The reference for a large value, null for others; only large ones leave the JVM."""
        import pyarrow as pa
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.types import StringType

        settings = self.settings

        def put(values: Any) -> Any:
            return references(settings, values)

        put.__annotations__ = {"values": pa.Array, "return": pa.Array}  # Spark goes by these, and not by their texts
        large = F.when(F.octet_length(value) > F.lit(settings.size_threshold), value.cast("binary"))
        function: Any = arrow_udf  # whose stub knows nothing of a function that says its types itself
        made: Column = function(put, StringType())(large)
        return made


# In a task


def references(settings: ExternalizeBlobSettings, values: Any) -> pa.Array[Any]:
    """Put the values that are not null into the store, and give their references."""
    import pyarrow as pa

    found: list[bytes | None] = values.cast(pa.binary()).to_pylist()
    names = [None if value is None else hashlib.sha256(value).hexdigest() for value in found]
    wanted = {name: value for name, value in zip(names, found, strict=True) if name is not None and value is not None}
    if wanted:
        with trouble(settings, f"putting large values into the {settings.storage_type} store"):
            _put(settings, wanted)
    made = [None if name is None else _reference(settings, name, wanted[name]) for name in names]
    return pa.array(made, pa.string())


def _put(settings: ExternalizeBlobSettings, wanted: dict[str, bytes]) -> None:
    import obstore

    store = open_store(settings.access, settings.place)

    def put(name: str) -> None:
        obstore.put(store, _named(settings, object_name(name)), wanted[name])

    with ThreadPoolExecutor(REQUESTS_MAX, "blobs") as pool:
        list(pool.map(put, wanted))
    if settings.storage_type == "local":
        _sync(Path(settings.path or ""), [_named(settings, object_name(name)) for name in wanted])


def object_name(digest: str) -> str:
    """In folders by the first two digits, so that a directory stays small enough to look at."""
    return f"{digest[:2]}/{digest}"


def _named(settings: ExternalizeBlobSettings, name: str) -> str:
    prefix = settings.prefix.strip("/")
    return f"{prefix}/{name}" if prefix else name


def _reference(settings: ExternalizeBlobSettings, digest: str, value: bytes) -> str:
    reference = {
        "__externalized": True,
        "url": settings.url(_named(settings, object_name(digest))),
        "size": len(value),
        "content_type": content_type(value),
        "sha256": digest,
    }
    return msgspec.json.encode(reference).decode()


def content_type(value: bytes) -> str:
    for beginning, kind in BEGINNINGS.items():
        if value.startswith(beginning):
            return kind
    try:
        value.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain; charset=utf-8"


def _sync(root: Path, names: Sequence[str]) -> None:
    """Have the disk keep what was put: a reference must not outlive its object, whatever happens to the power."""
    paths = [root / name for name in names]
    above = {folder for path in paths for folder in path.parents if folder == root or root in folder.parents}
    for path in (*paths, *above):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
