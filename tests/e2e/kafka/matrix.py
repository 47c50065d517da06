"""What the clients are tried with: the records that each writes and all others read, and the account of what ran."""

from __future__ import annotations

import fcntl
import json
import os
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from clients import CLIENTS, Client

OUT = Path(__file__).parent / "out" / "matrix.json"
FIRST_MS = 1_700_000_000_123
Record = dict[str, Any]


class Sample(NamedTuple):
    """A record, and what a client must be able to write for it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    needs: str = ""


SAMPLES = (
    Sample(b"key", b"value"),
    Sample(None, b"without a key"),
    Sample(b"tombstone", None),
    Sample(None, None, needs="neither key nor value"),
    Sample("schlüssel ☃".encode(), "wert ☃".encode()),
    Sample(b"headers", b"in order", (("first", b"1"), ("twice", b"2"), ("twice", b"3"), ("empty", b""))),
    Sample(b"null header", b"x", (("nothing", None),), needs="null header"),
    Sample(bytes(range(256)), b"\0\xff" * 100, needs="binary"),
    Sample(b"large", b"compressible " * 5_000),
)


def text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def records_of(writer: Client) -> list[Record]:
    """What this client writes: every sample that it can."""
    return [
        {
            "key": text(sample.key),
            "value": text(sample.value),
            "headers": [[name, text(data)] for name, data in sample.headers],
            "timestamp": FIRST_MS + place * 1_000,
        }
        for place, sample in enumerate(SAMPLES)
        if sample.needs not in writer.lacks
    ]


def values(marks: Iterable[str]) -> list[Record]:
    """Plain records for groups, told apart by their values."""
    return [{"key": None, "value": text(mark.encode()), "headers": [], "timestamp": FIRST_MS} for mark in marks]


class Ledger:
    """What ran and passed in this session; every worker adds to the same file."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def passed(self, test: str, **facts: Any) -> None:
        self._rows.append({"test": test, **facts})

    def save(self) -> None:
        OUT.parent.mkdir(exist_ok=True)
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        with open(OUT.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = json.loads(OUT.read_text()) if OUT.exists() else {}
            rows = before["passed"] if before.get("run") == run else []
            rows = sorted([*rows, *self._rows], key=lambda row: json.dumps(row, sort_keys=True))
            OUT.write_text(json.dumps({"run": run, "passed": rows}, indent=1) + "\n")


# The page in the documentation


TRANSACTIONS = ("reads committed ones", "version 1", "version 2")


def table() -> str:
    """The clients and what is tried with each, as docs/protocols/kafka-clients.md shows it."""
    lines = ["| client | version | writes | reads | groups | transactions | administration |", "|---" * 7 + "|"]
    for client in CLIENTS:
        groups = ", ".join(client.groups)
        tried = {
            "topics, configs": client.administers,
            "lists and describes groups": client.describes,
            "deletes groups": client.deletes_groups,
        }
        admin = ", ".join(what for what, does in tried.items() if does) or "none of its own"
        lines.append(
            f"| {client.name} | {client.version} | {' '.join(client.writes)} | {' '.join(client.reads)} "
            f"| {groups} | {TRANSACTIONS[client.transactions]} | {admin} |"
        )
    return "\n".join(lines) + "\n"


def lacks_table() -> str:
    lines = ["| client | cannot write |", "|---|---|"]
    lines += [f"| {client.name} | {', '.join(sorted(client.lacks))} |" for client in CLIENTS if client.lacks]
    return "\n".join(lines) + "\n"
