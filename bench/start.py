"""How soon is `rivvend` ready, and what does it hold while nobody asks for anything? As installed, with HTTP on."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.peers import Rivvend, free_port
from bench.spread import Result, alone

START_S_MAX = 1.0
IDLE_MB_MAX = 120
IDLE_S = 1.0


def run(*, quick: bool = False) -> list[Result]:
    rounds = 2 if quick else 9
    starts_s, idle_mb = [], []
    with tempfile.TemporaryDirectory(prefix=".bench-start-", dir=".") as root:
        for number in range(rounds):
            home = Path(root).resolve() / str(number)
            peer = Rivvend(home, "--http-port", str(free_port()), policy="every_write")
            begun = time.perf_counter()
            peer.start()
            try:
                starts_s.append(time.perf_counter() - begun)
                time.sleep(IDLE_S)  # what a start leaves to be done later is done by then
                idle_mb.append(peer.rss_bytes() / 1e6)
            finally:
                peer.stop()
    return [
        held("start of rivvend until it says that it is ready", "s", starts_s, START_S_MAX),
        held("idle memory of rivvend", "MB", idle_mb, IDLE_MB_MAX),
    ]


def held(bench: str, unit: str, values: list[float], most: float) -> Result:
    result = alone(bench, unit, values, target=most)
    return {**result, "met": result["value"] < most}
