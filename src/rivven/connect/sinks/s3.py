"""Amazon S3, and stores that speak it."""

from __future__ import annotations

from typing import Literal

from rivven.connect.sdk import setting
from rivven.connect.stores import Access, S3Access

from .objects import Objects, ObjectsSettings


class S3Settings(ObjectsSettings):
    provider: Literal["s3"] = setting("The kind of store; always s3 here.", default="s3")
    s3: S3Access = setting("How to reach the store.", factory=S3Access)

    @property
    def access(self) -> Access:
        return self.s3


class S3Sink(Objects[S3Settings]):
    name = "s3"
    aliases = ("aws-s3", "amazon-s3", "simple-storage-service", "minio", "r2")
    title = "Amazon S3"
    summary = "Writes JSON, JSON lines, Avro, CSV or Parquet objects to S3, each record exactly once."
    docs = (
        Objects.docs
        + """
    Any store that speaks S3 will do, such as MinIO, R2 or Ceph: set `s3.endpoint`. It should honour `If-None-Match`
    when an object is put, as Amazon's does; one that does not is still safe as long as one run writes at a time. The
    credentials need the rights to list the bucket, and to get, put and delete objects below the prefix.
    """
    )
    example = """
    sinks:
      archive:
        connector: s3
        topics: [orders]
        consumer_group: archive
        start_offset: earliest
        trigger: 1m
        config:
          bucket: my-events
          prefix: raw/orders
          format: parquet
          partitioning: hour
          s3:
            region: eu-central-1
            access_key_id: ${AWS_ACCESS_KEY_ID}
            secret_access_key: ${AWS_SECRET_ACCESS_KEY}
    """
    extra = "s3"
