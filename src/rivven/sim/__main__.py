"""`python -m rivven.sim --seed N`: one random history, replayed; `--count M` runs M of them from seed N on."""

from __future__ import annotations

import argparse
import sys

from .history import POLICIES, run_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rivven.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the history to run")
    parser.add_argument("--count", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--steps", type=int, default=60, help="events in each history")
    parser.add_argument("--policy", choices=POLICIES, help="the sync policy; by default the seed chooses")
    parser.add_argument("--quiet", action="store_true", help="do not print the events")
    chosen = parser.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        show = None if chosen.quiet or chosen.count > 1 else print
        run_history(seed, steps=chosen.steps, policy=chosen.policy, show=show)
    print(f"{chosen.count} histories held, seeds {chosen.seed} to {chosen.seed + chosen.count - 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
