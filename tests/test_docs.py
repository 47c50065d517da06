"""What the pages say is so: bytes, commands, files and functions that they name, and the example in the README."""

from __future__ import annotations

import importlib
import importlib.util
import re
import struct
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import typer

from rivven.cli.main import app
from rivven.log import read_content
from rivven.log.bloom import Bloom
from rivven.log.compact import CleanerState, Swap
from rivven.log.document import unseal
from rivven.log.index import OFFSETS, TIMES, Index
from rivven.log.recover import Checkpoint, Point
from rivven.log.snapshot import Snapshot
from rivven.log.topics import TopicList
from rivven.log.wal import Kind, read_offset, read_wal
from rivven.record import decode, decode_marker, parse_header, validate, walk
from rivven.sim import SimDisk

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEX_LINE = re.compile(r"^(?:[0-9a-f]{2}){2,}(?: +\|.*)?$", re.MULTILINE)
NOW_MS = 1_700_000_000_000


def vectors_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("disk_vectors", ROOT / "tests" / "vectors" / "disk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disk_vectors = vectors_module()
load = disk_vectors.load


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# The disk formats


@pytest.mark.parametrize("name", disk_vectors.VECTORS)
def test_the_code_still_writes(name: str) -> None:
    written = disk_vectors.VECTORS[name]()
    promised = (disk_vectors.HERE / f"{name}.txt").read_text()
    assert written == promised, "a format has changed; see CONTRIBUTING.md on `tests/vectors/disk.py --rewrite`"


def test_every_vector_is_made_by_the_code_and_shown_on_a_page() -> None:
    shown = [name for page in PAGES for name in disk_vectors.blocks(page.read_text())]
    assert sorted(shown) == sorted(disk_vectors.VECTORS)
    assert sorted(path.stem for path in disk_vectors.HERE.iterdir()) == sorted(disk_vectors.VECTORS)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "formats").glob("*.md")), ids=name_of)
def test_every_hex_block_is_a_vector(path: Path) -> None:
    page = path.read_text()
    blocks = disk_vectors.blocks(page)
    for name, text in blocks.items():
        assert text == (disk_vectors.HERE / f"{name}.txt").read_text(), f"{name} in {path.name} is not its vector"
    strangers = [text for _, _, text in FENCE.findall(page) if HEX_LINE.search(text) and text not in blocks.values()]
    assert not strangers, f"{path.name} shows bytes that no vector has"


def on_disk(path: str, data: bytes) -> SimDisk:
    disk = SimDisk(Random(0))
    if "/" in path:
        disk.make_dirs(path.rpartition("/")[0])
    disk.open(path, create=True).write(data, 0)
    return disk


def test_the_batch_reads_back() -> None:
    apple, pear = decode(load("batch"))
    assert apple == (42, NOW_MS, b"apple", b"red", (("via", b"web"),))
    assert pear == (43, NOW_MS + 5, b"pear", None, ())
    header = validate(load("batch"))
    assert (header.leader_epoch, header.producer_id, header.base_sequence) == (3, 7, 10)


def test_the_cleaned_batch_reads_back() -> None:
    header = validate(load("batch_cleaned"))
    assert (header.base_offset, header.last_offset, header.count) == (42, 43, 1)
    assert header.delete_horizon_ms == NOW_MS + 86_400_000
    assert decode(load("batch_cleaned")) == [(43, NOW_MS + 5, b"pear", None, ())]


def test_the_marker_reads_back() -> None:
    assert decode_marker(load("batch_marker")) == (False, 2)
    assert parse_header(load("batch_marker")).producer_id == 9


def test_the_segment_and_its_indexes_read_back_and_agree() -> None:
    batches = {header.base_offset: position for position, header in walk(load("segment"))}
    assert batches == {offset: 76 * offset for offset in range(8)}
    offsets, bad = Index.load(on_disk("0.idx", load("offset_index")), "0.idx", OFFSETS)
    assert (bad, len(offsets)) == (None, 3)
    assert [offsets.at_or_below(offset) for offset in (1, 2, 5, 7)] == [None, (2, 152), (4, 304), (6, 456)]
    times, bad = Index.load(on_disk("0.tidx", load("time_index")), "0.tidx", TIMES)
    assert (bad, len(times)) == (None, 3)
    assert [times.below(NOW_MS + later) for later in (30, 31, 50, 61)] == [
        None,
        (NOW_MS + 30, 2),
        (NOW_MS + 40, 4),
        (NOW_MS + 60, 6),
    ]


def test_the_write_ahead_file_reads_back() -> None:
    content = read_wal(on_disk("wal/00000000000000000001.wal", load("wal")), "wal", 0)
    assert (content.damage, content.torn, content.last_group, content.last_sequence) == ([], None, 3, 1)
    red, green, cut, start = content.entries()
    assert [entry.kind for entry in (red, green, cut, start)] == [
        Kind.APPEND,
        Kind.APPEND,
        Kind.TRUNCATE,
        Kind.START,
    ]
    assert [entry.partition for entry in (red, green, cut, start)] == [0, 1, 1, 0]
    assert [decode(entry.payload)[0].value for entry in (red, green)] == [b"red", b"green"]
    assert (read_offset(cut), read_offset(start)) == (0, 1)


def test_the_snapshot_reads_back() -> None:
    snapshot = unseal(load("snapshot"), Snapshot)
    assert snapshot is not None
    assert (snapshot.upto, snapshot.epochs) == (4, [(0, 0), (4, 1)])
    assert [row.producer_id for row in snapshot.producers] == [7, 9, 11]
    assert snapshot.producers[0].batches == ((10, 10, 0, 0),)
    assert (snapshot.open_transactions, snapshot.aborted) == ({11: 3}, [(9, 1, 2)])


def test_the_filter_reads_back_and_has_its_bits_where_the_page_says() -> None:
    bloom = Bloom.load(on_disk("0.bloom", load("bloom")), "0.bloom")
    assert bloom is not None
    assert bloom.tombstones
    bits = load("bloom")[32:]
    for key in (b"apple", b"pear", b"plum"):
        assert bloom.may_hold(key)
        first, second = struct.unpack("<QQ", blake2b(key, digest_size=16).digest())
        for turn in range(7):
            place = (first + turn * second) % (len(bits) * 8)
            assert bits[place // 8] >> place % 8 & 1


def test_the_documents_read_back() -> None:
    listed = unseal(load("topic_metadata"), TopicList)
    assert listed is not None
    assert [(topic.name, topic.partitions, topic.configs) for topic in listed.topics] == [
        ("orders", 2, {"cleanup.policy": "compact"})
    ]
    topic_id = listed.topics[0].id
    assert unseal(load("checkpoint"), Checkpoint) == Checkpoint(1, True, {"orders/0": Point(topic_id, 0, 1, 1, 1)}, 1)
    assert unseal(load("cleaner"), CleanerState) == CleanerState(500, Swap(0, [120, 310]))


@pytest.mark.parametrize(
    ("path", "vector"),
    [
        ("00000000000000000000.idx", "offset_index"),
        ("00000000000000000000.tidx", "time_index"),
        ("00000000000000000004.state", "snapshot"),
        ("00000000000000000000.bloom", "bloom"),
        ("00000000000000000001.wal", "wal"),
        ("topic_metadata.json", "topic_metadata"),
        ("checkpoint.json", "checkpoint"),
        ("cleaner.json", "cleaner"),
    ],
)
def test_the_tools_can_show(path: str, vector: str) -> None:
    content = read_content(on_disk(path, load(vector)), path)
    assert content is not None
    assert content.fault is None
    assert list(content.rows) or content.facts


# Commands, files and functions


def text_of_commands() -> list[tuple[str, str]]:
    """(page, command) of every line in a console block that is typed, and of every piece of inline code."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for language, _, body in FENCE.findall(text):
            if language == "console":
                found += [(name_of(page), line[2:]) for line in body.splitlines() if line.startswith("$ ")]
        found += [(name_of(page), code) for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    return found


COMMANDS = text_of_commands()


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [(page, match[1]) for page, text in COMMANDS if (match := re.search(r"\bmake ([a-z-]+)", text))]
    assert {"demo", "test"} <= {target for _, target in named}
    assert not [(page, target) for page, target in named if target not in targets]


def test_every_rivven_command_and_option_that_is_named_exists() -> None:
    root = typer.main.get_command(app)
    wrong, seen = [], set()
    for page, text in COMMANDS:
        if not (match := re.search(r"(?:^|[ /])rivven ((?:[a-z]|-[a-z-]|\s).*)", text)):
            continue
        words = match[1].split("#")[0].split()
        command, path = root, "rivven"
        while words and words[0] in getattr(command, "commands", {}):
            command, path = command.commands[words[0]], f"{path} {words.pop(0)}"
        seen.add(path)
        if hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+", words[0]):
            wrong.append(f"{page}: `{path} {words[0]}`")
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        known |= {"-h", "--help"}
        wrong += [f"{page}: `{path}` has no {word}" for word in words if word.startswith("-") and word not in known]
    assert {"rivven log dump", "rivven log verify"} <= seen
    assert not wrong


def test_every_module_that_is_run_by_name_exists() -> None:
    named = {(page, match[1]) for page, text in COMMANDS if (match := re.search(r"python -m ([\w.]+)", text))}
    assert not [(page, name) for page, name in named if importlib.util.find_spec(name) is None]


def test_every_file_that_is_named_exists() -> None:
    pattern = re.compile(
        r"(?<![\w/.<])((?:src/rivven|tests|bench|demo|docs|cli|log)/[\w./-]*\.(?:py|md|txt))(?![\w*])"
    )
    missing = [
        f"{name_of(page)}: {path}"
        for page in PAGES
        if not page.is_relative_to(ROOT / "docs" / "protocols") and page.name != "CHANGELOG.md"
        for path in pattern.findall(page.read_text())
        if not (ROOT / path).exists()
        and not (ROOT / "src" / "rivven" / path).exists()
        and not (page.parent / path).exists()
    ]
    assert not missing


def steps_of_the_walks() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "walk.md").read_text()
    return re.findall(r"^([a-z]+(?:/[a-z]+)?) {2,}([A-Za-z_]\w*(?:\.\w+)?)(?: {2,}.*)?$", page, re.MULTILINE)


def test_every_step_of_the_walks_is_a_function_that_exists() -> None:
    steps = steps_of_the_walks()
    assert len(steps) > 30
    missing = []
    for file, name in steps:
        thing: object = importlib.import_module("rivven." + file.replace("/", "."))
        for part in name.split("."):
            thing = getattr(thing, part, None)
        if thing is None:
            missing.append(f"{file}: {name}")
    assert not missing


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if f": {page}\n" not in navigation]


# The README


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_look_does_what_it_shows(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    blocks = FENCE.findall(page[page.index("## A first look") :])
    (example,) = [body for language, _, body in blocks if language == "python"]
    printed, verified = [body for language, _, body in blocks if language == "text"]
    typed = next(body for language, _, body in blocks if language == "console")
    assert run([sys.executable, "-c", example], tmp_path) == printed
    dump, verify = [line.removeprefix("$ rivven ").split() for line in typed.splitlines()]
    rivven = [sys.executable, "-m", "rivven.cli.main"]
    shown = run([*rivven, *dump], tmp_path)
    assert all(word in shown for word in ("customer-17", "a teapot", "two cups", "a lid")), shown
    assert run([*rivven, *verify], tmp_path) == verified
