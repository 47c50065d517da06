"""Who imports whom, and what a committed file may not say: the law of docs/walk.md, held by reading source.

Every test gathers all breaches, and shows each as `file:line: what is wrong`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rivven"

MAY_IMPORT = {
    "record": "",
    "raft": "",
    "security": "",
    "wire": "record",
    "log": "record",
    "coordinator": "record assign fields",
    "cluster": "raft",
    "broker": "record wire log raft cluster coordinator security assign",
    "client": "record wire security assign",
    "server": "broker wire log record security",
    "schema": "client security",
    "kube": "client",
    "spark": "client record",
    "connect": "client schema spark",
    "cli": "client schema log record spark",  # `rivven sql` is Spark's, loaded when it is asked for
    "__init__": "client record",
    "blocking": "client",
    "sim": "broker client log raft wire record",
    # The shared nouns, and the real doors: they know one another and nothing else.
    "model": "",
    "errors": "",
    "assign": "fields",
    "fields": "",
    "limits": "",
    "ports": "",
    "system": "",
    "launch": "",  # it loads the commands, by name
}
EVERYBODY = {"model", "errors", "limits", "ports"}
PURE = {
    "record",
    "wire",
    "log",
    "raft",
    "cluster",
    "coordinator",
    "security",
    "broker",
    "assign",
    "fields",
} | EVERYBODY
NOT_PURE = {"asyncio", "socket", "ssl", "threading", "time", "os", "random"}
KEPT_APART = {
    "pyspark": ("spark/", "connect/"),
    "kopf": ("kube/shell.py",),
    "lightkube": ("kube/shell.py",),
    "kubernetes": ("kube/shell.py",),
}
EXCEPT = {
    ("record/twin.py", "os"),  # asks the environment for RIVVEN_PURE, once, to choose between the twins
}
BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
TAKEN = sys.stdlib_module_names - {"compression"}  # record/compression.py is older than that of Python 3.14


class Import(NamedTuple):
    """One imported thing: `module`, and the `name` taken from it where there is one."""

    file: str
    line: int
    module: str
    name: str | None = None

    @property
    def owner(self) -> str:
        """Which entry of the law the importing file falls under."""
        return owner_of(self.file)

    @property
    def target(self) -> list[str]:
        """The parts of what is imported below `rivven`, as `["log", "segment"]`; empty for anything else."""
        parts = self.module.split(".")
        if parts[0] != "rivven":
            return []
        if len(parts) == 1 and self.name and (is_module([self.name]) or self.name in MAY_IMPORT):
            return [self.name]
        return parts[1:]

    def breach(self, what: str) -> str:
        return f"src/rivven/{self.file}:{self.line}: {what}"


def owner_of(file: str) -> str:
    return file.split("/")[0] if "/" in file else Path(file).stem


def is_shell(file: str) -> bool:
    """Shells may wait and touch the outside world."""
    folder, name = owner_of(file), Path(file).name
    main = file in {"connect/main.py", "spark/clients.py"} or file.startswith("connect/commands/")
    return folder in {"server", "cli"} or main or name in {"shell.py", "blocking.py"}


def is_module(parts: list[str], root: Path = PACKAGE) -> bool:
    path = root.joinpath(*parts)
    return path.is_dir() or any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyx", ".pyi"))


def imports(file: str, source: str) -> Iterator[Import]:
    """Every import anywhere in a file, also those inside functions and `if TYPE_CHECKING`, made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = ["rivven", *file.split("/")[:-1]]
                module = ".".join([*above[: len(above) - node.level + 1], *filter(None, [module])])
            for alias in node.names:
                yield Import(file, node.lineno, module, alias.name)


def cython_imports(source: str) -> str:
    """The plain imports of a Cython file, line for line; `cimport` names C headers and other twins."""
    keep = re.compile(r"\s*(import\s+[\w.]+|from\s+[\w.]+\s+import\s+\w+)")
    matches = (keep.match(line) for line in source.splitlines())
    return "\n".join(match[1] if match else "" for match in matches)


def source_files() -> list[str]:
    found = (path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyi", ".pyx"})
    return sorted(path.relative_to(PACKAGE).as_posix() for path in found)


@cache
def all_imports() -> list[Import]:
    found: list[Import] = []
    for file in source_files():
        source = (PACKAGE / file).read_text()
        found += imports(file, cython_imports(source) if file.endswith(".pyx") else source)
    return found


def listed_names(front_door: Path) -> list[str] | None:
    """What `__all__` lists, read without importing; None where there is no `__all__`."""
    for node in ast.parse(front_door.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return list(ast.literal_eval(node.value))
    return None


# The breaches of one import, each rule for itself


def outside_the_law(item: Import) -> str | None:
    if not item.target or item.target[0] in EVERYBODY | {item.owner, "system"}:
        return None
    if item.owner == "system" and item.target[0].startswith("_"):
        return None  # the native half of a real door
    if item.owner not in MAY_IMPORT:
        return item.breach(f"{item.owner} has no entry in MAY_IMPORT")
    if item.target[0] not in MAY_IMPORT[item.owner].split():
        return item.breach(f"{item.owner} may not import rivven.{item.target[0]}")
    return None


SIDE_DOORS = {"wire/kafka": "", "wire/kafka/made": "*", "broker/kafka": ""}
"""Packages inside a package with a front door of their own; `*` where each of its files is one."""


def by_a_side_door(item: Import) -> bool:
    path = "/".join(item.target)
    if path in SIDE_DOORS and item.name:
        return SIDE_DOORS[path] == "*" or item.name in (listed_names(PACKAGE / path / "__init__.py") or [])
    return SIDE_DOORS.get(path.rpartition("/")[0]) == "*"


def past_the_front_door(item: Import) -> str | None:
    if not item.target or item.target[0] == item.owner or by_a_side_door(item):
        return None
    inside = item.target[1:]
    if not inside and item.name and item.name != item.target[0] and (PACKAGE / item.target[0]).is_dir():
        front_door = PACKAGE / item.target[0] / "__init__.py"
        listed = listed_names(front_door) if front_door.exists() else None
        inside = [] if item.name in (listed or []) else [item.name]
    if inside and (PACKAGE / item.target[0]).is_dir():
        return item.breach(f"{item.target[0]}.{inside[0]} is not at the front door of rivven.{item.target[0]}")
    return None


def impure(item: Import) -> str | None:
    top = item.module.split(".")[0]
    if item.owner not in PURE or is_shell(item.file) or top not in NOT_PURE or (item.file, top) in EXCEPT:
        return None
    if top == "random":
        return None if item.name == "Random" else item.breach("of random only `from random import Random`")
    return item.breach(f"{item.owner} is pure and may not import {top}")


def real_doors(item: Import) -> str | None:
    if item.target[:1] == ["system"] and item.owner != "system" and not is_shell(item.file):
        return item.breach("only shells import rivven.system")
    return None


def in_the_wrong_place(item: Import) -> str | None:
    places = KEPT_APART.get(item.module.split(".")[0])
    if places and not item.file.startswith(places):
        return item.breach(f"{item.module.split('.')[0]} is imported in {' and '.join(places)} alone")
    return None


RULES = [outside_the_law, past_the_front_door, impure, real_doors, in_the_wrong_place]


def show(breaches: list[str]) -> str:
    return "\n" + "\n".join(breaches)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_import_is(rule):
    breaches = sorted({found for item in all_imports() if (found := rule(item))})
    assert not breaches, show(breaches)


@pytest.mark.parametrize(
    ("rule", "file", "line"),
    [
        (outside_the_law, "log/segment.py", "from rivven.broker import Broker"),
        (outside_the_law, "log/segment.py", "from rivven import sim"),
        (outside_the_law, "log/segment.py", "def late():\n    from ..raft import step"),
        (outside_the_law, "attic/thing.py", "import rivven.log"),
        (outside_the_law, "ports.py", "from .record import Record"),
        (past_the_front_door, "broker/partition.py", "from rivven.record.header import Header"),
        (past_the_front_door, "broker/partition.py", "import rivven.record.header"),
        (past_the_front_door, "broker/partition.py", "from rivven.record import header"),
        (impure, "log/segment.py", "import os.path"),
        (impure, "log/segment.py", "from time import monotonic"),
        (impure, "raft/step.py", "import random"),
        (impure, "raft/step.py", "from random import choice"),
        (impure, "model.py", "import threading"),
        (real_doors, "log/log.py", "from rivven.system import RealDisk"),
        (real_doors, "log/log.py", "from .. import system"),
        (real_doors, "sim/disk.py", "from rivven import system"),
        (in_the_wrong_place, "client/arrow.py", "import pyspark.sql"),
        (in_the_wrong_place, "kube/plan.py", "from lightkube import Client"),
    ],
)
def test_a_breach_is_seen(rule, file, line):
    assert any(rule(item) for item in imports(file, line))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("log/segment.py", "from rivven.errors import CorruptLog"),
        ("log/segment.py", "from .index import Index"),
        ("log/segment.py", "from rivven.log.index import Index"),
        ("log/segment.py", "from rivven import limits"),
        ("raft/step.py", "from random import Random"),
        ("record/twin.py", "import os"),
        ("client/blocking.py", "import threading\nfrom rivven.system import RealDisk"),
        ("schema/shell.py", "import asyncio\nfrom rivven import system"),
        ("spark/source.py", "import pyspark.sql"),
        ("kube/shell.py", "import kopf"),
    ],
)
def test_what_is_allowed_passes(file, line):
    assert [rule(item) for item in imports(file, line) for rule in RULES if rule(item)] == []


def test_the_law_has_no_cycle():
    left = {package: set(allowed.split()) for package, allowed in MAY_IMPORT.items()}
    while free := [package for package, allowed in left.items() if not allowed & left.keys()]:
        for package in free:
            del left[package]
    assert not left, f"these import one another in a circle: {sorted(left)}"


def test_every_module_has_a_place_in_the_law():
    owners = {owner_of(file) for file in source_files() if not Path(file).name.startswith("_") or "/" in file}
    assert owners <= MAY_IMPORT.keys() - {"__init__"}, sorted(owners - MAY_IMPORT.keys())


def test_every_package_has_a_front_door_that_lists_its_names():
    breaches = []
    for folder in sorted({(PACKAGE / file).parent for file in source_files()}):
        front_door = folder / "__init__.py"
        if not front_door.exists():
            breaches.append(f"{front_door.relative_to(ROOT)}:1: there is no front door")
        elif listed_names(front_door) is None:
            breaches.append(f"{front_door.relative_to(ROOT)}:1: there is no __all__")
    assert not breaches, show(breaches)


def test_no_module_has_a_name_that_says_nothing_or_is_taken():
    parts = {(part.removesuffix(Path(file).suffix), file) for file in source_files() for part in file.split("/")}
    breaches = [
        f"src/rivven/{file}:1: {name!r} {'says nothing' if name in BAD_NAMES else 'is a standard module'}"
        for name, file in sorted(parts)
        if name in BAD_NAMES or (name in TAKEN and not name.startswith("__"))
    ]
    assert not breaches, show(breaches)


# What no committed file may say

OF_ONE_MACHINE = re.compile(r"(?<![\w.~$}])/(?:work|root|home/\w+|Users/\w+)/")
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|yarnpkg|anaconda|docker|ghcr|quay|crates|mcr\.microsoft)\.(?:org|com|io)\b"
    r"|(?:extra-)?index-url\s*=|--find-links\s|\bartifactory\b|\bnexus\.",
    re.IGNORECASE,
)


def committed_files() -> list[Path]:
    """What git tracks or would add; in a tree without git, the whole of the source tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        folders = ("src", "tests", "docs", "bench", "demo", "requirements", "changes")
        found = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
        return sorted(path for path in [*found, *ROOT.glob("*.*")] if path.is_file() and path.suffix != ".so")
    return [path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).is_file()]


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError:
        return []


@pytest.mark.parametrize(
    ("pattern", "what"), [(OF_ONE_MACHINE, "a path of one machine"), (REGISTRY, "the address of a registry")]
)
def test_no_committed_file_names(pattern, what):
    breaches = [
        f"{path.relative_to(ROOT)}:{number}: {what}: {found[0]}"
        for path in committed_files()
        for number, line in enumerate(lines_of(path), 1)
        if (found := pattern.search(line))
    ]
    assert not breaches, show(breaches)


# The lock files

LOCKS = ["bench.txt", "dev.txt", "java.txt", "runtime.txt", "uv.txt"]


def locked(name: str) -> dict[str, list[Requirement]]:
    """The pins of a lock file by canonical name; one name has several where they differ by Python version."""
    pins: dict[str, list[Requirement]] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line and line[0] not in " #":
            pin = Requirement(line.removesuffix("\\").strip())
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    return pins


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_hashes_and_names_no_place(name):
    text = (ROOT / "requirements" / name).read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)[1:]
    assert entries
    bare = [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry or "==" not in entry]
    assert not bare, f"not pinned with a hash: {bare}"
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=)", text, re.MULTILINE), "options other than --hash"


def test_the_locks_answer_to_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], dict(project["dependency-groups"])
    bootstrap, bench, java = (groups.pop(name) for name in ("bootstrap", "bench", "java"))
    runtime = project["project"]["dependencies"]
    wanted = [("runtime.txt", line) for line in runtime] + [("uv.txt", line) for line in bootstrap]
    wanted += [("bench.txt", line) for line in bench] + [("java.txt", line) for line in java]
    wanted += [("dev.txt", line) for lines in [runtime, *extras.values(), *groups.values()] for line in lines]
    unmet = [
        f"requirements/{name}:1: does not answer to {asked!r}; run `make lock`"
        for name, asked in wanted
        if (want := Requirement(asked)).name != "rivven"
        and not any(
            want.specifier.contains(version_of(pin)) for pin in locked(name).get(canonicalize_name(want.name), [])
        )
    ]
    assert not unmet, show(unmet)


def test_run_time_is_locked_to_the_versions_that_were_tested():
    tested = locked("dev.txt")
    for name, pins in locked("runtime.txt").items():
        assert {version_of(pin) for pin in pins} <= {version_of(pin) for pin in tested[name]}, name


def version_of(pin: Requirement) -> str:
    (only,) = pin.specifier
    return only.version
