"""The pipeline file: which sources fill which topics, which sinks drain them, and how all of it runs.

`load` reads a file and checks all of it, down to the settings of every connector, without Spark and in one go: the
result is a `ConnectConfig`, or every mistake with its line.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from . import registry
from .document import BYTES_MAX, parse
from .nodes import Mistake, Node
from .sdk import ArrowSource, Connector, Kind, Sink, Source, Transform
from .settings import Settings, join, read_settings, setting

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)?", re.IGNORECASE)
SERVER_PORT = re.compile(r"(?:^[^:]*|\]):[^:\]]*$")
HOST = re.compile(r"[\w.-]+")
SERVER_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
DAY_MS = 86_400_000
UNITS_MS = {"m": 60_000, "h": 3_600_000, "s": 1000}

ENVELOPE_DOC = "How records stand in a topic: `event` with type, stream and time around `data`, `plain` as they are."
DEAD_LETTER_DOC = "Where records go that cannot be read or that the sink refuses; without it they stop the pipeline."


def duration_ms(text: str) -> int | None:
    """`500ms`, `10s`, `1 minute` in milliseconds; None for what is none. A bare number counts seconds."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        return None
    unit = (found[2] or "s").lower()
    factor = 1 if unit.startswith(("ms", "milli")) else UNITS_MS[unit[0]]
    return round(min(float(found[1]) * factor, 2.0**53))


def _duration(text: str) -> str | None:
    found = duration_ms(text)
    if found is None:
        return f"{_cut(text)!r} is no duration; write it like 500ms, 10s or 1m"
    return "must be at most a day" if found > DAY_MS else None


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _servers(texts: Iterable[str]) -> str | None:
    return next(filter(None, map(_server, addresses(texts))), None)


def addresses(texts: Iterable[str]) -> list[str]:
    """One by one: a variable of the environment has several in one text, with commas between them."""
    return [each.strip() for text in texts for each in text.split(",")]


def _server(text: str) -> str | None:
    host, _, port = text.rpartition(":") if SERVER_PORT.search(text) else (text, "", "9092")
    plain = host and not host.startswith("[") and HOST.fullmatch(host)
    if (plain or SERVER_IPV6.fullmatch(host)) and port.isdecimal() and 0 < int(port[:6]) < 65_536:
        return None
    return f"{_cut(text)!r} is no address of a broker; write it as host:port"


def _topic(text: str) -> str | None:
    if TOPIC.fullmatch(text) and text not in (".", ".."):
        return None
    return f"{_cut(text)!r} is no name of a topic; use up to 249 letters, digits, dots, dashes and underscores"


def _topics(texts: Iterable[str]) -> str | None:
    return next(filter(None, map(_topic, texts)), None)


# The broker


class Tls(Settings):
    enabled: bool = setting("Speak TLS with the broker.", default=False)
    ca_path: str | None = setting("The certificates to trust, as a PEM file.", default=None)
    cert_path: str | None = setting("The client's certificate.", default=None)
    key_path: str | None = setting("The key of that certificate.", default=None)
    server_name: str | None = setting("The name in the server's certificate, if not the host's.", default=None)
    insecure: bool = setting("Do not check the certificate.", default=False)

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.enabled and self.insecure:
            yield "insecure", "is not offered: name the certificates to trust in ca_path"
        if self.enabled and self.ca_path is None:
            yield "ca_path", "is needed with TLS: a PEM file with the certificates to trust"
        if (self.cert_path is None) != (self.key_path is None):
            yield "cert_path", "and key_path come together"


class Broker(Settings):
    """Where the topics are."""

    bootstrap_servers: list[str] = setting(
        "Brokers as host:port; the first that answers is asked, the others take over.",
        least=1,
        example=["localhost:9092"],
        check=_servers,
    )
    metadata_refresh_ms: int = setting(
        "How often the cluster is asked about itself.",
        default=300_000,
        least=1,
        ignored="the client asks again whenever a leader has moved",
    )
    connection_timeout_ms: int = setting("How long a connection may take.", default=10_000, least=1, most=86_400_000)
    request_timeout_ms: int = setting("How long an answer may take.", default=30_000, least=1, most=86_400_000)
    tls: Tls = setting("TLS to the broker.", factory=Tls)

    @property
    def servers(self) -> list[str]:
        return addresses(self.bootstrap_servers)


# Sources, sinks, pipelines


class FieldValue(Settings):
    field: str = setting("The field.")
    value: Any = setting("What it must be equal to.")


class Predicate(Settings):
    """Which records a transform is for; all that is given must hold."""

    table: str | None = setting("A regular expression for the stream.", default=None)
    tables: list[str] = setting("Streams.", factory=list)
    schema: str | None = setting("The namespace.", default=None)
    schemas: list[str] = setting("Namespaces.", factory=list)
    database: str | None = setting("The database, as the source gives it in its metadata.", default=None)
    operations: list[str] = setting("Kinds of events: insert, update, delete, record.", factory=list)
    field_exists: str | None = setting("A field that is not null.", default=None)
    field_value: FieldValue | None = setting("A field with a value.", default=None)
    negate: bool = setting("Turn it round.", default=False)


class Step(Settings):
    """One transform of a list."""

    type: str = setting("Which transform; `rivven-connect connectors` lists them.")
    name: str = setting("A name for people.", default="")
    predicate: Predicate | None = setting("Only for records like this.", default=None)
    config: Node | Settings | None = setting("The transform's own settings.", default=None)

    @classmethod
    def finish(cls, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
        _connector("transform", "type", values, node, path, mistakes)

    def make(self) -> Transform[Any]:
        made = _made("transform", self.type, self.config)
        assert isinstance(made, Transform), "the registry looks at the class"
        return made


class SourceRate(Settings):
    events_per_second: int = setting("Records per second; 0 for no limit.", default=0, least=0, most=1_000_000_000)
    max_in_flight: int = setting(
        "Records under way.", default=0, least=0, ignored="Spark reads one micro-batch after another"
    )
    burst_size: int = setting(
        "Records that may come at once.", default=0, least=0, ignored="up to ten seconds' worth is made up for"
    )


class SinkRate(Settings):
    events_per_second: int = setting("Records per second; 0 for no limit.", default=0, least=0, most=1_000_000_000)
    burst_capacity: int | None = setting(
        "Records that may come at once.", default=None, least=0, ignored="a micro-batch has what its trigger allows"
    )


class TopicConfig(Settings):
    """How a source's topic is made if it is not there."""

    partitions: int | None = setting("Its partitions.", default=None, least=1, most=10_000)
    replication_factor: int | None = setting("Copies of each.", default=None, least=1, most=32_767)
    auto_create: bool | None = setting("Make it if it is not there; by default as in `settings.topic`.", default=None)
    config: dict[str, str] = setting("Topic settings, like retention.ms.", factory=dict)


class Table(Settings):
    schema: str | None = setting("The table's schema.", default=None)
    table: str = setting("The table.")
    topic: str | None = setting("The topic for it.", default=None)


class _NamesSource:
    """Names a source, and has its settings."""

    connector: str
    config: Node | Settings | None

    @classmethod
    def finish(cls, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
        _connector("source", "connector", values, node, path, mistakes)
        _look_at_rate(values, node, path, mistakes)

    def make(self) -> Source[Any]:
        made = _made("source", self.connector, self.config)
        assert isinstance(made, Source), "the registry looks at the class"
        return made


class _NamesSink:
    """Names a sink, and has its settings."""

    connector: str
    config: Node | Settings | None

    @classmethod
    def finish(cls, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
        _connector("sink", "connector", values, node, path, mistakes)

    def make(self) -> Sink[Any]:
        made = _made("sink", self.connector, self.config)
        assert isinstance(made, Sink), "the registry looks at the class"
        return made


class _Entry(Settings):
    """What every source and sink of a file has."""

    connector: str = setting("Which connector; `rivven-connect connectors` lists them.")
    config: Node | Settings | None = setting("The connector's own settings.", default=None)
    enabled: bool = setting("Whether it runs.", default=True)
    trigger: str = setting(
        "How often a micro-batch begins: 0s as soon as the one before is done.", default="500ms", check=_duration
    )
    batch_rows: int = setting("The most records of one micro-batch.", default=1_000_000, least=1, most=1_000_000_000)
    transforms: list[Step] = setting("What happens to each record on its way, in this order.", factory=list)
    schema_registry_url: str | None = setting(
        "A schema registry.",
        default=None,
        ignored="the schema registry comes with a later version; until then records are written and read as JSON, "
        "and no schema is registered or checked",
    )
    dead_letter_topic: str | None = setting(DEAD_LETTER_DOC, default=None, check=_topic)


class SourceEntry(_NamesSource, _Entry):
    """From outside into a topic."""

    topic: str = setting("The topic to write to.", check=_topic)
    topic_config: TopicConfig = setting("How the topic is made if it is not there.", factory=TopicConfig)
    tables: list[Table] = setting(
        "Tables to read.", factory=list, ignored="connectors that read tables take them in their own settings"
    )
    rate_limit: SourceRate = setting("How fast it may be.", factory=SourceRate)
    envelope: Literal["event", "plain"] = setting(ENVELOPE_DOC, default="event")
    key: list[str] = setting(
        "Fields that make the record's key: one as it is, several as a JSON object; none by default.", factory=list
    )
    delivery: Literal["exactly_once", "at_least_once"] = setting(
        "`at_least_once` is faster and may repeat records after a crash.", default="exactly_once"
    )


class Since(Settings):
    timestamp: str = setting("A time in ISO 8601, UTC if it names no zone.")


def _start(value: Any) -> str | None:
    if value in ("earliest", "latest"):
        return None
    text = value.timestamp if isinstance(value, Since) else value
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return f"must be earliest, latest, or a time like 2026-01-31T12:00:00Z, not {text!r}"
    return None


class SinkEntry(_NamesSink, _Entry):
    """From topics to the outside."""

    topics: list[str] = setting("The topics to read.", least=1, check=_topics)
    consumer_group: str = setting("The group under which its progress is published.", least=1)
    start_offset: str | Since = setting(
        "Where it begins: earliest, a time, or latest: with what comes after it was first run.",
        default="latest",
        check=_start,
    )
    fail_on_data_loss: bool = setting(
        "Stop when records are gone before they were read; otherwise go on with what is left.", default=True
    )
    rate_limit: SinkRate = setting("How fast it may be.", factory=SinkRate)
    offset_commit_interval: int = setting(
        "Records between two commits.", default=100, least=1, ignored="progress is committed with every micro-batch"
    )
    format: Literal["json", "text", "raw"] = setting(
        "What the records are: `json` gives their fields as columns, `text` and `raw` give key and value.",
        default="json",
    )
    schema: str | None = setting(
        "The columns as a Spark DDL; without it they are found from the records and kept in the state directory.",
        default=None,
        example="id BIGINT, name STRING",
    )
    envelope: Literal["auto", "event", "plain"] = setting(
        ENVELOPE_DOC + " `auto` looks at the records.", default="auto"
    )


class PipelineSource(_NamesSource, Settings):
    connector: str = setting("Which source; `rivven-connect connectors` lists them.")
    config: Node | Settings | None = setting("The connector's own settings.", default=None)
    rate_limit: SourceRate = setting("How fast it may be.", factory=SourceRate)


class PipelineSink(_NamesSink, Settings):
    connector: str = setting("Which sink; `rivven-connect connectors` lists them.")
    config: Node | Settings | None = setting("The connector's own settings.", default=None)


class PipelineEntry(Settings):
    """From outside to outside, without a topic in between."""

    source: PipelineSource = setting("Where the records come from.")
    transforms: list[Step] = setting("What happens to each record on its way, in this order.", factory=list)
    sink: PipelineSink = setting("Where they go.")
    enabled: bool = setting("Whether it runs.", default=True)
    trigger: str = setting("How often a micro-batch begins.", default="500ms", check=_duration)
    batch_rows: int = setting("The most records of one micro-batch.", default=1_000_000, least=1, most=1_000_000_000)
    dead_letter_topic: str | None = setting(DEAD_LETTER_DOC, default=None, check=_topic)


# How all of it runs


class TopicDefaults(Settings):
    auto_create: bool = setting("Make topics that are not there.", default=True)
    default_partitions: int = setting("Partitions of a topic that is made.", default=1, least=1, most=10_000)
    default_replication_factor: int = setting("Copies of each partition.", default=1, least=1, most=32_767)
    require_topic_exists: bool = setting("Refuse to run without a topic that may not be made.", default=True)
    validate_existing: bool = setting("Refuse a topic with other partitions than its settings say.", default=False)


class Retry(Settings):
    """A query that fails starts again from its checkpoint, after a pause that grows."""

    max_retries: int = setting("Failures in a row after which a query is given up.", default=10, least=0)
    initial_backoff_ms: int = setting("The first pause.", default=100, least=1, most=86_400_000)
    max_backoff_ms: int = setting("The longest pause.", default=30_000, least=1, most=86_400_000)
    backoff_multiplier: float = setting(
        "How much longer each pause is than the one before.", default=2.0, least=1.0, most=100.0
    )

    def backoff_ms(self, failures: int) -> int:
        """The pause after so many failures in a row."""
        grown = self.initial_backoff_ms * self.backoff_multiplier ** min(failures - 1, 64)
        return round(min(grown, self.max_backoff_ms))


class Health(Settings):
    enabled: bool | None = setting("Serve status over HTTP; by default in every run but --once.", default=None)
    host: str = setting("The address to listen on.", default="127.0.0.1")
    port: int = setting("The port; 0 takes a free one.", default=8083, least=0, most=65_535)
    path: str = setting("Where health is asked for.", default="/health")


class MetricsPort(Settings):
    enabled: bool = setting("Serve Prometheus metrics at /metrics.", default=True)
    port: int | None = setting(
        "A port of their own; without it they are on that of `health`.", default=None, least=0, most=65_535
    )


class RunSettings(Settings):
    state_dir: str = setting("Where checkpoints and what was learned are kept.", default="./data/connect-state")
    topic: TopicDefaults = setting("Topics that are not there.", factory=TopicDefaults)
    retry: Retry = setting("What follows a failure.", factory=Retry)
    health: Health = setting("Status over HTTP.", factory=Health)
    metrics: MetricsPort = setting("Metrics over HTTP.", factory=MetricsPort)
    telemetry: Any = setting("Traces.", default=None, ignored="no traces are exported; metrics are at /metrics")
    log_level: Literal["error", "warn", "info", "debug"] = setting("How much is said.", default="info")
    spark: dict[str, str] = setting("Settings of the Spark session.", factory=dict)


class ConnectConfig(Settings):
    """The whole file."""

    version: str = setting("The version of this format.", default="1.0")
    broker: Broker | None = setting("Where the topics are.", default=None)
    sources: dict[str, SourceEntry] = setting("From outside into topics, by name.", factory=dict)
    sinks: dict[str, SinkEntry] = setting("From topics to the outside, by name.", factory=dict)
    pipelines: dict[str, PipelineEntry] = setting("From outside to outside, by name.", factory=dict)
    settings: RunSettings = setting("How all of it runs.", factory=RunSettings)
    distributed: Any = setting(
        "A cluster of workers.", default=None, ignored="Spark distributes the work: run with --master or --remote"
    )

    @classmethod
    def finish(cls, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:  # noqa: ARG003
        seen: dict[str, str] = {}
        for section in ("sources", "sinks", "pipelines"):
            entries = node.value.get(section)
            if entries is None or not isinstance(entries.value, dict):
                continue
            for name in entries.value:
                at, whole = entries.key_marks.get(name), f"{section}.{name}"
                if not NAME.fullmatch(name):
                    text = "is no name; begin with a letter or digit, go on with those, dots, dashes and underscores"
                    mistakes.append(Mistake(whole, text, at))
                if name in seen:
                    mistakes.append(Mistake(whole, f"{seen[name]} has that name already; choose another", at))
                seen.setdefault(name, whole)
            if section != "pipelines" and entries.value and "broker" not in node.value:
                text = "'broker' is missing: sources and sinks need its bootstrap_servers"
                mistakes.append(Mistake(path, text, node.mark))

    def problems(self) -> Iterable[tuple[str, str]]:
        if not (self.sources or self.sinks or self.pipelines):
            yield "", "there is nothing to run; add sources, sinks or pipelines"
        for name, entry in self.pipelines.items():
            sink, dead = entry.sink.make(), entry.dead_letter_topic is not None
            if self.broker is None and (dead or sink.topics()):
                yield f"pipelines.{name}", "writes to a topic, and 'broker' is missing: give its bootstrap_servers"
            if dead and not sink.puts_aside:
                yield (
                    f"pipelines.{name}.dead_letter_topic",
                    f"{sink.name} cannot put records aside; write to a topic, and have {sink.name} as a sink of that",
                )


def _connector(kind: Kind, key: str, values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
    """Read the settings of the connector that an entry names, in place of their node."""
    name = values.get(key)
    if name is None:
        return
    try:
        found = registry.find(kind, name)
    except registry.UnknownConnector as error:
        mistakes.append(Mistake(join(path, key), str(error), node.value[key].mark))
        return
    if missing := found.missing():
        remedy = f"pip install 'rivven[{found.extra}]'" if found.extra else f"pip install {' '.join(missing)}"
        text = f"{found.name} needs {', '.join(missing)}, which is not installed; {remedy}"
        mistakes.append(Mistake(join(path, key), text, node.value[key].mark))
    own = node.value.get("config") or Node({}, node.key_marks.get(key, node.mark))
    made = read_settings(found.settings_type, own, join(path, "config"), mistakes)
    values[key] = found.name
    values["config"] = made


def _look_at_rate(values: dict[str, Any], node: Node, path: str, mistakes: list[Mistake]) -> None:
    """A source that Spark reads by itself knows no rate."""
    rate, settings = values.get("rate_limit"), values.get("config")
    if rate is None or not rate.events_per_second or not isinstance(settings, Settings):
        return
    if not issubclass(registry.find("source", values["connector"]), ArrowSource):
        text = f"has no effect: Spark reads {values['connector']} by itself; look for a limit in its own settings"
        at = node.key_marks.get("rate_limit", node.mark)
        mistakes.append(Mistake(join(path, "rate_limit.events_per_second"), text, at, warning=True))


def _made(kind: Kind, name: str, settings: Node | Settings | None) -> Connector[Any]:
    assert isinstance(settings, Settings), "finish() has read it"
    return registry.find(kind, name)(settings)


# Reading a file


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file as read: the configuration if nothing is wrong, and what was found on the way."""

    path: str
    config: ConnectConfig | None
    mistakes: list[Mistake]

    @property
    def errors(self) -> list[Mistake]:
        return [each for each in self.mistakes if not each.warning]

    @property
    def warnings(self) -> list[Mistake]:
        return [each for each in self.mistakes if each.warning]


def load(path: str | Path, environment: Mapping[str, str]) -> Loaded:
    """Read and check a file."""
    with open(path, "rb") as file:
        data = file.read(BYTES_MAX + 1)  # and no more, whatever it is
    if len(data) > BYTES_MAX:
        return Loaded(str(path), None, [Mistake("", f"the file has more than {BYTES_MAX:,} bytes")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Loaded(str(path), None, [Mistake("", f"this is no UTF-8 text: byte {error.start:,} cannot be one")])
    return loads(text, environment, str(path))


def loads(text: str, environment: Mapping[str, str], path: str = "connect.yaml") -> Loaded:
    node, mistakes = parse(text, environment)
    if node is None:
        return Loaded(path, None, mistakes)
    config = read_settings(ConnectConfig, node, "", mistakes)
    ordered = sorted(dict.fromkeys(mistakes), key=lambda each: (each.mark is None, each.mark or (0, 0)))
    broken = any(not each.warning for each in ordered)
    return Loaded(path, None if broken else config, ordered)
