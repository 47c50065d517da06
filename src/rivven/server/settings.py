"""What `rivvend` can be told: one table, from which all else derives.

Flags, `RIVVEN_*` variables, the YAML file, `--help`, `--print-config` and docs/operate/configuration.md are read off
`SETTINGS`. Invariant: no key is there twice, and every field of `Settings` has a row.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, fields
from typing import Any

from rivven.limits import (
    GIB,
    KIB,
    MIB,
    PRODUCER_EXPIRY_MS,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
)

from .values import (
    Parse,
    address,
    choice,
    host,
    log_level,
    number,
    optional,
    path,
    show,
    size,
    switch,
    sync_policy,
    word,
)

REQUEST_BYTES_MAX = 1 * GIB
UNLIMITED = 2**53


@dataclass(frozen=True, slots=True)
class Settings:
    """The result: every value checked, none missing."""

    bind_host: str = "127.0.0.1"
    bind_port: int = 9092
    advertise_host: str = ""
    """What clients are told to connect to; empty until it is derived from the bind address."""
    advertise_port: int = 0
    allow_anonymous: bool = False
    tcp_nodelay: bool = True
    local_reads: bool = True
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    """0 turns HTTP off."""
    metrics: bool = True
    dashboard: bool = True
    data_dir: str = "./data"
    sync_policy: str = "every_write"
    max_segment_size: int = SEGMENT_BYTES_DEFAULT
    clean_interval_secs: float = 300
    default_partitions: int = 3
    auto_create_topics: bool = True
    partitioner_batch_size: int = 16_384
    partitioner_linger_ms: int = 100
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_consumer_heartbeat_ms: int = 5_000
    group_consumer_session_timeout_ms: int = 45_000
    offsets_retention_minutes: int = 10_080
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    producer_id_expiration_ms: int = PRODUCER_EXPIRY_MS
    max_connections_per_ip: int = 100
    max_total_connections: int = 10_000
    rate_limit_per_ip: int = 10_000
    max_request_size: int = 10 * MIB
    max_inflight_bytes: int = 256 * MIB
    idle_timeout_secs: float = 120
    quota_produce_bytes_rate: int | None = None
    quota_consume_bytes_rate: int | None = None
    quota_request_rate: int | None = None
    node_id: str = ""
    broker_id: int = 1
    """Never empty in the result: the host's name and the port, unless given."""
    rack: str | None = None
    log_level: str = "info"
    log_format: str = "text"
    loop: str = "auto"

    def __post_init__(self) -> None:
        derived: dict[str, str | int] = {
            "advertise_host": socket.gethostname() if _is_wildcard(self.bind_host) else self.bind_host,
            "advertise_port": self.bind_port,
            "node_id": f"{socket.gethostname()}-{self.bind_port}",
        }
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @property
    def quotas(self) -> dict[str, int]:
        """The default limits by the broker's names; a key that is missing is no limit."""
        limits = {
            "produce_bytes_rate": self.quota_produce_bytes_rate,
            "consume_bytes_rate": self.quota_consume_bytes_rate,
            "request_rate": self.quota_request_rate,
        }
        return {key: limit for key, limit in limits.items() if limit is not None}


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


# The table


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. A key that begins with `!` says the opposite."""

    group: str
    into: str
    """The fields of `Settings` that it fills, separated by blanks; none for a feature that is yet to come."""
    parse: Parse
    flags: str
    env: str
    paths: str
    """Where it is in the file, dotted; the first is the one to use."""
    help: str
    unit: str = ""
    metavar: str = ""
    default: Any = None
    """Of a feature that is yet to come; the others have theirs in `Settings`."""
    later: str = ""
    """The feature that it needs, and that this version lacks."""
    harmless: tuple[Any, ...] | None = ()
    """Which values besides the default may be given all the same; None for any."""
    secret: bool = False

    @property
    def fields(self) -> list[str]:
        return self.into.split()

    @property
    def is_bool(self) -> bool:
        return self.parse is switch

    @property
    def all_flags(self) -> list[str]:
        flags = self.flags.split()
        if self.is_bool and len(flags) > 0 and not any(flag.startswith("!") for flag in flags):
            flags.append(f"!--no-{flags[0][2:]}")
        return flags

    def shown_default(self, at: Settings) -> str:
        values = [getattr(at, name) for name in self.fields] or [self.default]
        return ":".join(show(value) for value in values)


CLUSTER, TLS, AUTH = "clusters", "TLS", "authentication"
ONE_HTTP = "a listener of its own (everything over HTTP is on --http-host and --http-port)"
MS = number(1, 3_600_000)

SETTINGS: tuple[Setting, ...] = (
    Setting("Listening", "bind_host bind_port", address, "--bind -b", "RIVVEN_BIND",
            "server.bind_address server.bind",
            "Where clients connect; port 0 takes any that is free", metavar="HOST:PORT"),
    Setting("Listening", "advertise_host advertise_port", address, "--advertise-addr", "RIVVEN_ADVERTISE_ADDR",
            "server.advertise_address cluster.advertise_addr",
            "Where clients are told to connect; by default the bind address, or the host's name for a wildcard",
            metavar="HOST:PORT"),
    Setting("Listening", "allow_anonymous", switch, "--allow-anonymous --no-require-auth",
            "RIVVEN_ALLOW_ANONYMOUS RIVVEN_NO_REQUIRE_AUTH", "server.allow_anonymous",
            "Let anybody in who can reach an address beyond loopback, without authentication"),
    Setting("Listening", "tcp_nodelay", switch, "--tcp-nodelay", "RIVVEN_TCP_NODELAY", "server.tcp_nodelay",
            "Send small replies at once instead of gathering them"),
    Setting("Listening", "local_reads", switch, "--local-reads", "RIVVEN_LOCAL_READS", "server.local_reads",
            "Tell clients on this machine where batches stand, so that they can read the files themselves"),
    Setting("HTTP", "http_host http_port", address, "--http-bind --api-bind", "RIVVEN_HTTP_BIND RIVVEN_API_BIND",
            "server.http_bind", "Host and port of HTTP in one; the two below are stronger", metavar="HOST:PORT"),
    Setting("HTTP", "http_host", host, "--http-host", "RIVVEN_HTTP_HOST", "server.http_host",
            "The address for HTTP: health, metrics and the status page", metavar="HOST"),
    Setting("HTTP", "http_port", number(0, 65535), "--http-port", "RIVVEN_HTTP_PORT", "server.http_port",
            "The port for HTTP; 0 turns it off", metavar="PORT"),
    Setting("HTTP", "metrics", switch, "--metrics", "RIVVEN_METRICS", "observability.metrics.enabled",
            "Serve /metrics for Prometheus"),
    Setting("HTTP", "dashboard", switch, "--dashboard !--no-dashboard", "RIVVEN_DASHBOARD !RIVVEN_NO_DASHBOARD",
            "server.dashboard", "Serve the status page at /"),
    Setting("Storage", "data_dir", path, "--data-dir -d", "RIVVEN_DATA_DIR", "storage.data_dir node.data_dir",
            "The directory that holds everything; made if need be", metavar="DIR"),
    Setting("Storage", "sync_policy", sync_policy, "--sync-policy", "RIVVEN_SYNC_POLICY",
            "storage.sync_policy server.sync_policy",
            "When a write counts as done: every_write (after its sync), every_n_writes(N), none", metavar="POLICY"),
    Setting("Storage", "max_segment_size", size(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX), "--max-segment-size",
            "RIVVEN_MAX_SEGMENT_SIZE", "storage.segment_bytes storage.segment_size",
            "How large a segment grows, in topics that do not say", unit="bytes"),
    Setting("Storage", "clean_interval_secs", number(1, 86_400, float), "--clean-interval-secs",
            "RIVVEN_CLEAN_INTERVAL_SECS", "storage.clean_interval_secs",
            "How often retention and compaction look for work", unit="seconds"),
    Setting("Topics", "default_partitions", number(1, 1000), "--default-partitions", "RIVVEN_DEFAULT_PARTITIONS",
            "topics.default_partitions", "Partitions of a topic that does not say", metavar="N"),
    Setting("Topics", "auto_create_topics", switch, "--auto-create-topics", "RIVVEN_AUTO_CREATE_TOPICS",
            "topics.auto_create", "Make a topic when somebody publishes to it"),
    Setting("Topics", "partitioner_batch_size", number(1, 2**31 - 1), "--partitioner-batch-size",
            "RIVVEN_PARTITIONER_BATCH_SIZE", "topics.partitioner_batch_size",
            "Records without a key that stay with one partition before the next has its turn", unit="records"),
    Setting("Topics", "partitioner_linger_ms", number(0, 3_600_000), "--partitioner-linger-ms",
            "RIVVEN_PARTITIONER_LINGER_MS", "topics.partitioner_linger_ms",
            "And for how long at most", unit="ms"),
    Setting("Groups", "group_initial_rebalance_delay_ms", number(0, 3_600_000), "--group-initial-rebalance-delay-ms",
            "RIVVEN_GROUP_INITIAL_REBALANCE_DELAY_MS", "groups.initial_rebalance_delay_ms",
            "For how long the first member of a group waits for company", unit="ms"),
    Setting("Groups", "group_min_session_timeout_ms", number(1, 86_400_000), "--group-min-session-timeout-ms",
            "RIVVEN_GROUP_MIN_SESSION_TIMEOUT_MS", "groups.min_session_timeout_ms",
            "The shortest silence that a member may ask to be allowed", unit="ms"),
    Setting("Groups", "group_max_session_timeout_ms", number(1, 86_400_000), "--group-max-session-timeout-ms",
            "RIVVEN_GROUP_MAX_SESSION_TIMEOUT_MS", "groups.max_session_timeout_ms",
            "The longest silence that a member may ask to be allowed", unit="ms"),
    Setting("Groups", "group_consumer_heartbeat_ms", number(1, 3_600_000), "--group-consumer-heartbeat-ms",
            "RIVVEN_GROUP_CONSUMER_HEARTBEAT_MS", "groups.consumer_heartbeat_ms",
            "How often a member is to be heard whose partitions the broker assigns", unit="ms"),
    Setting("Groups", "group_consumer_session_timeout_ms", number(1, 86_400_000),
            "--group-consumer-session-timeout-ms", "RIVVEN_GROUP_CONSUMER_SESSION_TIMEOUT_MS",
            "groups.consumer_session_timeout_ms", "Such a member that is silent for so long is let go", unit="ms"),
    Setting("Groups", "offsets_retention_minutes", number(1, 2**31 - 1), "--offsets-retention-minutes",
            "RIVVEN_OFFSETS_RETENTION_MINUTES", "groups.offsets_retention_minutes",
            "For how long the offsets of a group without members are kept", unit="minutes"),
    Setting("Transactions", "transaction_max_timeout_ms", number(1, 2**31 - 1), "--transaction-max-timeout-ms",
            "RIVVEN_TRANSACTION_MAX_TIMEOUT_MS", "transactions.max_timeout_ms",
            "The longest timeout that a transaction may ask for", unit="ms"),
    Setting("Transactions", "transactional_id_expiration_ms", number(1, 2**31 - 1),
            "--transactional-id-expiration-ms", "RIVVEN_TRANSACTIONAL_ID_EXPIRATION_MS",
            "transactions.id_expiration_ms", "A transactional id that nobody uses for so long is gone", unit="ms"),
    Setting("Transactions", "producer_id_expiration_ms", number(1, 2**31 - 1), "--producer-id-expiration-ms",
            "RIVVEN_PRODUCER_ID_EXPIRATION_MS", "transactions.producer_id_expiration_ms",
            "A producer that is silent for so long is forgotten, and what it sends again is stored again", unit="ms"),
    Setting("Limits", "max_connections_per_ip", number(1, 1_000_000), "--max-connections-per-ip",
            "RIVVEN_MAX_CONNECTIONS_PER_IP", "limits.max_connections_per_ip",
            "Connections from one address", metavar="N"),
    Setting("Limits", "max_total_connections", number(1, 1_000_000), "--max-total-connections",
            "RIVVEN_MAX_TOTAL_CONNECTIONS", "limits.max_total_connections", "Connections altogether", metavar="N"),
    Setting("Limits", "rate_limit_per_ip", number(0, UNLIMITED), "--rate-limit-per-ip", "RIVVEN_RATE_LIMIT_PER_IP",
            "limits.rate_limit_per_ip", "Requests a second from one address; 0 is no limit", unit="requests/s"),
    Setting("Limits", "max_request_size", size(1 * KIB, REQUEST_BYTES_MAX), "--max-request-size",
            "RIVVEN_MAX_REQUEST_SIZE", "limits.max_request_size", "The largest request", unit="bytes"),
    Setting("Limits", "max_inflight_bytes", size(1 * KIB, UNLIMITED), "--max-inflight-bytes",
            "RIVVEN_MAX_INFLIGHT_BYTES", "limits.max_inflight_bytes",
            "Memory for the requests under way, of all clients together", unit="bytes"),
    Setting("Limits", "idle_timeout_secs", number(1, 86_400, float), "--idle-timeout-secs",
            "RIVVEN_IDLE_TIMEOUT_SECS", "limits.idle_timeout_secs",
            "A connection that is silent for so long is closed", unit="seconds"),
    Setting("Quotas", "quota_produce_bytes_rate", optional(size(1, UNLIMITED)), "--quota-produce-bytes-rate",
            "RIVVEN_QUOTA_PRODUCE_BYTES_RATE", "quotas.defaults.produce_bytes_rate",
            "What a client may publish unless it has a quota of its own", unit="bytes/s"),
    Setting("Quotas", "quota_consume_bytes_rate", optional(size(1, UNLIMITED)), "--quota-consume-bytes-rate",
            "RIVVEN_QUOTA_CONSUME_BYTES_RATE", "quotas.defaults.consume_bytes_rate",
            "What a client may read", unit="bytes/s"),
    Setting("Quotas", "quota_request_rate", optional(number(1, UNLIMITED)), "--quota-request-rate",
            "RIVVEN_QUOTA_REQUEST_RATE", "quotas.defaults.request_rate",
            "How often a client may ask", unit="requests/s"),
    Setting("This node", "node_id", word, "--node-id", "RIVVEN_NODE_ID", "node.id cluster.node_id",
            "Its name; by default the host's name and the port", metavar="NAME"),
    Setting("This node", "broker_id", number(0, 2**31 - 1), "--broker-id", "RIVVEN_BROKER_ID", "node.broker_id",
            "Its number, which Kafka's clients know it by"),
    Setting("This node", "rack", optional(word), "--rack", "RIVVEN_RACK", "node.rack cluster.rack",
            "Where it stands, for clients that prefer one nearby", metavar="NAME"),
    Setting("This node", "log_level", log_level, "--log-level -l", "RIVVEN_LOG_LEVEL RUST_LOG",
            "log.level", "What is told on stderr: trace, debug, info, warn, error", metavar="LEVEL"),
    Setting("This node", "log_format", choice("text", "json"), "--log-format", "RIVVEN_LOG_FORMAT", "log.format",
            "text or json, a line for each event", metavar="FORMAT"),
    Setting("This node", "loop", choice("auto", "uvloop", "asyncio"), "--loop", "RIVVEN_LOOP", "node.loop",
            "The event loop: uvloop, asyncio, or auto for the faster that is installed", metavar="LOOP"),
    Setting("Later", "", switch, "--persistence", "RIVVEN_PERSISTENCE", "storage.persistence",
            "Keep data on disk", default=True, later="a broker without a disk"),
    Setting("Later", "", choice("standalone", "cluster"), "--mode", "RIVVEN_MODE", "cluster.mode",
            "standalone or cluster", default="standalone", later=CLUSTER),
    Setting("Later", "", word, "--cluster-name", "RIVVEN_CLUSTER_NAME", "cluster.name",
            "A label; any is accepted", default="rivven-cluster", later=CLUSTER, harmless=None),
    Setting("Later", "", word, "--datacenter", "RIVVEN_DATACENTER", "cluster.datacenter",
            "A label; any is accepted", default="default", later=CLUSTER, harmless=None),
    Setting("Later", "", optional(str), "--seeds", "RIVVEN_SEEDS", "cluster.seeds cluster.peers",
            "Other nodes to join", later=CLUSTER),
    Setting("Later", "", optional(address), "--cluster-bind", "RIVVEN_CLUSTER_BIND", "cluster.bind",
            "Where other nodes connect", later=CLUSTER),
    Setting("Later", "", number(1, 100), "--replication-factor", "RIVVEN_REPLICATION_FACTOR",
            "cluster.replication_factor", "Copies of a partition; one node keeps one", default=3, later=CLUSTER,
            harmless=(1,)),
    Setting("Later", "", number(1, 100), "--min-isr", "RIVVEN_MIN_ISR", "cluster.min_isr",
            "Copies that must be in step", default=2, later=CLUSTER, harmless=(1,)),
    Setting("Later", "", MS, "--replica-fetch-ms", "RIVVEN_REPLICA_FETCH_MS", "cluster.replica_fetch_ms",
            "How often a copy asks for more", default=100, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--replica-lag-ms", "RIVVEN_REPLICA_LAG_MS", "cluster.replica_lag_ms",
            "How far a copy may be behind", default=30_000, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--swim-interval-ms", "RIVVEN_SWIM_INTERVAL_MS", "cluster.swim_interval_ms",
            "How often nodes ask after one another", default=1000, later=CLUSTER, unit="ms"),
    Setting("Later", "", number(1, 100), "--swim-indirect-targets", "RIVVEN_SWIM_INDIRECT_TARGETS",
            "cluster.swim_indirect_targets", "How many are asked to try instead", default=3, later=CLUSTER),
    Setting("Later", "", number(1, 100), "--swim-suspicion-mult", "RIVVEN_SWIM_SUSPICION_MULT",
            "cluster.swim_suspicion_mult", "How patiently", default=4, later=CLUSTER),
    Setting("Later", "", MS, "--raft-heartbeat-ms", "RIVVEN_RAFT_HEARTBEAT_MS", "cluster.raft_heartbeat_ms",
            "The leader's sign of life", default=50, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--raft-election-min-ms", "RIVVEN_RAFT_ELECTION_MIN_MS", "cluster.raft_election_min_ms",
            "The shortest wait for a leader", default=150, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--raft-election-max-ms", "RIVVEN_RAFT_ELECTION_MAX_MS", "cluster.raft_election_max_ms",
            "The longest", default=300, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--connect-timeout-ms", "RIVVEN_CONNECT_TIMEOUT_MS", "cluster.connect_timeout_ms",
            "To reach another node", default=5000, later=CLUSTER, unit="ms"),
    Setting("Later", "", optional(str), "--cluster-auth-token", "RIVVEN_CLUSTER_AUTH_TOKEN", "cluster.auth_token",
            "What nodes know one another by", later=CLUSTER, secret=True),
    Setting("Later", "", optional(number(1, 1024)), "--io-threads", "RIVVEN_IO_THREADS", "server.io_threads",
            "Threads; a node is one process with one event loop", later="several event loops in one node"),
    Setting("Later", "", optional(address), "--metrics-bind", "RIVVEN_METRICS_BIND", "observability.metrics.bind",
            "An address for /metrics alone", later=ONE_HTTP),
    Setting("Later", "", optional(number(0, 65535)), "", "", "observability.metrics.port",
            "A port for /metrics alone", later=ONE_HTTP),
    Setting("Later", "", optional(address), "--dashboard-bind", "RIVVEN_DASHBOARD_BIND", "server.dashboard_bind",
            "An address for the dashboard alone", later=ONE_HTTP),
    Setting("Later", "", switch, "--tls-enabled", "RIVVEN_TLS_ENABLED", "tls.enabled server.tls.enabled",
            "Encrypted connections", default=False, later=TLS),
    Setting("Later", "", optional(path), "--tls-cert", "RIVVEN_TLS_CERT",
            "tls.cert_file tls.cert_path server.tls.cert_path", "The certificate", later=TLS),
    Setting("Later", "", optional(path), "--tls-key", "RIVVEN_TLS_KEY",
            "tls.key_file tls.key_path server.tls.key_path", "Its key", later=TLS),
    Setting("Later", "", optional(path), "--tls-ca", "RIVVEN_TLS_CA", "tls.ca_file tls.ca_path server.tls.ca_path",
            "Whose certificates are trusted", later=TLS),
    Setting("Later", "", switch, "--tls-verify-client", "RIVVEN_TLS_VERIFY_CLIENT", "tls.verify_client",
            "Ask clients for one", default=False, later=TLS),
    Setting("Later", "", switch, "", "", "auth.enabled", "Who may connect", default=False, later=AUTH),
)  # fmt: skip

SECTIONS_LATER = {
    "tls": TLS,
    "server.tls": TLS,
    "auth": AUTH,
    "authentication": AUTH,
    "authorization": "authorization",
    "rbac": "authorization",
    "cluster": CLUSTER,
    "storage.encryption": "encryption at rest",
    "storage.tiered": "tiered storage",
    "rate_limiting": "rate limits by client and topic (see limits.rate_limit_per_ip and quotas.defaults)",
    "defaults.compression": "a default compression (topics have compression.type)",
    "storage.retention_bytes": "a default retention (topics have retention.bytes)",
    "limits.max_message_size": "a default message size (topics have max.message.bytes)",
    "limits.max_batch_size": "a default batch size (topics have max.message.bytes)",
    "limits.max_key_size": "a limit for keys",
    "validation": "validation rules",
    "data_governance": "data governance",
    "audit": "an audit log",
}
"""What files in the wild hold besides. `enabled: false` in one of these is taken as it is meant."""


def _keys_of(kind: str) -> dict[str, tuple[Setting, bool]]:
    """Every key of a kind (flag, variable, path), with whether it says the opposite."""
    found: dict[str, tuple[Setting, bool]] = {}
    for setting in SETTINGS:
        for key in {"flags": setting.all_flags, "env": setting.env.split(), "paths": setting.paths.split()}[kind]:
            assert key.lstrip("!") not in found, f"{key} is there twice"
            found[key.lstrip("!")] = setting, key.startswith("!")
    return found


FLAGS, ENV, PATHS = _keys_of("flags"), _keys_of("env"), _keys_of("paths")
assert {name for setting in SETTINGS for name in setting.fields} == {item.name for item in fields(Settings)}
