"""The same client for programs without an event loop: scripts, threads, Spark.

All connections live on one event loop in a thread of its own, shared by the process and made anew after a fork. A
call hops there and back; records that are `put` do not, they are gathered in the calling thread. Clients, producers
and consumers may be shared between threads, but a consumer's messages then go to whoever asks first.

    client = rivven.blocking.connect("localhost:9092")
    with client.producer("orders") as producer:
        producer.put(b"paid", key=b"42")
    with client.consumer("orders", partition=None) as consumer:
        print(consumer.fetch())
    client.close()
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

from . import client as shell_client
from . import group_consumer as shell_group
from .blocking_consumer import Consumer, GroupConsumer
from .blocking_producer import Attempt, Producer, Transaction
from .consumer import FETCH_BYTES, WAIT_MS
from .group_consumer import MemberOptions
from .inbox import Isolation
from .loop_thread import Blocking, loop_thread, waits
from .options import Options
from .sending import BATCH_BYTES_MAX, BUFFER_BYTES, DELIVERY_TIMEOUT_MS, REQUEST_BYTES_MAX
from .shell import make_cluster, make_tls_cluster
from .transaction import TIMEOUT_MS

__all__ = [
    "Attempt",
    "Consumer",
    "GroupConsumer",
    "Producer",
    "RivvenClient",
    "Transaction",
    "connect",
    "connect_tls",
]


def connect(address: str | Sequence[str], *, options: Options | None = None) -> RivvenClient:
    """Connect to the first server that answers, of one or several as `host:port`."""
    thread = loop_thread()

    async def start() -> shell_client.RivvenClient:
        return await shell_client._connected(make_cluster(address, options))

    return RivvenClient(thread.run(start()), thread)


def connect_tls(
    address: str | Sequence[str],
    ca_cert_path: str | Path,
    server_name: str,
    client_cert_path: str | Path | None = None,
    client_key_path: str | Path | None = None,
    *,
    options: Options | None = None,
) -> RivvenClient:
    """The same over TLS 1.3."""
    thread = loop_thread()

    async def start() -> shell_client.RivvenClient:
        return await shell_client._connected(
            make_tls_cluster(address, ca_cert_path, server_name, client_cert_path, client_key_path, options)
        )

    return RivvenClient(thread.run(start()), thread)


class RivvenClient(Blocking[shell_client.RivvenClient]):
    """`rivven.RivvenClient`, blocking."""

    def __enter__(self) -> RivvenClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def producer(
        self,
        topic: str,
        batch_size: int = 16384,
        linger_ms: int = 5,
        *,
        compression: str = "none",
        compression_level: int | None = None,
        acks: int = -1,
        buffer_bytes: int = BUFFER_BYTES,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        idempotent: bool = True,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TIMEOUT_MS,
    ) -> Producer:
        making = self._inner.producer(
            topic,
            batch_size,
            linger_ms,
            compression=compression,
            compression_level=compression_level,
            acks=acks,
            buffer_bytes=buffer_bytes,
            batch_bytes_max=batch_bytes_max,
            request_bytes_max=request_bytes_max,
            delivery_timeout_ms=delivery_timeout_ms,
            idempotent=idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        return Producer(self._thread.run(making), self._thread)

    @overload
    def consumer(
        self,
        topic: str,
        partition: int | Iterable[int] | None = 0,
        group: str | None = None,
        start_offset: int | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        *,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        isolation: Isolation = "read_committed",
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        *,
        group: str,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        **membership: Unpack[MemberOptions],
    ) -> GroupConsumer: ...

    def consumer(
        self,
        topic: str | None = None,
        partition: int | Iterable[int] | None = 0,
        group: str | None = None,
        start_offset: int | None = None,
        batch_size: int = 100,
        auto_commit: bool = True,
        *,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        isolation: Isolation = "read_committed",
        **membership: Any,
    ) -> Consumer | GroupConsumer:
        make: Any = self._inner.consumer  # which of its shapes is asked for, it sees itself
        making = make(
            *(topic, partition, group, start_offset, batch_size, auto_commit),
            topics=topics,
            pattern=pattern,
            fetch_bytes=fetch_bytes,
            wait_ms=wait_ms,
            isolation=isolation,
            **membership,
        )
        inner = self._thread.run(making)
        if isinstance(inner, shell_group.GroupConsumer):
            return GroupConsumer(inner, self._thread)
        return Consumer(inner, self._thread)

    def attempt(self, owner: str, owner_epoch: int, sequence: int, *, timeout_ms: int = TIMEOUT_MS) -> Attempt:
        """Begin a transaction over which the owner will decide, under this sequence."""
        making = self._inner.attempt(owner, owner_epoch, sequence, timeout_ms=timeout_ms)
        return Attempt(self._thread.run(making), self._thread)

    close = waits(shell_client.RivvenClient.close)
    authenticate = waits(shell_client.RivvenClient.authenticate)
    authenticate_scram = waits(shell_client.RivvenClient.authenticate_scram)
    publish = waits(shell_client.RivvenClient.publish)
    consume = waits(shell_client.RivvenClient.consume)
    init_producer_id = waits(shell_client.RivvenClient.init_producer_id)
    publish_idempotent = waits(shell_client.RivvenClient.publish_idempotent)
    register_owner = waits(shell_client.RivvenClient.register_owner)
    decide = waits(shell_client.RivvenClient.decide)
    find_batches = waits(shell_client.RivvenClient.find_batches)
    forget_owner = waits(shell_client.RivvenClient.forget_owner)
    begin_transaction = waits(shell_client.RivvenClient.begin_transaction)
    add_partitions_to_txn = waits(shell_client.RivvenClient.add_partitions_to_txn)
    commit_transaction = waits(shell_client.RivvenClient.commit_transaction)
    abort_transaction = waits(shell_client.RivvenClient.abort_transaction)

    create_topic = waits(shell_client.RivvenClient.create_topic)
    list_topics = waits(shell_client.RivvenClient.list_topics)
    delete_topic = waits(shell_client.RivvenClient.delete_topic)
    get_metadata = waits(shell_client.RivvenClient.get_metadata)
    create_partitions = waits(shell_client.RivvenClient.create_partitions)
    describe_topic_configs = waits(shell_client.RivvenClient.describe_topic_configs)
    describe_topic_config_entries = waits(shell_client.RivvenClient.describe_topic_config_entries)
    alter_topic_config = waits(shell_client.RivvenClient.alter_topic_config)
    get_offset_bounds = waits(shell_client.RivvenClient.get_offset_bounds)
    get_offset_for_timestamp = waits(shell_client.RivvenClient.get_offset_for_timestamp)
    delete_records = waits(shell_client.RivvenClient.delete_records)
    delete_records_batch = waits(shell_client.RivvenClient.delete_records_batch)
    list_groups = waits(shell_client.RivvenClient.list_groups)
    describe_group = waits(shell_client.RivvenClient.describe_group)
    delete_group = waits(shell_client.RivvenClient.delete_group)
    commit_offset = waits(shell_client.RivvenClient.commit_offset)
    get_offset = waits(shell_client.RivvenClient.get_offset)
    describe_quotas = waits(shell_client.RivvenClient.describe_quotas)
    alter_quotas = waits(shell_client.RivvenClient.alter_quotas)
    get_cluster_metadata = waits(shell_client.RivvenClient.get_cluster_metadata)
    describe_members = waits(shell_client.RivvenClient.describe_members)
    committed_offsets = waits(shell_client.RivvenClient.committed_offsets)
    reset_offsets = waits(shell_client.RivvenClient.reset_offsets)
    list_transactions = waits(shell_client.RivvenClient.list_transactions)
    describe_transactions = waits(shell_client.RivvenClient.describe_transactions)
    describe_producers = waits(shell_client.RivvenClient.describe_producers)
    find_hanging_transactions = waits(shell_client.RivvenClient.find_hanging_transactions)
    abort_open_transaction = waits(shell_client.RivvenClient.abort_open_transaction)
    abort_hanging_transaction = waits(shell_client.RivvenClient.abort_hanging_transaction)
    get_metrics = waits(shell_client.RivvenClient.get_metrics)
    ping = waits(shell_client.RivvenClient.ping)
