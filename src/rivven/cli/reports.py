"""What a verification found and what a cleaning did, for people."""

from __future__ import annotations

from rivven.log import Cleaned, DataDirectory, Finding, Rebuilt, RecoveryReport, Tally

from . import show
from .text import counted, harmless, sized


def show_verification(
    path: str,
    user: int | str | None,
    directory: DataDirectory,
    tallies: list[Tally],
    problems: list[Finding],
    notes: list[Finding],
) -> None:
    if user is not None:
        state = f"in use by process {user}, so the ends of its logs may be moving"
    else:
        state = (
            "closed in good order" if directory.clean else "not closed in good order: recovery runs at the next start"
        )
    show.say(f"{harmless(path)}: {counted(len(directory.topics), 'topic')}, {state}")
    show.say()
    columns = [show.Column("partition", flexible=True)]
    columns += [
        show.Column(name, right=True) for name in ("segments", "batches", "records", "bytes", "offsets", "problems")
    ]
    rows = [
        [
            tally.partition,
            f"{tally.segments:,}",
            f"{tally.batches:,}",
            f"{tally.records:,}",
            sized(tally.length_bytes),
            f"{tally.start}-{tally.end - 1}" if tally.end > tally.start else "none",
            str(tally.problems or "-"),
        ]
        for tally in tallies
    ]
    total = [
        counted(len(tallies), "partition"),
        f"{sum(tally.segments for tally in tallies):,}",
        f"{sum(tally.batches for tally in tallies):,}",
        f"{sum(tally.records for tally in tallies):,}",
        sized(sum(tally.length_bytes for tally in tallies)),
        "",
        str(len(problems) or "-"),
    ]
    show.show_table(columns, rows, total=total if len(rows) != 1 else None)
    for title, found, colour in (("problem", problems, show.RED), ("note", notes, show.YELLOW)):
        if found:
            show.say()
            show.say(show.tint(f"{counted(len(found), title)}:", colour))
        for finding in found:
            _show_finding(finding)
    show.say()
    show.say(
        show.tint("Nothing is wrong.", show.GREEN) if not problems else show.tint("Something is wrong.", show.RED)
    )


def _show_finding(finding: Finding) -> None:
    where = harmless(finding.path)
    if finding.position is not None:
        where += f", byte {finding.position}"
    if finding.first_offset is not None and finding.last_offset is not None:
        where += f", offsets {finding.first_offset} to {finding.last_offset}"
    elif finding.first_offset is not None:
        where += f", from offset {finding.first_offset}"
    subject = f"{finding.partition}: " if finding.partition else ""
    show.say(show.wrapped(f"- {subject}{harmless(finding.what)}", "  ").replace("\n  ", "\n    "))
    show.say(show.wrapped(where, "    "))
    show.say(show.tint(show.wrapped(finding.then, "    "), show.DIM))


def show_recovery(report: RecoveryReport) -> None:
    lines = (
        [f"replayed {counted(report.replayed, 'batch', 'batches')} from the write-ahead log"]
        if report.replayed
        else []
    )
    lines += [
        f"cut {cut.cut_bytes} bytes from {cut.path} at byte {cut.position}: {cut.reason}" for cut in report.cuts
    ]
    lines += [
        f"damage in {each.path} at byte {each.position}, offsets {each.first} to {each.last}: {each.reason}"
        for each in report.damage
    ]
    lines += [f"index rebuilt: {text}" for text in report.rebuilt] + report.notes
    if lines:
        show.say(show.tint("Recovery:", show.YELLOW))
        for line in lines:
            show.say(show.wrapped(f"- {harmless(line)}", "  "))
        show.say()


def show_cleaning(done: list[Cleaned], *, dry_run: bool) -> None:
    changed = [each for each in done if each.changes]
    if changed:
        titles = ("segments", "bytes", "records", "first offset")
        columns = [show.Column("partition", flexible=True), *(show.Column(title, right=True) for title in titles)]
        columns += [show.Column("retention"), show.Column("compaction")]
        show.show_table(columns, map(_cleaning_row, changed))
        show.say()
    for each in changed:
        if each.note:
            show.say(f"{each.partition}: {each.note}")
    verb = "would change" if dry_run else "changed"
    rest = len(done) - len(changed)
    show.say(f"{counted(len(changed), 'partition')} {verb}, {rest} had nothing to clean.")


def _cleaning_row(each: Cleaned) -> list[str]:
    before, after = each.before, each.after
    return [
        each.partition,
        f"{before.segments} -> {after.segments if after else '?'}",
        f"{sized(before.length_bytes)} -> {sized(after.length_bytes) if after else '?'}",
        f"{before.records} -> {after.records if after else '?'}",
        f"{each.start_before} -> {each.start_after}"
        if each.start_after != each.start_before
        else str(each.start_before),
        each.retention,
        each.compaction,
    ]


def show_rebuilding(done: list[Rebuilt]) -> None:
    columns = [show.Column("partition", flexible=True)]
    columns += [show.Column(title, right=True) for title in ("segment", "bytes", "entries")]
    rows = [
        [each.partition, str(each.base_offset), sized(each.length_bytes), f"{each.entries:,}", each.was]
        for each in done
    ]
    show.show_table([*columns, show.Column("was")], rows)
    for each in done:
        if each.unindexed_bytes:
            show.say(f"{each.path}: the last {each.unindexed_bytes} bytes are not batches; run `rivven log verify`")
