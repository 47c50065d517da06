"""Azure Blob Storage."""

from __future__ import annotations

from typing import Literal

from rivven.connect.sdk import setting
from rivven.connect.stores import Access, AzureAccess

from .objects import Objects, ObjectsSettings


class AzureSettings(ObjectsSettings):
    bucket: str = setting(
        "The container; it must be there already.", example="my-events", least=1, also=("container",)
    )
    provider: Literal["azure"] = setting("The kind of store; always azure here.", default="azure")
    azure: AzureAccess = setting("How to reach the store.", factory=AzureAccess)

    @property
    def access(self) -> Access:
        return self.azure


class AzureSink(Objects[AzureSettings]):
    name = "azure-blob"
    aliases = ("azure-storage", "azure-blob-storage")
    title = "Azure Blob Storage"
    summary = "Writes JSON, JSON lines, Avro, CSV or Parquet blobs to Azure Blob Storage, each record exactly once."
    docs = (
        Objects.docs
        + """
    A key of the account, a shared access signature (with the rights to list, read, add, create, write and delete) or
    the machine's own identity (with the role Storage Blob Data Contributor) will do.
    """
    )
    example = """
    sinks:
      archive:
        connector: azure-blob
        topics: [orders]
        consumer_group: archive
        start_offset: earliest
        trigger: 1m
        config:
          bucket: my-events
          prefix: raw/orders
          format: jsonl
          compression: gzip
          azure:
            account: myaccount
            access_key: ${AZURE_STORAGE_KEY}
    """
    extra = "azure"
