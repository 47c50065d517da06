"""Random histories of a store: a seed decides every event, and with it what the disk does at every crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from .store import KEYS, StoreWorld

POLICIES = ("every_write", "every_n_writes(5)", "none")
Event = tuple[str, Callable[[], object]]


def replay_command(seed: int) -> str:
    return f"python -m rivven.sim --seed {seed}"


def run_history(
    seed: int, *, steps: int = 60, policy: str | None = None, show: Callable[[str], object] | None = None
) -> StoreWorld:
    """Live through one history. A broken promise raises AssertionError that ends with how to replay it."""
    rng = Random(f"history {seed}")
    chosen = policy or rng.choices(POLICIES, weights=(6, 2, 1))[0]
    try:
        world = StoreWorld(seed, policy=chosen)
        for step in range(steps):
            name, action = random_event(rng, world)
            if show is not None:
                show(f"{step:4d} {name}")
            action()
            world.check()
        world.crash()
        world.check()
    except Exception as error:
        error.add_note(f"policy {chosen}; replay: {replay_command(seed)}")
        raise
    return world


def random_event(rng: Random, world: StoreWorld) -> Event:
    """Mostly plain work; now and then the end of the process or of the power, also in the middle of work."""
    roll = rng.random()
    if roll < 0.70:
        return plain_event(rng, world)
    if roll < 0.76:
        return "kill", world.kill
    if roll < 0.82:
        return "power loss", world.crash
    if roll < 0.84:
        return "restart", world.restart
    name, action = plain_event(rng, world)
    power_lost = rng.random() < 0.6
    what = "power loss" if power_lost else "kill"
    if roll < 0.96:
        after = rng.randint(0, 12)
        event = partial(world.interrupted, action, after, power_lost=power_lost)
        return f"{what} after {after} operations of: {name}", event
    return f"failed sync, then {what}, in: {name}", partial(world.failing_sync, action, power_lost=power_lost)


def plain_event(rng: Random, world: StoreWorld) -> Event:
    topic = rng.choice(["plain", "keyed", "other"])
    number = rng.randint(0, 1)
    keys = [rng.randint(1, KEYS) * (-1 if rng.random() < 0.15 else 1) for _ in range(rng.randint(1, 5))]
    run = [[rng.randint(1, KEYS) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(2, 6))]
    value_bytes = rng.choice([0, 20, 20, 200, 900])
    back = rng.choice([1, 3, 10, 100])
    events: list[tuple[int, Event]] = [
        (40, (f"append {keys} to {topic}/{number}", partial(world.append, topic, number, keys, value_bytes))),
        (12, (f"append in one {run} to {topic}/{number}", partial(world.append_run, topic, number, run, 20))),
        (25, ("pump", world.pump)),
        (12, ("flush", world.flush)),
        (10, ("chores", world.chores)),
        (4, ("checkpoint", world.checkpoint)),
        (4, (f"roll {topic}/{number}", partial(world.roll, topic, number))),
        (5, ("clean", world.clean)),
        (2, ("retain", partial(world.retain, rng.choice([1000, 3600_000, 8 * 24 * 3600_000])))),
        (3, (f"truncate {topic}/{number} by {back}", partial(world.truncate, topic, number, back))),
        (3, (f"delete before {topic}/{number}", partial(world.delete_before, topic, number, back))),
        (2, ("create other", partial(world.create_topic, "other", 2, {"segment.bytes": "1024"}))),
        (1, ("delete other", partial(world.delete_topic, "other"))),
        (2, ("fill the disk", partial(world.fill_disk, rng.choice([0, 300, 5000])))),
        (3, ("free the disk", world.free_disk)),
    ]
    return rng.choices([event for _, event in events], weights=[weight for weight, _ in events])[0]
