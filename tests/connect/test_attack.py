"""Files that nobody should write and somebody will: each has an answer in words, and none of them a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from rivven.connect import Settings
from rivven.connect.config import ConnectConfig, loads
from rivven.connect.document import BYTES_MAX, DEPTH_MAX
from rivven.connect.registry import UnknownConnector, catalogue
from rivven.connect.settings import BadSettings, fields_of

BROKER = "broker: {bootstrap_servers: [localhost]}\n"
STRANGE: list[Any] = [
    *(None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf")),
    *("", "\x00", "💥", "a" * 5000, "(", "[", "..", "../../etc/passwd", "2026-99-99", "9" * 400 + "h"),
    *("http://", "http://[", "s3://", "module:", ":", "`", "a..b", "'", "%", "${", "\udcff"),
    *([], [[]], [None], ["(", ""], [{}], [{"type": "x"}]),
    *({}, {"x": {}}, {"": ""}, {"x": None}),
]


def settings_in(kind: Any) -> list[type[Settings]]:
    own = [kind] if isinstance(kind, type) and issubclass(kind, Settings) and kind is not Settings else []
    return own + [each for part in get_args(kind) for each in settings_in(part)]


def strange_for(cls: type[Settings], depth: int = 0) -> list[dict[str, Any]]:
    """Mappings that have one strange value each, in every setting and in those of its settings."""
    made: list[dict[str, Any]] = []
    for field in fields_of(cls):
        made += [{field.key: value} for value in STRANGE]
        for inner in settings_in(field.type) if depth < 2 else ():
            tag = {"type": inner.union_tag} if inner.union_tag else {}
            for value in strange_for(inner, depth + 1):
                made += [{field.key: tag | value}, {field.key: [tag | value]}, {field.key: {"k": tag | value}}]
    return made


@pytest.mark.parametrize("found", list(catalogue()), ids=lambda each: f"{each[0]}.{each[1]}")
def test_no_setting_of_a_connector_takes_what_it_should_not_in_silence_or_with_a_bang(found: Any) -> None:
    assert not isinstance(found[2], UnknownConnector)
    said = [answer(found[2], values) for values in strange_for(found[2].settings_type)]
    assert any(said)
    assert all(len(each) < 20_000 for each in said), "what is wrong is not repeated in full"


def answer(connector: Any, values: dict[str, Any]) -> str:
    """What is wrong with the values in the connector's words, if anything is."""
    try:
        connector.configured(values)
    except BadSettings as error:
        return str(error)
    return ""


def test_no_setting_of_the_file_does_either() -> None:
    for values in strange_for(ConnectConfig):
        with pytest.raises(BadSettings) as refused:
            ConnectConfig.parse(values)  # there is nothing to run in any of them
        assert len(str(refused.value)) < 20_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is nothing to run"),
        ("# nothing", "there is nothing to run"),
        ("sources:\nsinks:\npipelines:\n", "there is nothing to run"),
        ("5", "must be a mapping of settings, not one value"),
        ("- 1", "must be a mapping of settings, not a list"),
        ("\tsources: x", "this is no YAML: while scanning for the next token"),
        ("a: \x00", "control characters are not allowed"),
        ("a: 'x", "this is no YAML: while scanning a quoted scalar"),
        ("a: *nobody", "found undefined alias"),
        ("a: &x [*x]", "no alias inside its own anchor"),
        ("a: &x {<<: *x}", "no alias inside its own anchor"),
        ("a: " + "[" * 200_000 + "]" * 200_000, f"nested too deeply: {DEPTH_MAX} levels"),
        ("- " * 200_000, f"nested too deeply: {DEPTH_MAX} levels"),
        ("a: " + "{a: " * 1000 + "}" * 1000, f"nested too deeply: {DEPTH_MAX} levels"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("[a]: b", "a key must be a name"),
        ("a: 1\na: 2", "'a' is here twice, first in line 1"),
        ("a: !!python/object/apply:os.getcwd []", "there is no setting 'a'"),
        ("version: !!int abc", "version: this value is no int"),
        ("ä€💥: 1", "there is no setting 'ä€💥'"),
        ("x" * 500 + ": 1", "there is no setting 'xxx"),
        ("version: ${}", "${} names no variable; write ${NAME}"),
        ("version: ${NOT_SET}", "NOT_SET is not set in the environment; set it, or give a default"),
        (BROKER + "sources: {s: {connector: datagen, topic: t, trigger: 2d}}", "'2d' is no duration"),
        (BROKER + "sources: {s: {connector: datagen, topic: t, trigger: 48h}}", "must be at most a day"),
        (BROKER + "sources: {s: {connector: datagen, topic: ../up}}", "'../up' is no name of a topic"),
        (BROKER + "sources: {../s: {connector: datagen, topic: t}}", "is no name; begin with a letter or digit"),
        (BROKER + "sources: {s: {connector: datagen, topic: t, batch_rows: " + "9" * 5000 + "}}", "a whole number"),
        (BROKER + "settings: {retry: {backoff_multiplier: 1.0e+308}}", "must be at most 100"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told_why(text: str, why: str) -> None:
    loaded = loads(text, {})
    assert loaded.config is None
    assert why in "\n".join(map(str, loaded.errors))
    assert all(len(str(each)) < 1000 for each in loaded.errors)


@pytest.mark.parametrize(
    "server", ["", " ", "a b:9092", "host:port", "host:0", "host:70000", "http://host:9092", ":9092"]
)
def test_an_address_that_is_none_is_found_before_anybody_waits_for_it(server: str) -> None:
    loaded = loads(
        f"broker: {{bootstrap_servers: ['{server}']}}\nsources: {{s: {{connector: datagen, topic: t}}}}", {}
    )
    assert [each.path for each in loaded.errors] == ["broker.bootstrap_servers"]
    assert "is no address of a broker; write it as host:port" in str(loaded.errors[0])


@pytest.mark.parametrize(
    "server", ["localhost", "a:1, b:2", "a-1.b_2.c:9092", "[::1]:9092", "::1", "10.0.0.1:1", "böse.example:9092"]
)
def test_an_address_that_is_one_is_taken(server: str) -> None:
    text = f"broker: {{bootstrap_servers: ['{server}']}}\nsources: {{s: {{connector: datagen, topic: t}}}}"
    assert loads(text, {}).errors == []


def test_a_secret_that_looks_like_something_else_is_a_text_and_is_not_shown() -> None:
    text = """
    pipelines:
      p:
        source: {connector: datagen}
        sink:
          connector: http-webhook
          config: {url: "http://localhost/", auth: {type: bearer, token: ${TOKEN}}, nonsense: 1}
    """
    for token in ("2026-99-99", "9" * 5000, "0o7x", "true", "{a: b}", "*x", "- 1", "hunter2"):
        loaded = loads(text, {"TOKEN": token})
        (mistake,) = loaded.errors
        assert "no setting 'nonsense'" in str(mistake)
        assert token not in str(mistake)


def validate(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    command = [str(Path(sys.executable).with_name("rivven-connect")), "validate", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_what_is_no_file_of_ours_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.yaml").write_text("[" * 1_000_000)
    with open(tmp_path / "huge.yaml", "wb") as huge:
        os.truncate(huge.fileno(), 1 << 40)  # a hole: it has the size, and takes no room
    for name, why in (
        ("", "Is a directory"),
        ("missing.yaml", "does not exist"),
        ("binary.yaml", "this is no UTF-8 text"),
        ("deep.yaml", "nested too deeply"),
        ("huge.yaml", f"more than {BYTES_MAX:,} bytes"),
    ):
        code, said = validate("-c", str(tmp_path / name))
        assert (code, why in said, "Traceback" in said) == (2, True, False), said
