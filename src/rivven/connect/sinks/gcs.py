"""Google Cloud Storage."""

from __future__ import annotations

from typing import Literal

from rivven.connect.sdk import setting
from rivven.connect.stores import Access, GcsAccess

from .objects import Objects, ObjectsSettings


class GcsSettings(ObjectsSettings):
    provider: Literal["gcs"] = setting("The kind of store; always gcs here.", default="gcs")
    gcs: GcsAccess = setting("How to reach the store.", factory=GcsAccess)

    @property
    def access(self) -> Access:
        return self.gcs


class GcsSink(Objects[GcsSettings]):
    name = "gcs"
    aliases = ("google-cloud-storage", "gcp-storage")
    title = "Google Cloud Storage"
    summary = (
        "Writes JSON, JSON lines, Avro, CSV or Parquet objects to Google Cloud Storage, each record exactly once."
    )
    docs = (
        Objects.docs
        + """
    The service account needs the role `roles/storage.objectUser` on the bucket.
    """
    )
    example = """
    sinks:
      archive:
        connector: gcs
        topics: [orders]
        consumer_group: archive
        start_offset: earliest
        trigger: 1m
        config:
          bucket: my-events
          prefix: raw/orders
          format: parquet
          partitioning: day
          gcs:
            service_account_path: /etc/rivven/gcs.json
    """
    extra = "gcs"
