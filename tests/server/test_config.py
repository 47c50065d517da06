"""Settings from their four sources: who beats whom, what does not go together, and how it is shown."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settling import problems, settle

from rivven.server.config import docs_page, print_config
from rivven.server.settings import SETTINGS, Settings

ROOT = Path(__file__).parents[2]


# Who beats whom

CHOICES = {
    "max_connections_per_ip": (
        "--max-connections-per-ip", "RIVVEN_MAX_CONNECTIONS_PER_IP", "limits.max_connections_per_ip",
        st.integers(1, 999),
    ),
    "data_dir": ("--data-dir", "RIVVEN_DATA_DIR", "storage.data_dir", st.text("abc/", min_size=1)),
    "log_level": ("--log-level", "RIVVEN_LOG_LEVEL", "log.level", st.sampled_from(["debug", "warn", "error"])),
    "http_port": ("--http-port", "RIVVEN_HTTP_PORT", "server.http_port", st.integers(0, 9000)),
}  # fmt: skip  # fmt: skip


def test_without_a_word_the_defaults_hold():
    resolved = settle()
    assert resolved.settings == Settings()
    assert resolved.origins == {}
    assert (resolved.settings.bind_host, resolved.settings.bind_port) == ("127.0.0.1", 9092)
    assert (resolved.settings.http_host, resolved.settings.http_port) == ("127.0.0.1", 8080)


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


def test_the_more_specific_key_of_one_source_is_stronger():
    settings = settle("--http-port", "7005", "--http-bind", "127.0.0.9:7006").settings
    assert (settings.http_host, settings.http_port) == ("127.0.0.9", 7005)


# Mistakes


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
