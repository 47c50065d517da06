"""The pipeline file: every key, every mistake with its place, all in one go and without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rivven.connect.config import Broker, Retry, duration_ms, loads
from rivven.connect.sources.datagen import DatagenSettings

BROKER = "broker: {bootstrap_servers: ['localhost:9092']}\n"

WHOLE = """
version: "1.0"
broker:
  bootstrap_servers: ["${SERVERS:-one:9092}", two:9092]
  metadata_refresh_ms: 300000
  connection_timeout_ms: 5000
  request_timeout_ms: 6000
  tls: {enabled: true, ca_path: ca.pem, cert_path: c.pem, key_path: k.pem, server_name: one}
sources:
  orders:
    connector: datagen
    topic: orders
    topic_config: {partitions: 3, replication_factor: 1, auto_create: true, config: {retention.ms: "1000"}}
    config: {pattern: orders, events_per_second: 5, seed: 1}
    tables: [{schema: public, table: orders, topic: t}]
    enabled: true
    rate_limit: {events_per_second: 100, max_in_flight: 5, burst_size: 10}
    schema_registry_url: http://localhost:8081
    transforms:
      - {type: rename_field, config: {from: email, to: mail}}
      - {type: remove_field, config: {field: currency}}
      - {type: add_field, config: {field: origin, value: web}}
      - {type: filter, config: {field: status, equals: paid}, predicate: {field_exists: status, negate: true}}
    dead_letter_topic: orders-dead
    envelope: plain
    key: [order_id]
    trigger: 2s
    delivery: at_least_once
sinks:
  out:
    connector: file
    topics: [orders]
    consumer_group: g
    config: {path: ./out}
    enabled: false
    start_offset: {timestamp: "2026-01-31T00:00:00Z"}
    rate_limit: {events_per_second: 10, burst_capacity: 20}
    offset_commit_interval: 100
    dead_letter_topic: out-dead
    format: json
    schema: "id BIGINT"
    envelope: auto
pipelines:
  copy:
    source: {connector: datagen, config: {pattern: users, max_events: 5}, rate_limit: {events_per_second: 1}}
    transforms: [{type: flatten}]
    sink: {connector: stdout, config: {format: json}}
    trigger: 1 minute
settings:
  state_dir: ./state
  topic: {auto_create: false, default_partitions: 2, default_replication_factor: 1, require_topic_exists: true}
  retry: {max_retries: 3, initial_backoff_ms: 10, max_backoff_ms: 100, backoff_multiplier: 3}
  health: {enabled: true, port: 0, path: /healthz}
  metrics: {enabled: true, port: 9091}
  telemetry: {enabled: false}
  log_level: warn
  spark: {spark.sql.shuffle.partitions: "2"}
distributed: {enabled: false}
"""


def errors(text: str, **environment: str) -> list[str]:
    loaded = loads(text, environment)
    assert (loaded.config is None) == bool(loaded.errors)
    return [str(each) for each in loaded.errors]


def test_a_watermark_says_how_late_a_record_may_be() -> None:
    step = "{type: sql, config: {query: SELECT * FROM input, watermark: {delay: soon}}}"
    source = f"sources: {{a: {{connector: datagen, topic: t, transforms: [{step}]}}}}"
    (mistake,) = loads(BROKER + source, {}).errors
    assert mistake.path == "sources.a.transforms[0].config.watermark.delay"
    assert "write it like 10 minutes" in mistake.text


def test_every_key_is_known() -> None:
    loaded = loads(WHOLE, {"SERVERS": "zero:1"})
    assert loaded.errors == []
    assert loaded.config is not None
    assert loaded.config.broker is not None
    assert loaded.config.broker.bootstrap_servers == ["zero:1", "two:9092"]
    orders = loaded.config.sources["orders"]
    assert isinstance(orders.config, DatagenSettings)
    assert (orders.config.pattern, orders.key, orders.topic_config.partitions) == ("orders", ["order_id"], 3)
    assert [step.type for step in orders.transforms] == ["rename", "drop", "insert_field", "filter"]
    assert loaded.config.pipelines["copy"].sink.make().name == "stdout"


def test_what_has_no_effect_is_a_warning_that_says_why() -> None:
    warned = {each.path: each.text for each in loads(WHOLE, {}).warnings}
    assert set(warned) == {
        "broker.metadata_refresh_ms",
        "sources.orders.tables",
        "sources.orders.rate_limit.max_in_flight",
        "sources.orders.rate_limit.burst_size",
        "sources.orders.schema_registry_url",
        "sinks.out.rate_limit.burst_capacity",
        "sinks.out.offset_commit_interval",
        "settings.telemetry",
        "distributed",
    }
    assert all(text.startswith("has no effect: ") for text in warned.values())


def test_all_mistakes_come_in_one_go_in_the_order_of_the_file() -> None:
    text = """broker: {bootstrap_servers: []}
sources:
  a: {connector: datagen, topic: t, config: {patern: x, events_per_second: -1}}
  b: {connector: dategen, topic: "no good"}
  c: {connector: datagen}
sinks:
  d: {connector: file, topics: [], consumer_group: "", config: {path: x, format: paquet}}
  e: {conector: stdout, topics: [t], consumer_group: g}
settings: {retry: {max_retries: x}, statedir: y}
"""
    assert errors(text) == [
        "line 1, column 29: broker.bootstrap_servers: must not be empty",
        "line 3, column 46: sources.a.config: there is no setting 'patern'; did you mean 'pattern'?",
        "line 3, column 76: sources.a.config.events_per_second: must be at least 0, not -1",
        "line 4, column 18: sources.b.connector: there is no source 'dategen'; did you mean 'datagen'?",
        "line 4, column 34: sources.b.topic: 'no good' is no name of a topic; "
        "use up to 249 letters, digits, dots, dashes and underscores",
        "line 5, column 6: sources.c: 'topic' is missing: the topic to write to",
        "line 7, column 32: sinks.d.topics: must not be empty",
        "line 7, column 52: sinks.d.consumer_group: must not be empty",
        "line 7, column 82: sinks.d.config.format: there is no choice 'paquet'; did you mean 'parquet'?",
        "line 8, column 6: sinks.e: 'connector' is missing: which connector; `rivven-connect connectors` lists them",
        "line 8, column 7: sinks.e: there is no setting 'conector'; did you mean 'connector'?",
        "line 9, column 33: settings.retry.max_retries: must be a whole number, not 'x'",
        "line 9, column 37: settings: there is no setting 'statedir'; did you mean 'state_dir'?",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is nothing to run; add sources, sinks or pipelines"),
        ("[1, 2]", "must be a mapping of settings, not a list"),
        ("sources: {a: {connector: datagen, topic: t}}", "'broker' is missing"),
        (BROKER + "sinks: {a/b: {connector: stdout, topics: [t], consumer_group: g}}", "sinks.a/b: is no name"),
        (
            BROKER + "sources: {a: {connector: datagen, topic: t, trigger: soon}}",
            "'soon' is no duration; write it like 500ms, 10s or 1m",
        ),
        (
            BROKER + "sinks: {a: {connector: stdout, topics: [t], consumer_group: g, start_offset: first}}",
            "must be earliest, latest, or a time like 2026-01-31T12:00:00Z, not 'first'",
        ),
        (
            BROKER + "sources: {a: {connector: datagen, topic: t}}\nsinks: {a: {connector: stdout, topics: [t], "
            "consumer_group: g}}",
            "sources.a has that name already; choose another",
        ),
        (
            BROKER + "sources: {a: {connector: datagen, topic: t, transforms: [{type: maks}]}}",
            "sources.a.transforms[0].type: there is no transform 'maks'; did you mean 'mask'?",
        ),
        (
            BROKER + "sources: {a: {connector: datagen, topic: t, transforms: [{type: filter}]}}",
            "give one of `where`, `field` with `equals`, `condition`",
        ),
        (
            "broker: {bootstrap_servers: [x], tls: {enabled: true, insecure: true}}\npipelines: {}",
            "is not offered: name the certificates to trust in ca_path",
        ),
    ],
)
def test_a_mistake_is_named(text: str, words: str) -> None:
    found = errors(text)
    assert any(words in each for each in found), found


def test_a_connector_may_be_called_by_another_name() -> None:
    config = loads(BROKER + "sources: {a: {connector: mock_data, topic: t}}", {}).config
    assert config is not None
    assert config.sources["a"].connector == "datagen"


def test_a_rate_that_a_source_cannot_keep_is_a_warning() -> None:
    source = "{connector: file, config: {path: x.csv}, rate_limit: {events_per_second: 5}}"
    loaded = loads(f"pipelines: {{a: {{source: {source}, sink: {{connector: stdout}}}}}}", {})
    assert loaded.errors == []
    assert [each.path for each in loaded.warnings] == ["pipelines.a.source.rate_limit.events_per_second"]


def test_pipelines_need_no_broker() -> None:
    text = "pipelines: {a: {source: {connector: datagen}, sink: {connector: stdout}}}"
    assert errors(text) == []


def test_dead_letters_of_a_pipeline_need_a_broker_and_a_sink_that_puts_records_aside() -> None:
    text = "pipelines: {{a: {{dead_letter_topic: lost, source: {{connector: datagen}}, sink: {{connector: {}}}}}}}"
    file, broker = text.format("file, config: {path: ./out}"), "\nbroker: {bootstrap_servers: [x]}"
    assert errors(file + broker) == []
    (missing,) = errors(file)
    assert missing.endswith("pipelines.a: writes to a topic, and 'broker' is missing: give its bootstrap_servers")
    (unable,) = errors(text.format("stdout") + broker)
    assert unable.endswith(
        "pipelines.a.dead_letter_topic: stdout cannot put records aside; "
        "write to a topic, and have stdout as a sink of that"
    )


def test_durations() -> None:
    assert [duration_ms(text) for text in ("500ms", "10s", "1.5 minutes", "2h", "3", "0s", "x")] == [
        500,
        10_000,
        90_000,
        7_200_000,
        3000,
        0,
        None,
    ]


def test_pauses_grow_up_to_a_limit() -> None:
    retry = Retry(initial_backoff_ms=100, max_backoff_ms=1000, backoff_multiplier=2.0)
    assert [retry.backoff_ms(count) for count in (1, 2, 3, 4, 5, 500)] == [100, 200, 400, 800, 1000, 1000]


def test_defaults_are_those_of_the_documentation() -> None:
    broker = Broker.parse({"bootstrap_servers": ["x"]})
    assert (broker.connection_timeout_ms, broker.request_timeout_ms) == (10_000, 30_000)
    retry = Retry()
    assert (retry.max_retries, retry.initial_backoff_ms, retry.max_backoff_ms, retry.backoff_multiplier) == (
        10,
        100,
        30_000,
        2.0,
    )


def test_checking_a_file_loads_neither_spark_nor_arrow(tmp_path: Path) -> None:
    path = tmp_path / "connect.yaml"
    path.write_text(WHOLE)
    code = (
        "import sys; from rivven.connect.config import load; from rivven.connect.plan import make_plan\n"
        f"made = load({str(path)!r}, {{}}).config; make_plan(made)\n"
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'pandas', 'rich'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
