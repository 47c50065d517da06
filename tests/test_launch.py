"""Ctrl-C while a command is still loading, at a place in the loading that the test chooses."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]

INTERRUPTED_AT = """
import importlib.abc, os, signal, sys

at = sys.argv[1]
sys.argv[:2] = []

class Impatient(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == at:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
from {module} import {function}
sys.exit({function}())
"""


def interrupted(
    command: str, at: str, *arguments: str, cwd: Path, ignoring: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command as its console script does, with a SIGINT when it imports a module."""
    module, _, function = SCRIPTS[command].partition(":")
    script = INTERRUPTED_AT.format(module=module, function=function)
    line = [sys.executable, "-c", script, at, command, *arguments]
    env = {key: value for key, value in os.environ.items() if not key.startswith("RIVVEN_")}

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else signal.SIG_DFL)

    return subprocess.run(
        line, capture_output=True, text=True, timeout=60, env=env, cwd=cwd, preexec_fn=heed, check=False
    )


@pytest.mark.parametrize(
    ("command", "at", "arguments"),
    [
        ("rivven", "typer", ["ping"]),
        ("rivven", "rivven.cli.txn", ["ping"]),
        ("rivven", "rivven.client", ["ping"]),  # once it is loaded, a command imports more
        ("rivvend", "rivven.log", ["--data-dir", "data"]),
        ("rivvend", "asyncio", ["--data-dir", "data"]),
        ("rivven-connect", "yaml", ["validate"]),
        ("rivven-connect", "typer", ["validate"]),
    ],
)
def test_ctrl_c_while_a_command_loads_ends_it_without_a_word(
    command: str, at: str, arguments: list[str], tmp_path: Path
) -> None:
    done = interrupted(command, at, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_who_ignores_ctrl_c_for_us_is_obeyed(tmp_path: Path) -> None:
    """As a shell does for what it starts with `&`."""
    done = interrupted("rivven", "typer", "--version", cwd=tmp_path, ignoring=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rivven ")
