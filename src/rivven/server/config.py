"""What `rivvend` can be told, and where it was told: one table, from which all else derives.

Flags, `RIVVEN_*` variables, the YAML file, `--help`, `--print-config` and docs/operate/configuration.md are read off
`SETTINGS`. A flag beats the environment, which beats the file, which beats the default. Whatever is wrong is
gathered, and each line names the key, the reason and what to write instead.
`python -m rivven.server.config` prints the page for the documentation.
"""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import json
import os.path
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import IO, TYPE_CHECKING, Any, NoReturn

from rivven import __version__
from rivven.errors import InvalidConfig
from rivven.limits import (
    GIB,
    KIB,
    MIB,
    PRODUCER_EXPIRY_MS,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
)
from rivven.log import SyncPolicy

if TYPE_CHECKING:
    from yaml import Node as YamlNode

FILE_BYTES_MAX = 1 * MIB
FILE_DEPTH_MAX = 8
NULL = "tag:yaml.org,2002:null"
REQUEST_BYTES_MAX = 1 * GIB
UNLIMITED = 2**53


class Misused(Exception):
    """What the user gave cannot be used; `problems` are lines for them to read."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


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


# From text to values. A parser raises ValueError with the reason, and what to write instead.

Parse = Callable[[str], Any]
UNITS = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
LEVELS = ("trace", "debug", "info", "warn", "error")


def _between(value: float, low: float, high: float, text: str) -> Any:
    if not low <= value <= high:
        nearest = low if value < low else high
        raise ValueError(f"{text} is outside {low} to {high}; the nearest is {nearest}")
    return value


def _number(low: int, high: int, kind: type[int] | type[float] = int) -> Parse:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise ValueError(f"{text!r} is not a {what}; write one from {low} to {high}") from None
        return _between(value, low, high, text)

    return parse


def _size(low: int, high: int) -> Parse:
    def parse(text: str) -> Any:
        match = re.fullmatch(r"([0-9][0-9_]*)\s*([a-zA-Z]*)", text.strip())
        if match is None or match[2].upper() not in UNITS:
            raise ValueError(f"{text!r} is not a size; write bytes, as 1048576, or a unit, as 1MiB")
        return _between(int(match[1]) * UNITS[match[2].upper()], low, high, text)

    return parse


def _optional(parse: Parse) -> Parse:
    return lambda text: None if text.lower() in ("", "none", "off") else parse(text)


def _choice(*choices: str) -> Parse:
    def parse(text: str) -> Any:
        if text.lower() in choices:
            return text.lower()
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}{_did_you_mean(text.lower(), choices)}")

    return parse


def _bool(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _word(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 255:
        raise ValueError(f"{text!r} is not a name; write 1 to 255 printable characters")
    return text.strip()


def _path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("the path is empty; write a directory, as ./data")
    return os.path.expanduser(text)


def _host(text: str) -> str:
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", name):
        raise ValueError(f"{text!r} is not a host; write a name or an address, as 127.0.0.1")
    return name


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or (":" in host and not host.startswith("[")) or not port.isdecimal():
        raise ValueError(f"{text!r} is not an address; write host:port, as 127.0.0.1:9092 or [::1]:9092")
    return _host(host), _number(0, 65535)(port)


def _sync_policy(text: str) -> str:
    """Also as some write it: EveryWrite, EveryNWrites(10), None."""
    snake = re.sub(r"(?<=[a-zA-Z])(?=[A-Z])", "_", text.strip()).lower()
    try:
        return str(SyncPolicy.parse(snake))
    except InvalidConfig as error:
        near = _did_you_mean(snake, ("every_write", "every_n_writes(10)", "none"))
        raise ValueError(f"{error.facts['reason']}{near}") from None


def _log_level(text: str) -> str:
    """A level, or of a filter such as `hyper=warn,info` the one that is for everything."""
    plain = [part.strip() for part in text.lower().split(",") if "=" not in part]
    level = plain[-1] if plain else text
    return str(_choice(*LEVELS)({"warning": "warn", "critical": "error"}.get(level, level)))


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
        return self.parse is _bool

    @property
    def all_flags(self) -> list[str]:
        flags = self.flags.split()
        if self.is_bool and len(flags) > 0 and not any(flag.startswith("!") for flag in flags):
            flags.append(f"!--no-{flags[0][2:]}")
        return flags

    def shown_default(self, at: Settings) -> str:
        values = [getattr(at, name) for name in self.fields] or [self.default]
        return ":".join(show(value) for value in values)


def show(value: Any) -> str:
    """As it would be written."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


CLUSTER, TLS, AUTH = "clusters", "TLS", "authentication"
ONE_HTTP = "a listener of its own (everything over HTTP is on --http-host and --http-port)"
MS = _number(1, 3_600_000)

SETTINGS: tuple[Setting, ...] = (
    Setting("Listening", "bind_host bind_port", _address, "--bind -b", "RIVVEN_BIND",
            "server.bind_address server.bind",
            "Where clients connect; port 0 takes any that is free", metavar="HOST:PORT"),
    Setting("Listening", "advertise_host advertise_port", _address, "--advertise-addr", "RIVVEN_ADVERTISE_ADDR",
            "server.advertise_address cluster.advertise_addr",
            "Where clients are told to connect; by default the bind address, or the host's name for a wildcard",
            metavar="HOST:PORT"),
    Setting("Listening", "allow_anonymous", _bool, "--allow-anonymous --no-require-auth",
            "RIVVEN_ALLOW_ANONYMOUS RIVVEN_NO_REQUIRE_AUTH", "server.allow_anonymous",
            "Let anybody in who can reach an address beyond loopback, without authentication"),
    Setting("Listening", "tcp_nodelay", _bool, "--tcp-nodelay", "RIVVEN_TCP_NODELAY", "server.tcp_nodelay",
            "Send small replies at once instead of gathering them"),
    Setting("Listening", "local_reads", _bool, "--local-reads", "RIVVEN_LOCAL_READS", "server.local_reads",
            "Tell clients on this machine where batches stand, so that they can read the files themselves"),
    Setting("HTTP", "http_host http_port", _address, "--http-bind --api-bind", "RIVVEN_HTTP_BIND RIVVEN_API_BIND",
            "server.http_bind", "Host and port of HTTP in one; the two below are stronger", metavar="HOST:PORT"),
    Setting("HTTP", "http_host", _host, "--http-host", "RIVVEN_HTTP_HOST", "server.http_host",
            "The address for HTTP: health, metrics and the status page", metavar="HOST"),
    Setting("HTTP", "http_port", _number(0, 65535), "--http-port", "RIVVEN_HTTP_PORT", "server.http_port",
            "The port for HTTP; 0 turns it off", metavar="PORT"),
    Setting("HTTP", "metrics", _bool, "--metrics", "RIVVEN_METRICS", "observability.metrics.enabled",
            "Serve /metrics for Prometheus"),
    Setting("HTTP", "dashboard", _bool, "--dashboard !--no-dashboard", "RIVVEN_DASHBOARD !RIVVEN_NO_DASHBOARD",
            "server.dashboard", "Serve the status page at /"),
    Setting("Storage", "data_dir", _path, "--data-dir -d", "RIVVEN_DATA_DIR", "storage.data_dir node.data_dir",
            "The directory that holds everything; made if need be", metavar="DIR"),
    Setting("Storage", "sync_policy", _sync_policy, "--sync-policy", "RIVVEN_SYNC_POLICY",
            "storage.sync_policy server.sync_policy",
            "When a write counts as done: every_write (after its sync), every_n_writes(N), none", metavar="POLICY"),
    Setting("Storage", "max_segment_size", _size(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX), "--max-segment-size",
            "RIVVEN_MAX_SEGMENT_SIZE", "storage.segment_bytes storage.segment_size",
            "How large a segment grows, in topics that do not say", unit="bytes"),
    Setting("Storage", "clean_interval_secs", _number(1, 86_400, float), "--clean-interval-secs",
            "RIVVEN_CLEAN_INTERVAL_SECS", "storage.clean_interval_secs",
            "How often retention and compaction look for work", unit="seconds"),
    Setting("Topics", "default_partitions", _number(1, 1000), "--default-partitions", "RIVVEN_DEFAULT_PARTITIONS",
            "topics.default_partitions", "Partitions of a topic that does not say", metavar="N"),
    Setting("Topics", "auto_create_topics", _bool, "--auto-create-topics", "RIVVEN_AUTO_CREATE_TOPICS",
            "topics.auto_create", "Make a topic when somebody publishes to it"),
    Setting("Topics", "partitioner_batch_size", _number(1, 2**31 - 1), "--partitioner-batch-size",
            "RIVVEN_PARTITIONER_BATCH_SIZE", "topics.partitioner_batch_size",
            "Records without a key that stay with one partition before the next has its turn", unit="records"),
    Setting("Topics", "partitioner_linger_ms", _number(0, 3_600_000), "--partitioner-linger-ms",
            "RIVVEN_PARTITIONER_LINGER_MS", "topics.partitioner_linger_ms",
            "And for how long at most", unit="ms"),
    Setting("Groups", "group_initial_rebalance_delay_ms", _number(0, 3_600_000), "--group-initial-rebalance-delay-ms",
            "RIVVEN_GROUP_INITIAL_REBALANCE_DELAY_MS", "groups.initial_rebalance_delay_ms",
            "For how long the first member of a group waits for company", unit="ms"),
    Setting("Groups", "group_min_session_timeout_ms", _number(1, 86_400_000), "--group-min-session-timeout-ms",
            "RIVVEN_GROUP_MIN_SESSION_TIMEOUT_MS", "groups.min_session_timeout_ms",
            "The shortest silence that a member may ask to be allowed", unit="ms"),
    Setting("Groups", "group_max_session_timeout_ms", _number(1, 86_400_000), "--group-max-session-timeout-ms",
            "RIVVEN_GROUP_MAX_SESSION_TIMEOUT_MS", "groups.max_session_timeout_ms",
            "The longest silence that a member may ask to be allowed", unit="ms"),
    Setting("Groups", "group_consumer_heartbeat_ms", _number(1, 3_600_000), "--group-consumer-heartbeat-ms",
            "RIVVEN_GROUP_CONSUMER_HEARTBEAT_MS", "groups.consumer_heartbeat_ms",
            "How often a member is to be heard whose partitions the broker assigns", unit="ms"),
    Setting("Groups", "group_consumer_session_timeout_ms", _number(1, 86_400_000),
            "--group-consumer-session-timeout-ms", "RIVVEN_GROUP_CONSUMER_SESSION_TIMEOUT_MS",
            "groups.consumer_session_timeout_ms", "Such a member that is silent for so long is let go", unit="ms"),
    Setting("Groups", "offsets_retention_minutes", _number(1, 2**31 - 1), "--offsets-retention-minutes",
            "RIVVEN_OFFSETS_RETENTION_MINUTES", "groups.offsets_retention_minutes",
            "For how long the offsets of a group without members are kept", unit="minutes"),
    Setting("Transactions", "transaction_max_timeout_ms", _number(1, 2**31 - 1), "--transaction-max-timeout-ms",
            "RIVVEN_TRANSACTION_MAX_TIMEOUT_MS", "transactions.max_timeout_ms",
            "The longest timeout that a transaction may ask for", unit="ms"),
    Setting("Transactions", "transactional_id_expiration_ms", _number(1, 2**31 - 1),
            "--transactional-id-expiration-ms", "RIVVEN_TRANSACTIONAL_ID_EXPIRATION_MS",
            "transactions.id_expiration_ms", "A transactional id that nobody uses for so long is gone", unit="ms"),
    Setting("Transactions", "producer_id_expiration_ms", _number(1, 2**31 - 1), "--producer-id-expiration-ms",
            "RIVVEN_PRODUCER_ID_EXPIRATION_MS", "transactions.producer_id_expiration_ms",
            "A producer that is silent for so long is forgotten, and what it sends again is stored again", unit="ms"),
    Setting("Limits", "max_connections_per_ip", _number(1, 1_000_000), "--max-connections-per-ip",
            "RIVVEN_MAX_CONNECTIONS_PER_IP", "limits.max_connections_per_ip",
            "Connections from one address", metavar="N"),
    Setting("Limits", "max_total_connections", _number(1, 1_000_000), "--max-total-connections",
            "RIVVEN_MAX_TOTAL_CONNECTIONS", "limits.max_total_connections", "Connections altogether", metavar="N"),
    Setting("Limits", "rate_limit_per_ip", _number(0, UNLIMITED), "--rate-limit-per-ip", "RIVVEN_RATE_LIMIT_PER_IP",
            "limits.rate_limit_per_ip", "Requests a second from one address; 0 is no limit", unit="requests/s"),
    Setting("Limits", "max_request_size", _size(1 * KIB, REQUEST_BYTES_MAX), "--max-request-size",
            "RIVVEN_MAX_REQUEST_SIZE", "limits.max_request_size", "The largest request", unit="bytes"),
    Setting("Limits", "max_inflight_bytes", _size(1 * KIB, UNLIMITED), "--max-inflight-bytes",
            "RIVVEN_MAX_INFLIGHT_BYTES", "limits.max_inflight_bytes",
            "Memory for the requests under way, of all clients together", unit="bytes"),
    Setting("Limits", "idle_timeout_secs", _number(1, 86_400, float), "--idle-timeout-secs",
            "RIVVEN_IDLE_TIMEOUT_SECS", "limits.idle_timeout_secs",
            "A connection that is silent for so long is closed", unit="seconds"),
    Setting("Quotas", "quota_produce_bytes_rate", _optional(_size(1, UNLIMITED)), "--quota-produce-bytes-rate",
            "RIVVEN_QUOTA_PRODUCE_BYTES_RATE", "quotas.defaults.produce_bytes_rate",
            "What a client may publish unless it has a quota of its own", unit="bytes/s"),
    Setting("Quotas", "quota_consume_bytes_rate", _optional(_size(1, UNLIMITED)), "--quota-consume-bytes-rate",
            "RIVVEN_QUOTA_CONSUME_BYTES_RATE", "quotas.defaults.consume_bytes_rate",
            "What a client may read", unit="bytes/s"),
    Setting("Quotas", "quota_request_rate", _optional(_number(1, UNLIMITED)), "--quota-request-rate",
            "RIVVEN_QUOTA_REQUEST_RATE", "quotas.defaults.request_rate",
            "How often a client may ask", unit="requests/s"),
    Setting("This node", "node_id", _word, "--node-id", "RIVVEN_NODE_ID", "node.id cluster.node_id",
            "Its name; by default the host's name and the port", metavar="NAME"),
    Setting("This node", "broker_id", _number(0, 2**31 - 1), "--broker-id", "RIVVEN_BROKER_ID", "node.broker_id",
            "Its number, which Kafka's clients know it by"),
    Setting("This node", "rack", _optional(_word), "--rack", "RIVVEN_RACK", "node.rack cluster.rack",
            "Where it stands, for clients that prefer one nearby", metavar="NAME"),
    Setting("This node", "log_level", _log_level, "--log-level -l", "RIVVEN_LOG_LEVEL RUST_LOG",
            "log.level", "What is told on stderr: trace, debug, info, warn, error", metavar="LEVEL"),
    Setting("This node", "log_format", _choice("text", "json"), "--log-format", "RIVVEN_LOG_FORMAT", "log.format",
            "text or json, a line for each event", metavar="FORMAT"),
    Setting("This node", "loop", _choice("auto", "uvloop", "asyncio"), "--loop", "RIVVEN_LOOP", "node.loop",
            "The event loop: uvloop, asyncio, or auto for the faster that is installed", metavar="LOOP"),
    Setting("Later", "", _bool, "--persistence", "RIVVEN_PERSISTENCE", "storage.persistence",
            "Keep data on disk", default=True, later="a broker without a disk"),
    Setting("Later", "", _choice("standalone", "cluster"), "--mode", "RIVVEN_MODE", "cluster.mode",
            "standalone or cluster", default="standalone", later=CLUSTER),
    Setting("Later", "", _word, "--cluster-name", "RIVVEN_CLUSTER_NAME", "cluster.name",
            "A label; any is accepted", default="rivven-cluster", later=CLUSTER, harmless=None),
    Setting("Later", "", _word, "--datacenter", "RIVVEN_DATACENTER", "cluster.datacenter",
            "A label; any is accepted", default="default", later=CLUSTER, harmless=None),
    Setting("Later", "", _optional(str), "--seeds", "RIVVEN_SEEDS", "cluster.seeds cluster.peers",
            "Other nodes to join", later=CLUSTER),
    Setting("Later", "", _optional(_address), "--cluster-bind", "RIVVEN_CLUSTER_BIND", "cluster.bind",
            "Where other nodes connect", later=CLUSTER),
    Setting("Later", "", _number(1, 100), "--replication-factor", "RIVVEN_REPLICATION_FACTOR",
            "cluster.replication_factor", "Copies of a partition; one node keeps one", default=3, later=CLUSTER,
            harmless=(1,)),
    Setting("Later", "", _number(1, 100), "--min-isr", "RIVVEN_MIN_ISR", "cluster.min_isr",
            "Copies that must be in step", default=2, later=CLUSTER, harmless=(1,)),
    Setting("Later", "", MS, "--replica-fetch-ms", "RIVVEN_REPLICA_FETCH_MS", "cluster.replica_fetch_ms",
            "How often a copy asks for more", default=100, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--replica-lag-ms", "RIVVEN_REPLICA_LAG_MS", "cluster.replica_lag_ms",
            "How far a copy may be behind", default=30_000, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--swim-interval-ms", "RIVVEN_SWIM_INTERVAL_MS", "cluster.swim_interval_ms",
            "How often nodes ask after one another", default=1000, later=CLUSTER, unit="ms"),
    Setting("Later", "", _number(1, 100), "--swim-indirect-targets", "RIVVEN_SWIM_INDIRECT_TARGETS",
            "cluster.swim_indirect_targets", "How many are asked to try instead", default=3, later=CLUSTER),
    Setting("Later", "", _number(1, 100), "--swim-suspicion-mult", "RIVVEN_SWIM_SUSPICION_MULT",
            "cluster.swim_suspicion_mult", "How patiently", default=4, later=CLUSTER),
    Setting("Later", "", MS, "--raft-heartbeat-ms", "RIVVEN_RAFT_HEARTBEAT_MS", "cluster.raft_heartbeat_ms",
            "The leader's sign of life", default=50, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--raft-election-min-ms", "RIVVEN_RAFT_ELECTION_MIN_MS", "cluster.raft_election_min_ms",
            "The shortest wait for a leader", default=150, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--raft-election-max-ms", "RIVVEN_RAFT_ELECTION_MAX_MS", "cluster.raft_election_max_ms",
            "The longest", default=300, later=CLUSTER, unit="ms"),
    Setting("Later", "", MS, "--connect-timeout-ms", "RIVVEN_CONNECT_TIMEOUT_MS", "cluster.connect_timeout_ms",
            "To reach another node", default=5000, later=CLUSTER, unit="ms"),
    Setting("Later", "", _optional(str), "--cluster-auth-token", "RIVVEN_CLUSTER_AUTH_TOKEN", "cluster.auth_token",
            "What nodes know one another by", later=CLUSTER, secret=True),
    Setting("Later", "", _optional(_number(1, 1024)), "--io-threads", "RIVVEN_IO_THREADS", "server.io_threads",
            "Threads; a node is one process with one event loop", later="several event loops in one node"),
    Setting("Later", "", _optional(_address), "--metrics-bind", "RIVVEN_METRICS_BIND", "observability.metrics.bind",
            "An address for /metrics alone", later=ONE_HTTP),
    Setting("Later", "", _optional(_number(0, 65535)), "", "", "observability.metrics.port",
            "A port for /metrics alone", later=ONE_HTTP),
    Setting("Later", "", _optional(_address), "--dashboard-bind", "RIVVEN_DASHBOARD_BIND", "server.dashboard_bind",
            "An address for the dashboard alone", later=ONE_HTTP),
    Setting("Later", "", _bool, "--tls-enabled", "RIVVEN_TLS_ENABLED", "tls.enabled server.tls.enabled",
            "Encrypted connections", default=False, later=TLS),
    Setting("Later", "", _optional(_path), "--tls-cert", "RIVVEN_TLS_CERT",
            "tls.cert_file tls.cert_path server.tls.cert_path", "The certificate", later=TLS),
    Setting("Later", "", _optional(_path), "--tls-key", "RIVVEN_TLS_KEY",
            "tls.key_file tls.key_path server.tls.key_path", "Its key", later=TLS),
    Setting("Later", "", _optional(_path), "--tls-ca", "RIVVEN_TLS_CA", "tls.ca_file tls.ca_path server.tls.ca_path",
            "Whose certificates are trusted", later=TLS),
    Setting("Later", "", _bool, "--tls-verify-client", "RIVVEN_TLS_VERIFY_CLIENT", "tls.verify_client",
            "Ask clients for one", default=False, later=TLS),
    Setting("Later", "", _bool, "", "", "auth.enabled", "Who may connect", default=False, later=AUTH),
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

NOT_SETTINGS = {"RIVVEN_CONFIG", "RIVVEN_PURE", "RIVVEN_NO_NATIVE", "RIVVEN_SERVER"}
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP)|$)")
"""What Kubernetes puts into the environment of every pod beside a service called rivven."""


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


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


# What was given, and where


@dataclass(frozen=True, slots=True)
class Origin:
    source: str
    """flag, environment, file or default"""
    key: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.line}: {self.key}"
        return self.key or self.source


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Given:
    setting: Setting
    negated: bool
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Resolved:
    settings: Settings
    origins: dict[str, Origin]
    """By field of the settings; what is not here is a default."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CommandLine:
    given: list[Given]
    config: str | None = None
    print_config: bool = False
    as_json: bool = False


def resolve(line: CommandLine, environment: Mapping[str, str]) -> Resolved:
    """Weigh the four sources against one another. Raises `Misused` with everything that is wrong."""
    problems: list[str] = []
    warnings: list[str] = []
    path = line.config or environment.get("RIVVEN_CONFIG")
    from_file = read_file(path, problems) if path else []
    from_environment = read_environment(environment, problems, warnings)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for source in (from_file, from_environment, line.given):
        # What fills two fields comes first: what fills one of them is more specific.
        for given in sorted(source, key=lambda given: -len(given.setting.fields)):
            for name, value in _parsed(given, problems).items():
                values[name] = value
                origins[name] = given.origin
    settings = Settings(**values)
    if not problems:
        problems += check(settings, origins)
    if problems:
        raise Misused(problems)
    return Resolved(settings, origins, warnings)


def _parsed(given: Given, problems: list[str]) -> dict[str, Any]:
    """The fields and what they become; nothing if the value is wrong, or of a feature that is yet to come."""
    setting = given.setting
    try:
        value = setting.parse(given.text)
    except ValueError as error:
        problems.append(f"{given.origin}: {'the value is malformed' if setting.secret else error}")
        return {}
    if given.negated:
        value = not value
    if setting.later and setting.harmless is not None and value not in (setting.default, *setting.harmless):
        problems.append(f"{given.origin}: {_not_yet(setting.later)}; leave it out, or at {show(setting.default)}")
    names = setting.fields
    return dict(zip(names, value if len(names) > 1 else [value], strict=True)) if names else {}


def check(settings: Settings, origins: Mapping[str, Origin]) -> list[str]:
    """What is wrong with values that are right each for itself."""

    def at(name: str) -> Origin:
        return origins.get(name, DEFAULT)

    problems = []
    listeners = [(settings.bind_host, "bind_host", "--bind 127.0.0.1:9092")]
    if settings.http_port:
        listeners.append((settings.http_host, "http_host", "--http-host 127.0.0.1"))
    for host, name, instead in listeners:
        if not settings.allow_anonymous and not _is_loopback(host):
            problems.append(
                f"{at(name)}: {host} can be reached from other machines, and nobody would have to say who they are; "
                f"use {instead}, or say --allow-anonymous if that is meant"
            )
    if settings.http_port and (settings.http_host, settings.http_port) == (settings.bind_host, settings.bind_port):
        problems.append(
            f"{at('http_port')}: HTTP and clients cannot share port {settings.http_port}; "
            "give --http-port another, or 0"
        )
    for low, high in (
        ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
        ("group_consumer_heartbeat_ms", "group_consumer_session_timeout_ms"),
    ):
        if getattr(settings, low) > getattr(settings, high):
            problems.append(
                f"{at(low)}: {low} {getattr(settings, low)} is above {high} {getattr(settings, high)}; "
                "lower the one or raise the other"
            )
    if settings.max_inflight_bytes < settings.max_request_size:
        problems.append(
            f"{at('max_inflight_bytes')}: max_inflight_bytes {settings.max_inflight_bytes} has no room for one "
            f"request of max_request_size {settings.max_request_size}; raise the one or lower the other"
        )
    return problems


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def read_environment(environment: Mapping[str, str], problems: list[str], warnings: list[str]) -> list[Given]:
    """A variable that nobody knows is a warning: it may be meant for a client that shares the environment."""
    found = []
    for key in sorted(environment):
        if key in ENV:
            found.append(Given(*ENV[key], environment[key], Origin("environment", key)))
        elif key.startswith("RIVVEN_") and key not in NOT_SETTINGS and not SERVICE_LINK.search(key):
            warnings.append(f"{key} is not a setting of rivvend and is ignored{_did_you_mean(key, ENV)}")
    _refuse_doubles(found, problems)
    plain = {id(given.setting) for given in found if given.origin.key != "RUST_LOG"}
    return [given for given in found if given.origin.key != "RUST_LOG" or id(given.setting) not in plain]


def _refuse_doubles(found: list[Given], problems: list[str]) -> None:
    seen: dict[int, Given] = {}
    for given in found:
        if given.origin.key == "RUST_LOG":
            continue  # set for others, mostly; our own variable is stronger
        other = seen.setdefault(id(given.setting), given)
        if other is not given:
            problems.append(f"{given.origin}: {other.origin.key} sets the same; keep one of them")


# The file


def read_file(path: str, problems: list[str]) -> list[Given]:
    import yaml  # only who has a file waits for this

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Misused([f"--config {path}: cannot be read: {why}"]) from None
    if len(text) > FILE_BYTES_MAX:
        raise Misused([f"--config {path}: is larger than {FILE_BYTES_MAX} bytes"])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise Misused([f"{where}: not YAML: {getattr(error, 'problem', None) or error}"]) from None
    except RecursionError:
        raise Misused([f"{path}: is nested too deeply"]) from None
    found: list[Given] = []
    if root is not None:
        _read_node(root, "", path, found, problems)
    _refuse_doubles(found, problems)
    return found


def _read_node(
    node: YamlNode, at: str, path: str, found: list[Given], problems: list[str], *, off: bool = False
) -> None:
    """Walk a mapping; scalars are taken as the text they are written in. `off` is a feature that is yet to come and
    turned off: what it would need is passed over."""
    import yaml

    if not isinstance(node, yaml.MappingNode) or at.count(".") > FILE_DEPTH_MAX:
        where = f"{path}:{node.start_mark.line + 1}: {at or 'the file'}"
        problems.append(f"{where}: wants keys and values below it, as `server:` and `  http_port: 8080`")
        return
    seen = set()
    for key_node, value in node.value:
        name = f"{at}.{key_node.value}" if at else str(key_node.value)
        origin = Origin("file", name, path, key_node.start_mark.line + 1)
        if name in seen:
            problems.append(f"{origin}: is there twice")
        seen.add(name)
        if name in PATHS:
            if not (off and PATHS[name][0].later):
                _read_value(value, name, origin, found, problems)
        elif _is_section(name):
            if value.tag != NULL:
                lacking = name in SECTIONS_LATER and _means_off(value)
                _read_node(value, name, path, found, problems, off=lacking)
        elif (feature := _feature_of(name)) is None:
            problems.append(f"{origin}: unknown key{_nearest_path(name)}")
        elif not off and not _means_off(value):
            problems.append(f"{origin}: {_not_yet(feature)}{_did_you_mean(name, PATHS)}")


def _feature_of(name: str) -> str | None:
    """The feature yet to come that a key belongs to, by itself or by a section above it."""
    while name:
        if name in SECTIONS_LATER:
            return SECTIONS_LATER[name]
        name = name.rpartition(".")[0]
    return None


def _not_yet(feature: str) -> str:
    return f"not available yet in rivven {__version__}, since it needs {feature}"


def _read_value(value: YamlNode, name: str, origin: Origin, found: list[Given], problems: list[str]) -> None:
    import yaml

    if isinstance(value, yaml.ScalarNode):
        if value.tag != NULL:
            found.append(Given(*PATHS[name], value.value, origin))
    elif isinstance(value, yaml.SequenceNode) and PATHS[name][0].later:
        items = ",".join(str(item.value) for item in value.value)
        found.append(Given(*PATHS[name], items, origin))
    else:
        problems.append(f"{origin}: wants a single value")


def _is_section(name: str) -> bool:
    return any(known.startswith(f"{name}.") for known in (*PATHS, *SECTIONS_LATER))


def _means_off(value: YamlNode) -> bool:
    """`enabled: false`, or nothing at all."""
    import yaml

    if isinstance(value, yaml.MappingNode):
        switch = [item.value for key, item in value.value if key.value == "enabled"]
        return not value.value or (len(switch) == 1 and str(switch[0]).lower() in FALSE)
    return bool(value.tag == NULL)


def _nearest_path(name: str) -> str:
    *above, last = name.split(".")
    for known in PATHS:  # the right key in the wrong place
        if known.rpartition(".")[2] == last and not PATHS[known][0].later:
            return f"; did you mean {known}?"
    sections = {known.split(".")[0] for known in PATHS}
    return _did_you_mean(name, PATHS if above else [*sections, *PATHS]) or f"; see {PAGE}"


# The command line

PAGE = "docs/operate/configuration.md"


class _Record(argparse.Action):
    """Note the flag as it was written, beside its value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        del parser
        assert option_string is not None
        namespace.given.append(Given(*FLAGS[option_string], values, Origin("flag", option_string)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misused([message])


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="rivvend",
        usage="rivvend [flags]",
        description="The rivven broker: a durable log that speaks the native protocol and Kafka's on one port.",
        epilog=f"A flag beats its RIVVEN_ variable, which beats the file, which beats the default. Details: {PAGE}",
        allow_abbrev=False,
        add_help=False,
    )
    first = made.add_argument_group("First of all")
    first.add_argument("-h", "--help", action="help", help="show this and exit")
    first.add_argument("-V", "--version", action="version", version=f"rivvend {__version__}", help="show the version")
    first.add_argument("--config", metavar="FILE", help="read settings from a YAML file (env RIVVEN_CONFIG)")
    first.add_argument("--print-config", action="store_true", help="show the settings and their origins, and exit")
    first.add_argument("--json", action="store_true", help="with --print-config: as JSON")
    defaults = Settings()
    groups = {}
    for setting in SETTINGS:
        if not setting.flags:
            continue
        if setting.group not in groups:
            title = "Accepted, but not available yet" if setting.group == "Later" else setting.group
            groups[setting.group] = made.add_argument_group(title)
        first_env = setting.env.split()[0].lstrip("!")
        groups[setting.group].add_argument(
            *(flag.lstrip("!") for flag in setting.all_flags),
            action=_Record,
            dest="given",
            metavar="BOOL" if setting.is_bool else setting.metavar or setting.unit.upper() or "VALUE",
            help=f"{setting.help} (default {setting.shown_default(defaults)}; env {first_env})".replace("%", "%%"),
            nargs="?" if setting.is_bool else None,
            const="true" if setting.is_bool else None,
        )
    made.set_defaults(given=None)
    return made


def parse_line(arguments: Sequence[str]) -> CommandLine:
    """Read a command line. Raises `Misused`; `--help` and `--version` print and raise SystemExit(0)."""
    found, unknown = parser().parse_known_args(arguments, argparse.Namespace(given=[]))
    problems = []
    for word in unknown:
        flag = word.split("=")[0]
        if flag.startswith("-"):
            near = _did_you_mean(flag, [*FLAGS, "--config", "--print-config", "--json", "--help", "--version"])
            problems.append(f"unknown flag {flag}{near or '; see rivvend --help'}")
        elif len(unknown) == 1:
            problems.append(f"unexpected {word!r}: rivvend takes flags alone; see rivvend --help")
    if found.json and not found.print_config:
        problems.append("--json goes with --print-config; for logs in JSON say --log-format json")
    if problems:
        raise Misused(problems)
    return CommandLine(found.given, found.config, found.print_config, found.json)


# Showing it


def secrets() -> set[str]:
    return {name for setting in SETTINGS if setting.secret for name in setting.fields}


def print_config(resolved: Resolved, out: IO[str], *, as_json: bool = False) -> None:
    """Every setting, its value, and where it came from. Secrets are not shown."""
    hidden = secrets()
    rows = {}
    for item in fields(Settings):
        value = getattr(resolved.settings, item.name)
        shown = "(set, not shown)" if item.name in hidden and value else value
        rows[item.name] = shown, resolved.origins.get(item.name, DEFAULT)
    if as_json:
        page = {
            name: {"value": value, "source": origin.source, "key": origin.key or None, "file": origin.file or None}
            for name, (value, origin) in rows.items()
        }
        print(json.dumps({"version": __version__, "settings": page}, indent=2), file=out)
        return
    wide = max(map(len, rows)), max(len(show(value)) for value, _ in rows.values())
    for name, (value, origin) in rows.items():
        where = origin.source if origin is DEFAULT else f"{origin.source} {origin}"
        print(f"{name:{wide[0]}}  {show(value):{wide[1]}}  {where}", file=out)


def docs_page() -> str:
    """docs/operate/configuration.md."""
    groups: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        groups.setdefault(setting.group, []).append(setting)
    lines = [INTRODUCTION]
    for group, rows in groups.items():
        lines.append(f"\n## {LATER_TITLE if group == 'Later' else group}\n")
        if group == "Later":
            lines.append(LATER_TEXT)
        lines += ["| flag | environment | in the file | default | what it is |", "|---|---|---|---|---|"]
        for row in rows:
            cells = [_code(row.all_flags), _code(row.env.split()), _code(row.paths.split()), _doc_default(row)]
            lines.append(f"| {' | '.join(cells)} | {row.help}{f' ({row.unit})' if row.unit else ''} |")
    sections = ", ".join(f"`{name}`" for name in SECTIONS_LATER if not _is_section(name))
    lines.append(f"\nSections of a file that are taken with `enabled: false` only: {sections}.")
    return "\n".join(lines) + "\n"


def _code(keys: list[str]) -> str:
    return "<br>".join(f"`{key.lstrip('!')}`" for key in keys) or "-"


def _doc_default(row: Setting) -> str:
    special = {"node_id": "host name, port", "advertise_host advertise_port": "bind address"}
    return special.get(row.into) or f"`{row.shown_default(Settings())}`"


INTRODUCTION = """\
# Configuration

<!-- Written by `python -m rivven.server.config`; a test holds it to the code. -->

`rivvend` needs none: without a word it keeps its data in `./data`, serves clients on 127.0.0.1:9092 and HTTP on
127.0.0.1:8080. Whatever is said differently is said by a flag, by an environment variable or in a YAML file, and
**a flag beats the environment, which beats the file, which beats the default**. `rivvend --print-config` shows
the result and where each value came from, with `--json` for programs. What is wrong is named, all of it at once,
and `rivvend` ends with code 2.

```yaml
# rivvend --config rivven.yaml, or RIVVEN_CONFIG=rivven.yaml
server:
  bind_address: 127.0.0.1:9092
  http_port: 8080
storage:
  data_dir: /var/lib/rivven
  sync_policy: every_write
quotas:
  defaults:
    produce_bytes_rate: 50MiB
```

Sizes are bytes, or have a unit: `512KiB`, `1GiB`, `10MB`. A switch is `true` or `false`; as a flag it needs no
value, and `--no-...` turns it off. Limits that are off say `none`.

An address other than loopback is refused unless `--allow-anonymous` says that everybody who reaches it may come
in. An unknown flag or key in the file is an error that names the nearest there is; an unknown `RIVVEN_` variable
is a warning, since it may be meant for another program."""

LATER_TITLE = "Accepted, but not available yet"
LATER_TEXT = """\
These are known, so that a file or a unit that names them works as long as it leaves them at their defaults.
Anything else is refused with the name of the feature that is missing; of copies, 1 is taken, too, since that is
what there is.
"""


if __name__ == "__main__":
    print(docs_page(), end="")
