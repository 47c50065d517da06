"""Flags, variables and the file: how each is read, and what a mistake in it is told."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settling import problems, settle

from rivven.server.config import resolve
from rivven.server.settings import ENV, FLAGS, PATHS, SECTIONS_LATER, Settings
from rivven.server.sources import Misused, parse_line


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


# Features that are yet to come


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
