"""`python -m bench [--quick] [--publish] [--hold] [part ...]`: measure, print a page, and keep the JSON.

`results.jsonl` has the machine in its first line and a result in every other, `results.md` the same as tables, and
the `.svg` files beside them are pictures of it: all in `bench/out`, or with `--publish` in `docs/benchmarks`. Each
part is a file beside this one that says what it asks. A part that fails is told in its place, and the others go on.
What was published of parts that are not measured now stays.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import page, plots
from bench.machine import about
from bench.memory import WARM_BYTES, ballast
from bench.peers import quickly

PARTS = (
    *("record", "commit", "log", "start", "produce", "small", "durable", "beside", "client", "kafka", "transactions"),
    *("sizes", "clients", "latency", "fanout", "catchup", "growth", "footprint", "spark"),
)
OUT = Path(__file__).parent / "out"
PUBLISHED = Path(__file__).parent.parent / "docs" / "benchmarks"
FAILED_CHARS_MAX = 300
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all of it by default")
    parser.add_argument("--quick", action="store_true", help="shorter, for a first impression only")
    parser.add_argument("--publish", action="store_true", help="write into docs/benchmarks instead of bench/out")
    parser.add_argument("--hold", action="store_true", help="end with 1 if a target was missed")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children and files go with us
    if chosen.quick:  # half of its time would be that of compilers
        os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        with quickly():
            return run(chosen)
    ballast.want(WARM_BYTES)
    return run(chosen)


def run(chosen: argparse.Namespace) -> int:
    machine = about() | {"quick": chosen.quick}
    parts = chosen.parts or PARTS
    results: list[Result] = earlier(parts) if chosen.publish else []
    begun = time.perf_counter()
    for part in parts:
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        part_begun = time.perf_counter()
        results += [{"part": part, **result} for result in measure(part, quick=chosen.quick)]
        print(f"  {time.perf_counter() - part_begun:.0f} s", file=sys.stderr, flush=True)
        minutes = round((time.perf_counter() - begun) / 60, 1)
        machine |= {"load_after": round(os.getloadavg()[0], 2), "minutes": minutes}
        if chosen.quick and part != parts[-1]:
            continue  # pictures take longer than some of the parts
        # After each part: a run that is cut short has measured something all the same
        text = write(PUBLISHED if chosen.publish else OUT, machine, sorted(results, key=place))
    print(text)
    missed = any(result.get("met") is False for result in results)
    return int(any("failed" in result for result in results) or (chosen.hold and missed))


def earlier(parts: Sequence[str]) -> list[Result]:
    """What was published of the parts that are not measured now. Each result says of which commit it is and on what
    processor it was measured, and no ratio is of two runs."""
    published = PUBLISHED / "results.jsonl"
    if not published.exists():
        return []
    rows = [json.loads(line) for line in published.read_text().splitlines()]
    return [row for row in rows if row.get("part") in PARTS and row["part"] not in parts]


def place(result: Result) -> int:
    return PARTS.index(result["part"])


def measure(part: str, *, quick: bool) -> list[Result]:
    try:
        found: list[Result] = importlib.import_module(f"bench.{part}").run(quick=quick)
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return [{"bench": part, "failed": said[:FAILED_CHARS_MAX]}]
    return found


def write(folder: Path, machine: Result, results: list[Result]) -> str:
    """All that there is to see of a run, into this folder. Pictures of an older run go."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"commit": machine["commit"], "cpu": machine["cpu"], **result}) for result in results]
    (folder / "results.jsonl").write_text("\n".join([json.dumps({"machine": machine}), *lines]) + "\n")
    for old in folder.glob("*.svg"):
        old.unlink()
    drawn = plots.draw(results, folder)
    measured = dict.fromkeys(result["part"] for result in results)
    text = page.markdown(machine, results, questions={part: question(part) for part in measured}, plots=drawn)
    (folder / "results.md").write_text(text)
    return text


def question(part: str) -> str:
    """What a part asks, and how: the words that its file opens with."""
    try:
        return inspect.getdoc(importlib.import_module(f"bench.{part}")) or ""
    except Exception:  # it was told where the part was to be measured
        return ""


if __name__ == "__main__":
    sys.exit(main())
