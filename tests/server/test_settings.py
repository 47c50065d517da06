"""The table: each of its keys is heard, in each of the three places."""

import pytest
from settling import settle

from rivven.server.config import Resolved
from rivven.server.settings import ENV, FLAGS, PATHS, SETTINGS, Settings

NODE = Settings().node_id

SAMPLES = {
    "bind_host bind_port": ("127.0.0.2:7001", ("127.0.0.2", 7001)),
    "advertise_host advertise_port": ("broker.example:7002", ("broker.example", 7002)),
    "http_host http_port": ("[::1]:7003", ("::1", 7003)),
    "allow_anonymous": ("true", True),
    "tcp_nodelay": ("false", False),
    "local_reads": ("no", False),
    "http_host": ("127.0.0.3", "127.0.0.3"),
    "http_port": ("7004", 7004),
    "metrics": ("false", False),
    "dashboard": ("false", False),
    "data_dir": ("/var/lib/rivven", "/var/lib/rivven"),
    "sync_policy": ("every_n_writes(10)", "every_n_writes(10)"),
    "max_segment_size": ("64MiB", 64 * 1024 * 1024),
    "clean_interval_secs": ("2.5", 2.5),
    "default_partitions": ("12", 12),
    "auto_create_topics": ("no", False),
    "partitioner_batch_size": ("5", 5),
    "partitioner_linger_ms": ("0", 0),
    "group_initial_rebalance_delay_ms": ("0", 0),
    "group_min_session_timeout_ms": ("100", 100),
    "group_max_session_timeout_ms": ("60000", 60_000),
    "group_consumer_heartbeat_ms": ("300", 300),
    "group_consumer_session_timeout_ms": ("9000", 9_000),
    "offsets_retention_minutes": ("60", 60),
    "transaction_max_timeout_ms": ("60000", 60_000),
    "transactional_id_expiration_ms": ("86400000", 86_400_000),
    "producer_id_expiration_ms": ("3600000", 3_600_000),
    "broker_id": ("7", 7),
    "max_connections_per_ip": ("7", 7),
    "max_total_connections": ("70", 70),
    "rate_limit_per_ip": ("0", 0),
    "max_request_size": ("1MB", 1_000_000),
    "max_inflight_bytes": ("20 MiB", 20 * 1024 * 1024),
    "idle_timeout_secs": ("1.5", 1.5),
    "quota_produce_bytes_rate": ("1KiB", 1024),
    "quota_consume_bytes_rate": ("2048", 2048),
    "quota_request_rate": ("50", 50),
    "node_id": ("007", "007"),
    "rack": ("north", "north"),
    "log_level": ("WARN", "warn"),
    "log_format": ("json", "json"),
    "loop": ("asyncio", "asyncio"),
}


def nested(path: str, text: str) -> str:
    *above, last = path.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(above)]
    return "\n".join([*lines, f"{'  ' * len(above)}{last}: {text}"])


def expect(resolved: Resolved, setting, negated: bool, source: str) -> None:
    _, wanted = SAMPLES[setting.into]
    values = tuple(getattr(resolved.settings, name) for name in setting.fields)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert values == (tuple(not each for each in wanted) if negated else wanted)
    assert {resolved.origins[name].source for name in setting.fields} == {source}


def test_every_setting_has_a_sample_that_differs_from_its_default():
    rows = {setting.into: setting for setting in SETTINGS if setting.into}
    assert rows.keys() == SAMPLES.keys()
    for into, (_, wanted) in SAMPLES.items():
        before = tuple(getattr(Settings(), name) for name in into.split())
        assert (wanted if isinstance(wanted, tuple) else (wanted,)) != before, into


@pytest.mark.parametrize("flag", [flag for flag, (setting, _) in FLAGS.items() if setting.into])
def test_a_flag_is_heard(flag):
    setting, negated = FLAGS[flag]
    text, _ = SAMPLES[setting.into]
    expect(settle(f"{flag}={text}" if flag.startswith("--") else f"{flag}{text}"), setting, negated, "flag")
    expect(settle(flag, text), setting, negated, "flag")


@pytest.mark.parametrize("key", [key for key, (setting, _) in ENV.items() if setting.into])
def test_a_variable_is_heard(key):
    setting, negated = ENV[key]
    expect(settle(env={key: SAMPLES[setting.into][0]}), setting, negated, "environment")


@pytest.mark.parametrize("path", [path for path, (setting, _) in PATHS.items() if setting.into])
def test_a_key_in_the_file_is_heard(path):
    setting, negated = PATHS[path]
    text = SAMPLES[setting.into][0]
    expect(settle(file=nested(path, f'"{text}"')), setting, negated, "file")


def test_a_node_is_named_after_its_host_and_port():
    assert settle("--bind", "127.0.0.1:7007").settings.node_id == NODE.replace("9092", "7007")


def test_clients_are_not_told_to_connect_to_a_wildcard():
    settings = settle("--bind", "0.0.0.0:7008", "--allow-anonymous").settings
    assert settings.advertise_host not in ("0.0.0.0", "")
    assert settings.advertise_port == 7008


def test_quotas_are_named_as_the_broker_has_them():
    assert settle().settings.quotas == {}
    assert settle("--quota-request-rate", "9", "--quota-produce-bytes-rate", "none").settings.quotas == {
        "request_rate": 9
    }
