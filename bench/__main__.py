"""`python -m bench [--quick] [--hold] [part ...]`: measure, print a table, and keep the JSON.

One JSON line per result goes to `bench/out/results.jsonl`, a Markdown table with the targets, met or missed, to
`bench/out/results.md` and to the screen. Each part is a file beside this one that says what it asks. A part that
fails is told in its place, and the others go on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench import load, peers

PARTS = (
    "record",
    "commit",
    "log",
    "start",
    "produce",
    "small",
    "durable",
    "beside",
    "client",
    "kafka",
    *("transactions", "spark"),
)
OUT = Path(__file__).parent / "out"
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all of it by default")
    parser.add_argument("--quick", action="store_true", help="shorter, for a first impression only")
    parser.add_argument("--hold", action="store_true", help="end with 1 if a target was missed")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children and files go with us
    machine = about()
    results: list[Result] = []
    for part in chosen.parts or PARTS:
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        results += [{"part": part, **result} for result in measure(part, quick=chosen.quick)]
        print(f"  {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    OUT.mkdir(exist_ok=True)
    lines = [json.dumps({**result, "commit": machine["commit"]}) for result in results]
    (OUT / "results.jsonl").write_text("\n".join([json.dumps({"machine": machine}), *lines]) + "\n")
    page = markdown(machine, results)
    (OUT / "results.md").write_text(page)
    print(page)
    missed = any(result.get("met") is False for result in results)
    return int(any("failed" in result for result in results) or (chosen.hold and missed))


def measure(part: str, *, quick: bool) -> list[Result]:
    try:
        found: list[Result] = importlib.import_module(f"bench.{part}").run(quick=quick)
    except Exception as error:
        traceback.print_exc()
        return [{"bench": part, "failed": f"{type(error).__name__}: {error}"}]
    return found


def about() -> Result:
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "generator": "C" if load.is_native() else "Python",
        **peers.versions(),
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Where the tree stands, and whether it has been changed since."""
    try:
        said = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def markdown(machine: Result, results: list[Result]) -> str:
    head = ", ".join(f"{name} {value}" for name, value in machine.items())
    rows = ["| part | what | value | against | ratio | target | |", "|---|---|---|---|---|---|---|"]
    rows += [row(result) for result in results]
    missed = [f"- {result['part']}: {result['bench']}" for result in results if result.get("met") is False]
    failed = [f"- {result['part']}: {result['failed']}" for result in results if "failed" in result]
    closing = "\n".join(["Missed:", "", *missed]) if missed else "Every target was met."
    if failed:
        closing += "\n".join(["\n\nFailed, and not measured:", "", *failed])
    return f"{head}\n\n" + "\n".join(rows) + f"\n\n{closing}\n"


def row(result: Result) -> str:
    if "value" not in result:  # committers and batches have columns of their own
        rest = {name: value for name, value in result.items() if name not in ("part", "bench")}
        figures = ", ".join(f"{name} {value}" for name, value in rest.items())
        return f"| {result['part']} | {result['bench']} | {figures} | | | | |"
    value, unit = result["value"], result.get("unit", "")
    shown = f"{value:,} {unit}" + (f" (best {result['best']:,})" if "best" in result else "")
    if "p99_us" in result:
        shown += f" (p50 {result['p50_us'] / 1000:.2f} ms, p99 {result['p99_us'] / 1000:.2f} ms)"
    against = f"{result['against']:,}" if "against" in result else ""
    verdict = {True: "met", False: "**missed**", None: ""}[result.get("met")]
    cells = [
        result["part"],
        result["bench"],
        shown,
        against,
        result.get("ratio", ""),
        result.get("target", ""),
        " ".join(filter(None, (verdict, result.get("note")))),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
