"""Any object store, by one name: the kind of store is a setting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rivven.connect.files import absolute
from rivven.connect.sdk import setting
from rivven.connect.stores import Access, AzureAccess, GcsAccess, LocalAccess, S3Access

from .objects import Objects, ObjectsSettings

if TYPE_CHECKING:
    import pyarrow as pa


class ObjectStorageSettings(ObjectsSettings):
    provider: Literal["s3", "gcs", "azure", "local"] = setting("The kind of store.", default="s3")
    s3: S3Access = setting("How to reach S3.", factory=S3Access)
    gcs: GcsAccess = setting("How to reach Google Cloud Storage.", factory=GcsAccess)
    azure: AzureAccess = setting("How to reach Azure Blob Storage.", factory=AzureAccess)
    local: LocalAccess = setting("Where the buckets are, if they are folders of a directory.", factory=LocalAccess)

    @property
    def access(self) -> Access:
        found: Access = getattr(self, self.provider)
        return found


class ObjectStorageSink(Objects[ObjectStorageSettings]):
    name = "object-storage"
    aliases = ("cloud-storage", "objects")
    title = "Object storage"
    summary = "Writes objects to S3, Google Cloud Storage, Azure or a local directory, each record exactly once."
    docs = (
        Objects.docs
        + """
    The same as `s3`, `gcs` and `azure-blob`, with the store as a setting, so that a file can be tried on a laptop
    with `provider: local` before it goes to a cloud. To keep files on a disk for good, take `file`: it waits until
    the disk has them.
    """
    )
    example = """
    sinks:
      archive:
        connector: object-storage
        topics: [orders]
        consumer_group: archive
        start_offset: earliest
        config:
          provider: ${STORE:-local}
          bucket: my-events
          prefix: raw/orders
          format: jsonl
          local:
            root: ./objects
    """
    extra = "objects"

    def prepare(self, schema: pa.Schema) -> None:
        local = replace(self.settings.local, root=absolute(self.settings.local.root))
        self.settings = replace(self.settings, local=local)
        super().prepare(schema)
