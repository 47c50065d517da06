"""`python -m rivven.sim --seed N`: one random history, replayed; `--count M` runs M of them from seed N on.

`--world store` (the default) is the store on its disk alone, `--world broker` a broker with clients on a network,
`--world transactions` one whose clients write in transactions, `--world groups` one whose clients share a group.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable

from .broker import SECONDS, BrokerWorld, run_broker_history
from .group_world import GroupWorld
from .history import POLICIES, run_history
from .txn_world import TxnWorld

WORLDS: dict[str, type[BrokerWorld]] = {world.name: world for world in (BrokerWorld, TxnWorld, GroupWorld)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rivven.sim", description=__doc__)
    parser.add_argument("--world", choices=("store", *WORLDS), default="store", help="what is simulated")
    parser.add_argument("--seed", type=int, required=True, help="the history to run")
    parser.add_argument("--count", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--steps", type=int, default=60, help="events in each history of a store")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="time under faults in each history of a broker")
    parser.add_argument("--policy", choices=POLICIES, help="the sync policy; by default the seed chooses")
    parser.add_argument("--quiet", action="store_true", help="do not print the events")
    chosen = parser.parse_args()
    logging.disable(logging.ERROR)  # what a store says of every crash it recovers from
    show = None if chosen.quiet or chosen.count > 1 else print
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        run(chosen, seed, show)
    print(f"{chosen.count} histories held, seeds {chosen.seed} to {chosen.seed + chosen.count - 1}")
    return 0


def run(chosen: argparse.Namespace, seed: int, show: Callable[[str], object] | None) -> None:
    if chosen.world in WORLDS:
        run_broker_history(seed, seconds=chosen.seconds, policy=chosen.policy, show=show, world=WORLDS[chosen.world])
    else:
        run_history(seed, steps=chosen.steps, policy=chosen.policy, show=show)


if __name__ == "__main__":
    sys.exit(main())
