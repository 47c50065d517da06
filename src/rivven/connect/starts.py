"""Where a sink begins that is to read what is new: the ends of its topics when it was first run.

Kept before anything of that run writes, and until the sink's query has a checkpoint of its own. So what comes while
the query is not there yet, since its source runs first or its columns are not known, is read as well; and the query
for its dead letters begins at the very same records.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rivven.spark import bounds_of

if TYPE_CHECKING:
    from rivven.client import blocking

    from .plan import QueryPlan
    from .state import StateDirectory

EARLIEST = -2
"""What the format `rivven` reads as the first record there is."""


def _place(plan: QueryPlan) -> str:
    return f"sinks/{plan.name.partition('/')[0]}/start.json"


def _kept(state: StateDirectory, plan: QueryPlan) -> dict[str, dict[str, int]]:
    return state.known(_place(plan)) or {}


def keep(state: StateDirectory, client: blocking.RivvenClient, plan: QueryPlan) -> None:
    """Write down where the topics of a sink end, if that is not known from an earlier run."""
    known, there = _kept(state, plan), set(client.list_topics())
    missing = [topic for topic in plan.topics_read if topic not in known]
    for topic in missing:
        bounds = bounds_of(client, topic) if topic in there else {}
        known[topic] = {str(number): each.stable for number, each in bounds.items()}
    if missing:
        state.keep(_place(plan), json.dumps(known))


def offsets(state: StateDirectory, client: blocking.RivvenClient, plan: QueryPlan) -> str:
    """The offsets to begin at, as the format `rivven` takes them. A partition that came later is read whole, and so
    is one that no longer has the place."""
    known, there, made = _kept(state, plan), set(client.list_topics()), dict[str, dict[str, int]]()
    for topic in plan.topics_read:
        for number, bounds in bounds_of(client, topic).items() if topic in there else ():
            begun = known.get(topic, {}).get(str(number), EARLIEST)
            inside = bounds.earliest <= begun <= bounds.latest
            made.setdefault(topic, {})[str(number)] = begun if inside else EARLIEST
    return json.dumps(made)
