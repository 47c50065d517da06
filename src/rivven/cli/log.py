"""`rivven log`: look into, check, search and tidy the data directory of a node, without the node."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .bounds import FROM_0, FROM_1, PARTITION_MAX
from .opening import files_of, open_directory, open_store, usage, user_of
from .text import parse_when

if TYPE_CHECKING:
    from rivven.log import Finding, RecoveryReport, Tally

# The modules of the log are imported where they are used: `--help` should not wait for them.

WRONG = 1

app = typer.Typer(
    help="Look into a node's data directory, without the node.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data directory of a node.")]
TopicName = Annotated[str | None, typer.Option("--topic", "-t", metavar="T", help="Only this topic.")]
PartitionNumber = Annotated[
    int | None, typer.Option("--partition", "-p", metavar="N", min=0, max=PARTITION_MAX, help="Only this partition.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Full = Annotated[bool, typer.Option("--full", help="Do not shorten long lines to the terminal's width.")]


@app.command()
def dump(
    path: Annotated[str, typer.Argument(metavar="DIR", help="A data directory, or one file of it.")] = "",
    topic: TopicName = None,
    partition: PartitionNumber = None,
    from_offset: Annotated[
        int, typer.Option("--from-offset", metavar="O", click_type=FROM_0, help="Begin at this offset.")
    ] = 0,
    count_max: Annotated[
        int | None,
        typer.Option(
            "--max", metavar="M", click_type=FROM_1, help="Stop after so many batches; with --records, records."
        ),
    ] = None,
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of each batch, too.")] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="PATH", help="One file: .log, .idx, .tidx, .state, .bloom, .wal or a document."
        ),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Show batches, and their records if asked.

    Each line is one batch: its position in the file, its first and last offset, how many records and bytes, the
    codec, whether its checksum is right, the leader epoch, the times (UTC), and of an idempotent producer the id,
    epoch and first sequence. Damaged batches are shown as such, and the walk goes on behind them.

    Example: the first ten records of a partition, then one index file

        rivven log dump /var/lib/rivven -t orders -p 0 --records --max 10

        rivven log dump --file /var/lib/rivven/topics/orders/partition-0/00000000000000000000.idx
    """
    from rivven.log import check_offset

    from .dumping import Limits, dump_file, dump_segments, segments_from

    if not path and file is None:
        usage("name a data directory, or a file of one with --file")
    if file is None and os.path.isfile(path):
        file = path
    limits = Limits(from_offset, sys.maxsize if count_max is None else count_max, records, full)
    if file is not None:
        dump_file(file if os.path.exists(file) or not path else os.path.join(path, file), limits, as_json=as_json)
        return
    disk, directory = open_directory(path)
    logs = files_of(disk, directory, topic, partition)
    if from_offset and len(logs) == 1:
        check_offset(disk, logs[0], from_offset)
    parts = ((str(each.partition), segment) for each in logs for segment in segments_from(each, from_offset))
    dump_segments(disk, parts, limits, {"directory": path}, as_json=as_json)


@app.command()
def verify(
    path: Directory,
    topic: TopicName = None,
    partition: PartitionNumber = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check checksums and offsets only; do not decode the records.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything, and change nothing.

    Documents, write-ahead log, batches (length, checksum, offsets, records), segments, indexes, snapshots, filters.
    What a crash leaves behind is a note: recovery deals with it at the next start. Damage is a problem. The
    directory of a running node can be checked, too.

    Exits with 0 if nothing is wrong, 1 if something is, 2 if there is no such directory.

    Example:

        rivven log verify /var/lib/rivven
    """
    from rivven.log import Severity, Verification

    from .reports import show_verification

    disk, directory = open_directory(path)
    user = user_of(disk)
    chosen = directory.partitions(topic, partition)
    total_bytes = sum(each.length_bytes for each in files_of(disk, directory, topic, partition))
    findings: list[Finding] = []
    tallies: list[Tally] = []
    with show.Working("verifying", total_bytes) as working:
        run = Verification(disk, directory, quick=quick, live=user is not None, seen=working.done)
        findings += run.node()
        for each, place in chosen:
            tally, found = run.partition(each, place)
            tallies.append(tally)
            findings += found
    problems = [finding for finding in findings if finding.severity is Severity.PROBLEM]
    notes = [finding for finding in findings if finding.severity is Severity.NOTE]
    state = {"directory": path, "in_use_by": user, "clean": directory.clean, "quick": quick}
    if as_json:
        show.show_json(
            {
                **state,
                "ok": not problems,
                "partitions": [asdict(tally) for tally in tallies],
                "problems": [asdict(finding) for finding in problems],
                "notes": [asdict(finding) for finding in notes],
            }
        )
    else:
        show_verification(path, user, directory, tallies, problems, notes)
    if problems and user is None and user_of(disk) is not None:
        show.remark("a node has started while this ran, which may explain it; run this again")
    raise typer.Exit(WRONG if problems else 0)


@app.command()
def find(
    path: Directory,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="T", help="The topic to look in.")],
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="A key, as text.")] = None,
    key_hex: Annotated[str | None, typer.Option("--key-hex", metavar="H", help="A key, in hex digits.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", metavar="TIME", help="The first record at or after a time: ISO 8601, or ms since 1970."
        ),
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="O", click_type=FROM_0, help="The record at an offset.")
    ] = None,
    partition: PartitionNumber = None,
    every: Annotated[bool, typer.Option("--all", help="With a key: every version of it, newest first.")] = False,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Find records by key, by offset or by time.

    By key the latest version is shown. The partition that the key belongs to is searched first, then the others.
    Sealed segments are skipped where their Bloom filters exclude the key; missing filters are made on the way if
    no node runs. A time without a zone is UTC.

    Exits with 1 if nothing is found.

    Examples:

        rivven log find /var/lib/rivven -t orders --key customer-17 --all

        rivven log find /var/lib/rivven -t orders -p 0 --timestamp 2025-03-01T12:00:00Z
    """
    from .search import find_key, find_place

    if sum(each is not None for each in (key, key_hex, timestamp, offset)) != 1:
        usage("say what to find with one of --key, --key-hex, --timestamp and --offset")
    if every and key is None and key_hex is None:
        usage("--all goes with --key or --key-hex")
    if key is not None or key_hex is not None:
        wanted = os.fsencode(key) if key is not None else _from_hex(key_hex or "")
        find_key(path, topic, partition, wanted, every=every, full=full, as_json=as_json)
    elif offset is not None:
        find_place(path, topic, partition, offset, None, full=full, as_json=as_json)
    else:
        find_place(path, topic, partition, None, _from_time(timestamp or ""), full=full, as_json=as_json)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        usage(f"--key-hex takes pairs of hex digits, not {text!r}")


def _from_time(text: str) -> int:
    try:
        return parse_when(text)
    except (ValueError, OverflowError):
        usage(f"--timestamp takes a time like 2025-03-01T12:00:00Z, or milliseconds since 1970, not {text!r}")


@app.command()
def clean(
    path: Directory,
    topic: TopicName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would be done, and change nothing.")
    ] = False,
    retention: Annotated[
        bool, typer.Option(help="Delete segments that have outlived retention.ms or .bytes.")
    ] = True,
    compact: Annotated[bool, typer.Option(help="Compact the topics whose cleanup.policy says so.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Compact also where little has changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply retention and compaction now.

    The node must be stopped. Recovery runs first, as at any start. With --dry-run the directory is only read, and
    a running node does not mind.

    Example: look first, then do it

        rivven log clean /var/lib/rivven --dry-run

        rivven log clean /var/lib/rivven --topic orders
    """
    from rivven.log import Wanted, clean_log, plan_cleaning
    from rivven.system import SystemClock

    from .reports import show_cleaning, show_recovery

    disk, directory = open_directory(path)
    names = [each.name for each in directory.topics] if topic is None else [directory.topic(topic).name]
    wanted = Wanted(SystemClock().now_ms(), retention, compact, force)
    files = files_of(disk, directory, topic, None)
    total_bytes = sum(each.length_bytes for each in files)
    report: RecoveryReport | None = None
    with show.Working("reading" if dry_run else "cleaning", 2 * total_bytes) as working:
        if dry_run:
            done = [plan_cleaning(disk, each, wanted) for each in files if each.segments]
        else:
            with open_store(path) as store:
                report = store.recovery
                logs = [log for log in store.logs if log.partition.topic in names]
                logs.sort(key=lambda log: log.partition)
                done = [clean_log(store, log, wanted, working.done) for log in logs]
    if as_json:
        show.show_json(
            {
                "directory": path,
                "dry_run": dry_run,
                "recovery": report.as_dict() if report is not None else None,
                "partitions": [{**asdict(each), "changed": each.changes} for each in done],
            }
        )
        return
    if report is not None:
        show_recovery(report)
    elif not directory.clean:
        show.remark("the directory was not closed in good order: what recovery adds or cuts is not counted here")
    show_cleaning(done, dry_run=dry_run)


@app.command("rebuild-index")
def rebuild_index(
    path: Directory, topic: TopicName = None, partition: PartitionNumber = None, as_json: AsJson = False
) -> None:
    """Make the indexes again from the log.

    The node must be stopped. Every .idx and .tidx file is deleted and written anew; nothing else is touched. A node
    does this by itself for an index that it finds missing or damaged; this command does it for all of them, now.

    Example:

        rivven log rebuild-index /var/lib/rivven --topic orders
    """
    from rivven.log import Rebuilt, rebuild_indexes
    from rivven.system import SystemDisk

    from .reports import show_rebuilding

    reader, directory = open_directory(path)
    total_bytes = sum(each.length_bytes for each in files_of(reader, directory, topic, partition))
    disk = SystemDisk(path)
    done: list[Rebuilt] = []
    lock = disk.lock("lock")
    try:
        with show.Working("rebuilding", total_bytes) as working:
            for files in files_of(disk, directory, topic, partition):
                done += rebuild_indexes(disk, files, working.done)
    finally:
        lock.release()
    if as_json:
        show.show_json({"directory": path, "segments": [asdict(each) for each in done]})
        return
    show_rebuilding(done)
