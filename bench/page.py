"""The results as a page: the machine, the plots, and for each part its question and one table, losses and all.

`markdown` is pure. A result is a dictionary: those of `bench.spread` have `value`, `low`, `high` and, beside a rival,
`against`, `ratio`; others are told field by field. Invariant: whatever was measured stands on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Result = dict[str, Any]
HEAD = "| what | rivvend | rival | theirs | ratio | target | |"
RULE = "|---|---:|---|---:|---:|---:|---|"
READING = """\
Each figure is the median of its rounds, with the lowest and the highest round behind it. A ratio says how many times
better rivvend is: above 1 it is ahead, below 1 it is behind, for rates and for times alike. *Even* means that the
spreads overlap, so that neither is ahead. A target is one that we set ourselves: a least ratio where there is a
rival, else a bound for the figure itself. [How it is measured](method.md) says what to doubt."""
QUICK = """\
!!! warning "Not worth quoting"
    This was a quick run: short rounds, few of them, small amounts. It shows that everything runs, and no more."""


def markdown(
    machine: Mapping[str, Any],
    results: Sequence[Result],
    *,
    questions: Mapping[str, str],
    plots: Sequence[tuple[str, str]] = (),
) -> str:
    """`questions` has what each part asks, in the order of the page; `plots` are file names and what they show."""
    pieces = ["# Results", summary(results)]
    if machine.get("quick"):
        pieces.append(QUICK)
    pieces += [READING, "## The machine", facts(machine)]
    if plots:
        pieces += ["## At a glance", *(f"![{shown}]({name})" for name, shown in plots)]
    for part, question in questions.items():
        rows = [result for result in results if result["part"] == part]
        if rows:
            pieces += [f"## {part.capitalize()}", question]
            pieces += [*another_run(machine, rows[0]), table(rows)]
    return "\n\n".join(pieces) + "\n"


def another_run(machine: Mapping[str, Any], result: Result) -> list[str]:
    """If a part is not of the run that the page is about, which one it is of, and where that was."""
    if result.get("commit", machine["commit"]) == machine["commit"]:
        return []
    where = "" if result.get("cpu", machine["cpu"]) == machine["cpu"] else f", on another machine: {result['cpu']}"
    return [f"Measured in a run of its own, of commit {result['commit']}{where}."]


def summary(results: Sequence[Result]) -> str:
    """How often ahead, behind and even; then each target that was missed, and each part that was not measured."""
    counts = dict.fromkeys(("ahead", "behind", "even"), 0)
    for result in results:
        if (word := standing(result)) is not None:
            counts[word] += 1
    told = f"In {sum(counts.values())} comparisons with its rivals rivvend is ahead in {counts['ahead']}, behind in "
    told += f"{counts['behind']} and even in {counts['even']}."
    held = [result for result in results if "met" in result]
    missed = [f"- {named(result)}" for result in held if not result["met"]]
    told += f" Of {len(held)} targets {len(held) - len(missed)} were met."
    failed = [f"- {result['part']}: {result['failed']}" for result in results if "failed" in result]
    lists = (("Missed:", missed), ("Failed, and not measured:", failed))
    pieces = [f"{title}\n\n" + "\n".join(lines) for title, lines in lists if lines]
    return "\n\n".join([told, *pieces])


def named(result: Result) -> str:
    rival = f", beside {result['rival']}" if "rival" in result else ""
    return f"{result['part']}: {result['bench']}{rival}"


def facts(machine: Mapping[str, Any]) -> str:
    rows = [f"| {name.replace('_', ' ')} | {value} |" for name, value in machine.items() if name != "quick"]
    return "\n".join(["| | |", "|---|---|", *rows])


def table(results: Sequence[Result]) -> str:
    return "\n".join([HEAD, RULE, *map(row, results)])


def row(result: Result) -> str:
    if "failed" in result:
        return _cells(result["bench"], "", "", "", "", "", f"**failed**: {result['failed']}")
    if "value" not in result:  # committers and batches have columns of their own
        rest = {name: value for name, value in result.items() if name not in ("part", "bench", "note")}
        figures = ", ".join(f"{name} {number(value)}" for name, value in rest.items())
        return _cells(result["bench"], figures, "", "", "", "", result.get("note", ""))
    against = figure(result, "against") if "against" in result else ""
    ratio = result.get("ratio")
    return _cells(
        result["bench"],
        figure(result),
        result.get("rival", ""),
        against,
        "" if ratio is None else f"{ratio:.2f}",
        number(result.get("target", "")),
        remarks(result),
    )


def _cells(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def figure(result: Result, side: str = "value") -> str:
    """A median with its unit, its spread, and how long a request took where that was measured."""
    prefix = "" if side == "value" else "against_"
    shown = f"{number(result[side])} {result.get('unit', '')}".rstrip()
    low, high = result.get(f"{prefix}low"), result.get(f"{prefix}high")
    if low is not None and low != high:
        shown += f" ({number(low)} – {number(high)})"
    if f"{prefix}p99_us" in result:
        shown += f"; p50 {result[f'{prefix}p50_us'] / 1000:.2f} ms, p99 {result[f'{prefix}p99_us'] / 1000:.2f} ms"
    return shown


def number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def remarks(result: Result) -> str:
    """The verdict, then what a reader should know: the client, and what it and the broker used of the processor."""
    verdict = {True: "met", False: "**missed**", None: ""}[result.get("met")]
    told = [verdict, standing(result) or "", result.get("note", "")]
    if "client" in result:
        told.append(f"client: {result['client']}{_busy(result)}")
    return "; ".join(filter(None, told))


def _busy(result: Result) -> str:
    if "load_cpu" not in result:
        return ""
    ours = f", {result['load_cpu']:.2f} cores"
    theirs = result.get("against_load_cpu")
    return ours if theirs is None else f"{ours} / {theirs:.2f}"


def standing(result: Result) -> str | None:
    """Ahead of a rival, behind it, or even; None where there is none, or where the rival is we ourselves."""
    ratio = result.get("ratio")
    if ratio is None or str(result.get("rival", "")).startswith(("rivvend", "rivven's")):
        return None
    if result.get("within_spread"):
        return "even"
    return "ahead" if ratio > 1 else "behind"
