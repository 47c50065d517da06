"""The commands that need no Spark: what they print, and with which code they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rivven.connect.config import loads
from rivven.connect.main import main
from rivven.connect.scaffold import STARTER
from rivven.connect.state import StateDirectory, StateInUse

DOCS = Path(__file__).parents[2] / "docs" / "connect"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_validate_explain(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "init")[0] == 0
    assert (home / "connect.yaml").read_text() == STARTER
    code, out, err = ran(capsys, "validate")
    assert (code, out, err) == (0, "✓ connect.yaml is valid: 1 source, 1 sink, 0 pipelines\n", "")
    code, out, _ = ran(capsys, "explain")
    assert code == 0
    assert "orders (source)\n  reads    datagen (" in out
    assert "  runs     every 500 ms, exactly once\n" in out
    code, out, _ = ran(capsys, "explain", "archive", "--json")
    assert [query["name"] for query in json.loads(out)["queries"]] == ["archive"]


@pytest.mark.parametrize("command", ["run", "sources", "sinks"])
def test_a_master_that_is_none_is_refused_before_spark_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert ran(capsys, "init")[0] == 0
    for master in ("foo", "local[x]", "local[0]", "spark://"):
        code, _, err = ran(capsys, command, "--once", "--state-dir", "state", "--port", "0", "--master", master)
        assert code == 2
        assert "is none of local[*]" in err
    assert not (home / "state").exists()


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_first_pipeline_of_the_documentation_is_the_one_that_init_writes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {block.splitlines()[0]: block for block in blocks("first-pipeline.md", "console")}
    said = "$ rivven-connect init\n" + ran(capsys, "init")[1]
    assert said == shown["$ rivven-connect init"]
    assert "$ rivven-connect explain\n" + ran(capsys, "explain")[1] == shown["$ rivven-connect explain"]
    (example,) = blocks("first-pipeline.md", "yaml")
    written = loads(example, {}).config
    assert written is not None
    whole = loads(STARTER, {}).config
    assert whole is not None
    assert (written.sources, written.sinks) == (whole.sources, whole.sinks)
    (home / "connect.yaml").write_text(STARTER.replace("pattern:", "patern:"))
    assert "$ rivven-connect validate\n" + ran(capsys, "validate")[2] == shown["$ rivven-connect validate"]


def test_every_command_that_the_documentation_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    named = set()
    for page in DOCS.rglob("*.md"):
        named |= set(re.findall(r"rivven-connect ([a-z]+)", page.read_text()))
    known = set(re.findall(r"^  ([a-z]+) ", ran(capsys, "--help")[1], re.MULTILINE))
    assert {"run", "validate", "status"} <= named
    assert named <= known


def test_a_file_is_not_overwritten(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "connect.yaml").write_text("mine")
    code, _, err = ran(capsys, "init")
    assert (code, "is there already" in err) == (2, True)
    assert (home / "connect.yaml").read_text() == "mine"


def test_mistakes_are_printed_like_those_of_a_compiler(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "x.yaml").write_text("pipelines:\n  a:\n    source: {connector: datagen}\n    sink: {connector: stdot}\n")
    code, out, err = ran(capsys, "validate", "-c", "x.yaml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "x.yaml:4:23: pipelines.a.sink.connector: there is no sink 'stdot'; did you mean 'stdout'?",
        "x.yaml: 1 mistake",
    ]
    code, out, _ = ran(capsys, "-c", "x.yaml", "validate", "--json")
    document = json.loads(out)
    assert (code, document["valid"], document["mistakes"][0]["line"]) == (2, False, 4)


@pytest.mark.usefixtures("home")
def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "validate", "-c", "nowhere.yaml")
    assert (code, err.splitlines()[0]) == (2, "error: nowhere.yaml does not exist.")


def test_connectors_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "connectors", "sources")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["source"] * (len(out.splitlines()) - 1)
    code, out, _ = ran(capsys, "schema", "datagen")
    assert json.loads(out)["settings"]["properties"]["seed"]["maximum"] == 2**64 - 1
    code, out, _ = ran(capsys, "schema", "sink.file", "--format", "table")
    assert "partition_by" in out
    code, _, err = ran(capsys, "schema", "datagn")
    assert (code, err.splitlines()[0]) == (2, "error: there is no connector 'datagn'; did you mean 'datagen'?")


def test_check_finds_what_cannot_work(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "out").write_text("")
    (home / "in.csv").write_text("a\n1\n")
    ends = "source: {connector: file, config: {path: in.csv}}, sink: {connector: file, config: {path: out}}"
    (home / "connect.yaml").write_text(f"pipelines: {{a: {{{ends}}}}}")
    code, out, _ = ran(capsys, "check")
    assert code == 1
    assert out.splitlines() == [
        "✓ pipeline a, source (file)",
        "✗ pipeline a, sink (file)",
        "    error: path: out is a file; name a directory",
    ]


def test_check_says_that_there_is_no_broker(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = "broker: {bootstrap_servers: ['127.0.0.1:1'], connection_timeout_ms: 200}\n"
    (home / "connect.yaml").write_text(broker + "sources: {a: {connector: datagen, topic: t}}")
    code, out, _ = ran(capsys, "check")
    assert code == 1
    assert out.startswith("✗ broker 127.0.0.1:1: ")
    assert ran(capsys, "check", "--source", "a")[0] == 0


@pytest.mark.usefixtures("home")
def test_discover_shows_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "init")[0] == 0
    code, out, _ = ran(capsys, "discover", "orders")
    assert (code, "email" in out) == (0, True)
    code, out, _ = ran(capsys, "discover", "orders", "--format", "json")
    assert json.loads(out)["streams"][0]["columns"][0] == {"name": "order_id", "type": "int64"}
    assert ran(capsys, "discover", "order")[0] == 2


def test_status_says_that_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "status", "--url", "127.0.0.1:1")
    assert (code, err.startswith("error: nobody answers at http://127.0.0.1:1: ")) == (1, True)


def test_a_state_directory_has_one_user(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path)
    first.open()
    with pytest.raises(StateInUse, match=f"is in use by process {os.getpid()}"):
        StateDirectory(tmp_path).open()
    first.close()
    second = StateDirectory(tmp_path)
    second.open()
    assert second.recall("a/b", lambda: "made") == "made"
    assert second.recall("a/b", lambda: "made anew") == "made"
    second.close()


@pytest.mark.parametrize("command", ["run", "sources", "sinks"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", "it is a file"),
        ("file/state", "a part of its path is a file"),
        ("/proc/state", "it cannot be made there"),
        ("taken", "{home}/taken/lock: Is a directory"),
        pytest.param(
            "locked",
            "{home}/locked: Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere"),
        ),
    ],
)
def test_a_state_directory_that_cannot_be_used_is_named_by_its_option(
    home: Path, capsys: pytest.CaptureFixture[str], command: str, path: str, reason: str
) -> None:
    assert ran(capsys, "init")[0] == 0
    (home / "file").touch()
    (home / "taken" / "lock").mkdir(parents=True)
    (home / "locked").mkdir(mode=0o500)
    code, out, err = ran(capsys, command, "--once", "--state-dir", path)
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == (
        f"error: --state-dir {path} cannot be used: {reason.format(home=home)}; "
        "name a directory that you may write with --state-dir."
    )
    text = STARTER.replace("state_dir: ./data/connect-state", f"state_dir: {path}")
    (home / "connect.yaml").write_text(text)
    assert ran(capsys, command)[2].startswith(f"error: settings.state_dir {path} cannot be used: ")


def test_the_template_of_a_connector_passes_the_kit(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = ran(capsys, "init", "connector", "my-weather")
    assert code == 0
    root = home / "my-weather-connector"
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(root), str(root)]
    tested = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert " passed" in tested.stdout
    assert ran(capsys, "init", "connector", "My Weather")[0] == 2


def test_a_package_of_others_adds_a_connector(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(capsys, "init", "connector", "others")
    root = home / "others-connector" / "src"
    meta = root / "others_connector-0.1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: others-connector\nVersion: 0.1.0\n")
    (meta / "entry_points.txt").write_text("[rivven.connectors]\nsource.others = others_connector:OthersSource\n")
    command = [sys.executable, "-m", "rivven.connect.main", "connectors", "source"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    listed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert re.search(r"^source +others +exactly once +Counts\.$", listed.stdout, re.MULTILINE)


def test_discover_tells_of_a_file_that_is_broken_in_a_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "in.csv").write_text('id,amount\n1,10\n"4,5\n')
    (home / "connect.yaml").write_text("""
pipelines:
  copy:
    source: {connector: file, config: {path: in.csv}}
    sink: {connector: stdout}
""")
    code, out, err = ran(capsys, "discover", "copy")
    assert (code, out) == (1, "")
    assert err.startswith("error: copy: ArrowInvalid: CSV parse error")
    assert err.count("\n") == 1
