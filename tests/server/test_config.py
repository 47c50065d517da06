"""Settings from their four sources: every key of the table, who beats whom, and what a mistake is told."""

import io
import json
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivven.server.config import (
    ENV,
    FLAGS,
    PATHS,
    SECTIONS_LATER,
    SETTINGS,
    Misused,
    Resolved,
    Settings,
    docs_page,
    parse_line,
    print_config,
    resolve,
)

ROOT = Path(__file__).parents[2]
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


def settle(*flags: str, env: dict[str, str] | None = None, file: str | None = None) -> Resolved:
    if file is None:
        return resolve(parse_line(flags), env or {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rivven.yaml")
        path.write_text(file)
        return resolve(parse_line(["--config", str(path), *flags]), env or {})


def problems(*flags: str, env: dict[str, str] | None = None, file: str | None = None) -> list[str]:
    with pytest.raises(Misused) as caught:
        settle(*flags, env=env, file=file)
    return caught.value.problems


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


# The four sources


def test_every_setting_has_a_sample_that_differs_from_its_default():
    rows = {setting.into: setting for setting in SETTINGS if setting.into}
    assert rows.keys() == SAMPLES.keys()
    for into, (_, wanted) in SAMPLES.items():
        before = tuple(getattr(Settings(), name) for name in into.split())
        assert (wanted if isinstance(wanted, tuple) else (wanted,)) != before, into


def test_without_a_word_the_defaults_hold():
    resolved = settle()
    assert resolved.settings == Settings()
    assert resolved.origins == {}
    assert (resolved.settings.bind_host, resolved.settings.bind_port) == ("127.0.0.1", 9092)
    assert (resolved.settings.http_host, resolved.settings.http_port) == ("127.0.0.1", 8080)


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


@pytest.mark.parametrize(("flags", "wanted"), [(["--dashboard"], True), (["--no-dashboard"], False)])
def test_a_switch_needs_no_value(flags, wanted):
    assert settle(*flags, env={"RIVVEN_DASHBOARD": str(not wanted)}).settings.dashboard is wanted


def test_the_file_may_be_named_by_the_environment(tmp_path):
    path = tmp_path / "rivven.yaml"
    path.write_text("server:\n  http_port: 7000\n")
    assert settle(env={"RIVVEN_CONFIG": str(path)}).settings.http_port == 7000


def test_an_empty_file_and_empty_sections_change_nothing():
    assert settle(file="# nothing\n").settings == Settings()
    assert settle(file="server:\nstorage:\n  data_dir:\n").settings == Settings()


def test_numbers_in_the_file_need_no_quotes():
    resolved = settle(file="limits:\n  max_request_size: 2097152\n  idle_timeout_secs: 30\nserver: {http_port: 0}")
    settings = resolved.settings
    assert (settings.max_request_size, settings.idle_timeout_secs, settings.http_port) == (2097152, 30, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("EveryWrite", "every_write"),
        ("EveryNWrites(5)", "every_n_writes(5)"),
        ("EveryNWrites(1)", "every_write"),
        ("None", "none"),
    ],
)
def test_a_sync_policy_may_be_written_in_camel_case(text, wanted):
    assert settle(file=f"server:\n  sync_policy: {text}\n").settings.sync_policy == wanted


def test_the_more_specific_key_of_one_source_is_stronger():
    settings = settle("--http-port", "7005", "--http-bind", "127.0.0.9:7006").settings
    assert (settings.http_host, settings.http_port) == ("127.0.0.9", 7005)


def test_quotas_are_named_as_the_broker_has_them():
    assert settle().settings.quotas == {}
    assert settle("--quota-request-rate", "9", "--quota-produce-bytes-rate", "none").settings.quotas == {
        "request_rate": 9
    }


def test_a_node_is_named_after_its_host_and_port():
    assert settle("--bind", "127.0.0.1:7007").settings.node_id == NODE.replace("9092", "7007")


def test_clients_are_not_told_to_connect_to_a_wildcard():
    settings = settle("--bind", "0.0.0.0:7008", "--allow-anonymous").settings
    assert settings.advertise_host not in ("0.0.0.0", "")
    assert settings.advertise_port == 7008


# Who beats whom

CHOICES = {
    "max_connections_per_ip": (
        "--max-connections-per-ip", "RIVVEN_MAX_CONNECTIONS_PER_IP", "limits.max_connections_per_ip",
        st.integers(1, 999),
    ),
    "data_dir": ("--data-dir", "RIVVEN_DATA_DIR", "storage.data_dir", st.text("abc/", min_size=1)),
    "log_level": ("--log-level", "RIVVEN_LOG_LEVEL", "log.level", st.sampled_from(["debug", "warn", "error"])),
    "http_port": ("--http-port", "RIVVEN_HTTP_PORT", "server.http_port", st.integers(0, 9000)),
}  # fmt: skip


@given(st.data())
def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(data):
    flags, env, sections, wanted = [], {}, [], {}
    for name, (flag, key, path, values) in CHOICES.items():
        by_flag, by_env, by_file = (data.draw(st.none() | values, label=name) for _ in range(3))
        wanted[name] = getattr(Settings(), name), "default"
        if by_file is not None:
            section, _, leaf = path.partition(".")
            sections.append(f"{section}: {{{leaf}: '{by_file}'}}")
            wanted[name] = by_file, "file"
        if by_env is not None:
            env[key] = str(by_env)
            wanted[name] = by_env, "environment"
        if by_flag is not None:
            flags += [flag, str(by_flag)]
            wanted[name] = by_flag, "flag"
    resolved = settle(*flags, env=env, file="\n".join(sections))
    for name, (value, source) in wanted.items():
        assert getattr(resolved.settings, name) == value
        assert (resolved.origins[name].source if name in resolved.origins else "default") == source


# Mistakes


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--bnd", "x"], "unknown flag --bnd; did you mean --bind?"),
        (["--datadir=x"], "unknown flag --datadir; did you mean --data-dir?"),
        (["extra"], "unexpected 'extra': rivvend takes flags alone; see rivvend --help"),
        (["--http-port", "abc"], "--http-port: 'abc' is not a whole number; write one from 0 to 65535"),
        (["--http-port", "70000"], "--http-port: 70000 is outside 0 to 65535; the nearest is 65535"),
        (["--bind", "9092"], "--bind: '9092' is not an address; write host:port, as 127.0.0.1:9092 or [::1]:9092"),
        (["--bind", "::1:9092"], "--bind: '::1:9092' is not an address; write host:port, as"),
        (
            ["--max-segment-size", "big"],
            "--max-segment-size: 'big' is not a size; write bytes, as 1048576, or a unit",
        ),
        (["--log-format", "jsn"], "--log-format: 'jsn' is not one of text, json; did you mean json?"),
        (["--sync-policy", "every_writ"], "did you mean every_write?"),
        (["--tcp-nodelay=maybe"], "--tcp-nodelay: 'maybe' is neither true nor false"),
        (["--idle-timeout-secs", "nan"], "--idle-timeout-secs: nan is outside 1 to 86400"),
        (["--data-dir", ""], "--data-dir: the path is empty; write a directory, as ./data"),
        (["--json"], "--json goes with --print-config; for logs in JSON say --log-format json"),
        (["--bind"], "argument --bind/-b: expected one argument"),
    ],
)
def test_a_wrong_flag_is_told(flags, told):
    assert told in problems(*flags)[0]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("server:\n  bind_adress: x", ":2: server.bind_adress: unknown key; did you mean server.bind_address?"),
        ("sever:\n  http_port: 1", ":1: sever: unknown key; did you mean server?"),
        ("data_dir: x", ":1: data_dir: unknown key; did you mean storage.data_dir?"),
        ("server:\n  http_port: many", ":2: server.http_port: 'many' is not a whole number"),
        ("server:\n  http_port: [1, 2]", ":2: server.http_port: wants a single value"),
        ("server: 5", ":1: server: wants keys and values below it"),
        ("- a\n- b", ":1: the file: wants keys and values below it"),
        ("server:\n  http_port: 1\n  http_port: 2", ":3: server.http_port: is there twice"),
        ("node: {data_dir: a}\nstorage: {data_dir: b}", ":2: storage.data_dir: node.data_dir sets the same"),
        ("server: [", ":1:10: not YAML: "),
        ("a: b: c", "not YAML: mapping values are not allowed here"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(file, told):
    assert told in problems(file=file)[0]


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    assert problems("--config", str(tmp_path / "none.yaml"))[0].endswith("cannot be read: No such file or directory")
    assert problems("--config", str(tmp_path))[0].endswith("cannot be read: Is a directory")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert problems("--config", str(binary))[0].endswith("cannot be read: it is not UTF-8 text")


def test_a_wrong_variable_is_told():
    assert problems(env={"RIVVEN_METRICS": "perhaps"}) == ["RIVVEN_METRICS: 'perhaps' is neither true nor false"]
    both = {"RIVVEN_DASHBOARD": "true", "RIVVEN_NO_DASHBOARD": "true"}
    assert problems(env=both) == ["RIVVEN_NO_DASHBOARD: RIVVEN_DASHBOARD sets the same; keep one of them"]


def test_an_unknown_variable_is_a_warning_with_the_nearest_there_is():
    warnings = settle(env={"RIVVEN_DATA_DRI": "x"}).warnings
    assert warnings == ["RIVVEN_DATA_DRI is not a setting of rivvend and is ignored; did you mean RIVVEN_DATA_DIR?"]


@pytest.mark.parametrize("key", ["RIVVEN_SERVICE_HOST", "RIVVEN_PORT", "RIVVEN_PORT_9092_TCP_ADDR", "RIVVEN_PURE"])
def test_what_kubernetes_and_others_leave_in_the_environment_is_passed_over(key):
    resolved = settle(env={key: "tcp://10.0.0.1:9092"})
    assert (resolved.settings, resolved.warnings) == (Settings(), [])


@pytest.mark.parametrize(
    ("env", "level"),
    [
        ({"RUST_LOG": "debug"}, "debug"),
        ({"RUST_LOG": "hyper=warn,error"}, "error"),
        ({"RUST_LOG": "debug", "RIVVEN_LOG_LEVEL": "warn"}, "warn"),
    ],
)
def test_the_log_level_is_also_taken_from_where_it_used_to_be(env, level):
    assert settle(env=env).settings.log_level == level


def test_everything_that_is_wrong_is_told_at_once():
    told = problems("--http-port", "x", env={"RIVVEN_METRICS": "y"}, file="limits: {max_request_size: z}")
    assert len(told) == 3


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--bind", "0.0.0.0:9092"], "--bind: 0.0.0.0 can be reached from other machines"),
        (["--bind", "[::]:9092"], "--bind: :: can be reached"),
        (["--bind", "broker.example:9092"], "say --allow-anonymous if that is meant"),
        (["--http-host", "192.168.1.5"], "--http-host: 192.168.1.5 can be reached"),
        (["--http-port", "9092"], "--http-port: HTTP and clients cannot share port 9092; give --http-port another"),
        (["--max-inflight-bytes", "1MiB"], "has no room for one request"),
    ],
)
def test_what_does_not_go_together_is_refused(flags, told):
    assert told in problems(*flags)[0]


@pytest.mark.parametrize(
    "flags",
    [
        ["--bind", "0.0.0.0:9092", "--allow-anonymous"],
        ["--bind", "0.0.0.0:9092", "--no-require-auth"],
        ["--bind", "localhost:9092"],
        ["--bind", "[::1]:9092"],
        ["--bind", "127.9.9.9:9092"],
        ["--http-host", "0.0.0.0", "--http-port", "0"],
    ],
)
def test_what_is_safe_or_meant_is_accepted(flags):
    settle(*flags)


# Features that are yet to come


@pytest.mark.parametrize(
    "setting", [each for each in SETTINGS if each.later and each.flags], ids=lambda each: each.flags
)
def test_a_flag_for_a_later_feature_is_accepted_at_its_default(setting):
    settle(setting.flags.split()[0], "none" if setting.default is None else str(setting.default).lower())


@pytest.mark.parametrize(
    ("flags", "needs"),
    [
        (["--mode", "cluster"], "clusters"),
        (["--seeds", "a:1,b:2"], "clusters"),
        (["--replication-factor", "2"], "clusters"),
        (["--tls-enabled"], "TLS"),
        (["--tls-cert", "a.pem"], "TLS"),
        (["--no-persistence"], "a broker without a disk"),
        (["--metrics-bind", "127.0.0.1:9090"], "a listener of its own"),
    ],
)
def test_a_flag_for_a_later_feature_is_refused_by_name(flags, needs):
    (told,) = problems(*flags)
    assert told.startswith(f"{flags[0]}: not available yet in rivven ")
    assert f"since it needs {needs}" in told


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("tls: {enabled: true}", "tls.enabled"),
        ("auth: {enabled: true, mechanism: scram}", "auth.enabled"),
        ("auth: {mechanism: scram}", "auth.mechanism"),
        ("cluster: {peers: [a, b]}", "cluster.peers"),
        ("cluster: {transport: quic}", "cluster.transport"),
        ("storage: {tiered: {enabled: true}}", "storage.tiered"),
        ("authorization: {cedar: {policy_files: [x]}}", "authorization"),
        ("limits: {max_message_size: 5}", "limits.max_message_size"),
    ],
)
def test_a_section_for_a_later_feature_is_refused_by_name(file, key):
    assert f":1: {key}: not available yet in rivven" in "\n".join(problems(file=file))


@pytest.mark.parametrize("name", sorted(SECTIONS_LATER))
def test_every_section_for_later_is_taken_turned_off(name):
    file = "enabled: false"
    for part in reversed(name.split(".")):
        file = f"{part}: {{{file}}}"
    settle(file=file)


def test_a_section_that_is_turned_off_is_passed_over():
    file = """
    tls: {enabled: false, cert_file: a.pem, min_version: tls13}
    auth: {enabled: false, mechanism: scram}
    storage: {data_dir: here, tiered: {enabled: false, hot_tier: {max_bytes: 5}}}
    cluster: {node_id: n1, name: ours}
    """
    settings = settle(file=file).settings
    assert (settings.data_dir, settings.node_id) == ("here", "n1")


def test_bounds_that_cross_are_refused():
    (told,) = problems("--group-min-session-timeout-ms", "60000", "--group-max-session-timeout-ms", "1000")
    assert "group_min_session_timeout_ms 60000 is above group_max_session_timeout_ms 1000" in told


@pytest.mark.parametrize("where", ["flag", "environment", "file"])
def test_a_secret_is_not_shown_in_a_complaint(where):
    given_by = {
        "flag": {"flags": ["--cluster-auth-token", "hush-hush"]},
        "environment": {"env": {"RIVVEN_CLUSTER_AUTH_TOKEN": "hush-hush"}},
        "file": {"file": "cluster: {auth_token: hush-hush}"},
    }[where]
    (told,) = problems(*given_by.pop("flags", []), **given_by)
    assert "hush" not in told


# Whatever comes


@given(st.sampled_from(sorted(FLAGS)), st.text())
def test_a_flag_with_any_value_works_or_is_told(flag, text):
    with suppress(Misused):
        resolve(parse_line([f"{flag}={text}" if flag.startswith("--") else f"{flag}{text}"]), {})


@given(st.dictionaries(st.sampled_from(sorted(ENV)), st.text(), max_size=4))
def test_any_environment_works_or_is_told(env):
    with suppress(Misused):
        resolve(parse_line([]), env)


KEYS = st.sampled_from(sorted({part for path in PATHS for part in path.split(".")})) | st.text(max_size=3)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
TREES = st.recursive(LEAVES, lambda below: st.dictionaries(KEYS, below, max_size=4) | st.lists(below, max_size=3))


@given(st.text() | TREES.map(lambda tree: json.dumps(tree)))
def test_any_file_works_or_is_told(text):
    with suppress(Misused):
        settle(file=text.encode(errors="replace").decode())


# Showing it


def test_print_config_shows_each_value_and_where_it_came_from():
    out = io.StringIO()
    env = {"RIVVEN_LOG_LEVEL": "debug"}
    print_config(settle("-d", "here", env=env, file="server:\n  http_port: 0\n"), out)
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.getvalue().splitlines()}
    assert rows["data_dir"] == ["here", "flag -d"]
    assert rows["log_level"] == ["debug", "environment RIVVEN_LOG_LEVEL"]
    assert rows["http_port"][0] == "0"
    assert rows["http_port"][1].startswith("file ")
    assert rows["http_port"][1].endswith("rivven.yaml:2: server.http_port")
    assert rows["bind_port"] == ["9092", "default"]
    assert rows["rack"] == ["none", "default"]


def test_print_config_is_json_on_request():
    out = io.StringIO()
    print_config(settle("--http-port", "0"), out, as_json=True)
    page = json.loads(out.getvalue())["settings"]
    assert page["http_port"] == {"value": 0, "source": "flag", "key": "--http-port", "file": None}
    assert page["rack"] == {"value": None, "source": "default", "key": None, "file": None}


def test_what_print_config_shows_gives_the_same_settings_again():
    out = io.StringIO()
    first = settle("--bind", "127.0.0.5:1", "--rack", "r", "--quota-request-rate", "5", "--no-dashboard")
    print_config(first, out, as_json=True)
    page = json.loads(out.getvalue())["settings"]
    assert Settings(**{name: row["value"] for name, row in page.items()}) == first.settings


def test_the_page_in_the_documentation_is_current():
    page = ROOT / "docs" / "operate" / "configuration.md"
    assert page.read_text() == docs_page(), f"run `python -m rivven.server.config > {page.relative_to(ROOT)}`"


def test_the_documented_example_works():
    example = docs_page().partition("```yaml\n")[2].partition("```")[0]
    assert settle(file=example).settings.quotas == {"produce_bytes_rate": 50 * 1024 * 1024}
