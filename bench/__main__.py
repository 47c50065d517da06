"""`python -m bench [--quick] [record] [commit] [log]`: measure, print a table, and keep the JSON.

One JSON line per result goes to `bench/out/results.jsonl`, a Markdown table with the targets, met or missed, to
`bench/out/results.md` and to the screen.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTS = ("record", "commit", "log")
OUT = Path(__file__).parent / "out"
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all of it by default")
    parser.add_argument("--quick", action="store_true", help="shorter, for a first impression only")
    chosen = parser.parse_args()
    machine = about()
    results: list[Result] = []
    for part in chosen.parts or PARTS:
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        module = importlib.import_module(f"bench.{part}")
        results += [{"part": part, **result} for result in module.run(quick=chosen.quick)]
        print(f"  {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    OUT.mkdir(exist_ok=True)
    lines = [json.dumps({**result, "commit": machine["commit"]}) for result in results]
    (OUT / "results.jsonl").write_text("\n".join([json.dumps({"machine": machine}), *lines]) + "\n")
    page = markdown(machine, results)
    (OUT / "results.md").write_text(page)
    print(page)
    return 0


def about() -> Result:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": git.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def markdown(machine: Result, results: list[Result]) -> str:
    head = ", ".join(f"{name} {value}" for name, value in machine.items())
    rows = ["| part | what | value | against | ratio | target | |", "|---|---|---|---|---|---|---|"]
    rows += [row(result) for result in results]
    missed = [result["bench"] for result in results if result.get("met") is False]
    closing = f"Missed: {', '.join(missed)}." if missed else "Every target was met."
    return f"{head}\n\n" + "\n".join(rows) + f"\n\n{closing}\n"


def row(result: Result) -> str:
    if "value" not in result:  # committers and batches have columns of their own
        rest = {name: value for name, value in result.items() if name not in ("part", "bench")}
        figures = ", ".join(f"{name} {value}" for name, value in rest.items())
        return f"| {result['part']} | {result['bench']} | {figures} | | | | |"
    value, unit = result["value"], result.get("unit", "")
    shown = f"{value:,} {unit}" + (f" (best {result['best']:,})" if "best" in result else "")
    against = f"{result['against']:,}" if "against" in result else ""
    verdict = {True: "met", False: "**missed**", None: ""}[result.get("met")]
    cells = [
        result["part"],
        result["bench"],
        shown,
        against,
        result.get("ratio", ""),
        result.get("target", ""),
        verdict,
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
