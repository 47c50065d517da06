"""How long does a small client wait for its answer while another one pours batches in as fast as it can?

The bulk producer keeps five batches of 1 MB in flight, the small client one request of 100 B. The budget is for the
policy `none`, where the wait is the broker's doing; what the disk adds under `every_write` stands beside it.
"""

from __future__ import annotations

from functools import partial

from bench import frames, load
from bench.contest import latencies, median
from bench.load import Figures, Shape
from bench.peers import Peer, Rivvend, running
from bench.spread import Result, alone

BULK_RECORDS = 1000
BULK_VALUE_BYTES = 1000
IN_FLIGHT = 5
P99_MS_MAX = 5.0


def run(*, quick: bool = False) -> list[Result]:
    rounds, seconds = (1, 0.6) if quick else (5, 2.0)
    results = []
    with running(Rivvend, partial(Rivvend, policy="every_write")) as (peers, _):
        seen = [[side_by_side(peer, seconds) for peer in peers] for _ in range(rounds)]
    for place, (policy, is_held) in enumerate((("none", True), ("every_write", False))):
        small, bulk = ([pairs[place][side] for pairs in seen] for side in (0, 1))
        bench = f"small client beside a bulk producer, policy {policy}, p99"
        results.append(figure(bench, small, bulk, held=is_held))
    return results


def side_by_side(peer: Peer, seconds: float) -> tuple[Figures, Figures]:
    """The small client's figures and the bulk producer's, which starts first and ends last."""
    peer.reset(2)
    bulk_plan = frames.bulk(peer.speaks, BULK_VALUE_BYTES, BULK_RECORDS, connections=1)
    small_plan = frames.single(peer.speaks, 100, connections=1)
    longer = Shape(connections=1, depth=IN_FLIGHT, seconds=seconds + 0.6, warmup_s=0.2)
    bulk = load.start(peer, bulk_plan, longer)
    try:
        small = load.run(peer, small_plan, Shape(connections=1, seconds=seconds, warmup_s=0.4))
        return small, bulk.figures()
    finally:
        bulk.stop()


def figure(bench: str, small: list[Figures], bulk: list[Figures], *, held: bool) -> Result:
    result = alone(
        bench,
        "ms",
        (each.p99_us / 1000 for each in small),
        bulk_records_per_s=round(median(bulk, "records_per_s")),
        **latencies(small),
        **load.doubts(*small),
    )
    return {**result, "target": P99_MS_MAX, "met": result["value"] <= P99_MS_MAX} if held else result
