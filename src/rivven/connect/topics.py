"""The topics that a run needs: looked for, made where that is allowed, refused in plain words where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rivven.client import Options, ServerException, blocking
from rivven.errors import RivvenError
from rivven.limits import MESSAGE_BYTES_DEFAULT

from .config import Broker, ConnectConfig, SourceEntry, TopicConfig
from .plan import QueryPlan

if TYPE_CHECKING:
    from collections.abc import Sequence


class TopicTrouble(RivvenError, code=203):
    """A topic that is not there and may not be made, or is not as the file says."""

    message = "{text}"


def spark_options(broker: Broker) -> dict[str, str]:
    """How the format `rivven` reaches the broker."""
    made = {"servers": ",".join(broker.servers)}
    if broker.tls.enabled:
        host = broker.servers[0].rpartition(":")[0] or broker.servers[0]
        made["tlsCaCertPath"] = broker.tls.ca_path or ""
        made["tlsServerName"] = broker.tls.server_name or host
        if broker.tls.cert_path and broker.tls.key_path:
            made |= {"tlsClientCertPath": broker.tls.cert_path, "tlsClientKeyPath": broker.tls.key_path}
    return made


def connect(broker: Broker) -> blocking.RivvenClient:
    """A client of the first broker that answers."""
    options = Options(
        client_id="rivven-connect",
        connect_timeout_ms=broker.connection_timeout_ms,
        request_timeout_ms=broker.request_timeout_ms,
    )
    if not broker.tls.enabled:
        return blocking.connect(broker.servers, options=options)
    known = spark_options(broker)
    return blocking.connect_tls(
        broker.servers,
        known["tlsCaCertPath"],
        known["tlsServerName"],
        known.get("tlsClientCertPath"),
        known.get("tlsClientKeyPath"),
        options=options,
    )


def ensure(client: blocking.RivvenClient, config: ConnectConfig, plans: Sequence[QueryPlan]) -> list[str]:
    """Make the topics that are missing; which were made."""
    there, made = set(client.list_topics()), []
    for plan in plans:
        for topic in (*plan.topics_written, *plan.topics_read):
            own = _own(plan, topic)
            if topic in there:
                _compare(client, config, topic, own)
                continue
            if _may_make(config, own):
                _make(client, config, topic, own)
                made.append(topic)
                there.add(topic)
            elif config.settings.topic.require_topic_exists:
                raise TopicTrouble(
                    text=f"{plan.name}: there is no topic {topic!r}, and it may not be made; "
                    f"create it (rivven topic create {topic}), or set auto_create"
                )
    return made


RECORD_OVERHEAD_BYTES = 256
"""What a batch of one record has besides its key and value."""


def record_bytes_max(client: blocking.RivvenClient, topic: str) -> int:
    """The largest record that a topic takes, key and value together; the default where nobody can say."""
    try:
        told = client.describe_topic_configs(topic).get("max.message.bytes", "")
    except ServerException:  # it is not there, and the file says that this is well
        told = ""
    return (int(told) if told.isdecimal() else MESSAGE_BYTES_DEFAULT) - RECORD_OVERHEAD_BYTES


def _own(plan: QueryPlan, topic: str) -> TopicConfig | None:
    """What a source says about the topic, if it is one of its own."""
    return plan.entry.topic_config if isinstance(plan.entry, SourceEntry) and topic in plan.topics_written else None


def _may_make(config: ConnectConfig, own: TopicConfig | None) -> bool:
    if own is not None and own.auto_create is not None:
        return own.auto_create
    return config.settings.topic.auto_create


def _make(client: blocking.RivvenClient, config: ConnectConfig, topic: str, own: TopicConfig | None) -> None:
    partitions = (own.partitions if own else None) or config.settings.topic.default_partitions
    configs: Mapping[str, str] | None = own.config if own and own.config else None
    try:
        client.create_topic(topic, partitions, configs=configs)
    except ServerException:
        if topic not in client.list_topics():  # somebody else may have been quicker
            raise


def _compare(client: blocking.RivvenClient, config: ConnectConfig, topic: str, own: TopicConfig | None) -> None:
    if not config.settings.topic.validate_existing or own is None or own.partitions is None:
        return
    _, partitions = client.get_metadata(topic)
    if partitions != own.partitions:
        raise TopicTrouble(
            text=f"topic {topic!r} has {partitions} partitions, and topic_config says {own.partitions}; "
            "change one of the two, or turn validate_existing off"
        )
