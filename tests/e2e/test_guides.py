"""The pages that teach do what they show: every command and every block of Python runs against a real broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from daemon import Daemon, running

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "localhost:9092"
NOT_HERE = ("make setup", "source .venv/bin/activate", "rivvend --data-dir data")
"""What has been done already when a test runs."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page."""
    return FENCE.findall((DOCS / page).read_text())


def programs(page: str) -> list[tuple[str, str | None]]:
    """Each block of Python, and what the block right behind it says that it prints."""
    found = blocks(page)
    following = [*found[1:], ("", "")]
    return [
        (text, after if kind == "text" else None)
        for (language, text), (kind, after) in zip(found, following, strict=True)
        if language == "python"
    ]


def typed(page: str) -> list[tuple[str, str]]:
    """Each command of the console blocks, and what it prints."""
    parts = [part for language, text in blocks(page) if language == "console" for part in text.split("$ ")[1:]]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


async def run(page: str, port: int) -> None:
    """The blocks of a page, one after the other in one module, as `python -m asyncio` would run them."""
    names: dict[str, object] = {"__name__": page}
    for number, (text, printed) in enumerate(programs(page), 1):
        where = f"{page}, block {number}"
        source = text.replace(ADDRESS, f"127.0.0.1:{port}")
        code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        said = io.StringIO()
        with redirect_stdout(said):
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result
        if printed is not None:
            assert said.getvalue() == printed, where


def test_every_block_of_the_sdk_guide_runs_and_prints_what_it_shows(daemon: Daemon) -> None:
    assert len(programs("guides/sdk.md")) >= 15
    asyncio.run(run("guides/sdk.md", daemon.port))


def test_every_block_of_the_exactly_once_guide_runs_and_prints_what_it_shows(daemon: Daemon) -> None:
    assert len(programs("guides/exactly-once.md")) >= 6
    asyncio.run(run("guides/exactly-once.md", daemon.port))


def test_the_first_minute_goes_as_it_is_written(daemon: Daemon, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RIVVEN_SERVER": f"127.0.0.1:{daemon.port}"}
    commands = typed("getting-started.md")
    assert set(NOT_HERE) < {command for command, _ in commands}
    for command, shown in commands:
        if command not in NOT_HERE:
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (0, shown), f"{command}: {done.stderr}"
    asyncio.run(run("getting-started.md", daemon.port))
