"""What does one message cost between its bytes and its value, in each encoding? One JSON line per measurement.

python bench/wire.py [--quick]
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from rivven.wire import (
    Format,
    Splitter,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    requests,
    responses,
)

ROUNDS = 25 if "--quick" in sys.argv else 300
REPEATS = 300
MESSAGES = 100


def measure(bench: str, act: Callable[[], object], *, units: int = 1) -> None:
    """The median of many short rounds per message, and the best round, which a busy machine disturbs least."""
    times_ns = []
    repeats = max(1, REPEATS // units)
    gc.collect()
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(repeats):
            act()
        times_ns.append((time.perf_counter_ns() - start) / repeats / units)
    print(json.dumps({"bench": bench, "ns": round(statistics.median(times_ns)), "best_ns": round(min(times_ns))}))


def body_of(frame: Sequence[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(frame)[4:]


def small(form: Format) -> None:
    name = form.name.lower()
    asked = {
        "publish": requests.Publish("orders", 3, b"key-00000007", bytes(100)),
        "consume": requests.Consume("orders", 3, 1_000_000, 500, None, 5000),
        "ping": requests.Ping(),
    }
    for kind, request in asked.items():
        body = body_of(encode_request(request, 7, form))
        view = memoryview(bytearray(body))
        measure(f"decode_{kind}_{name}", partial(decode_request, body))
        measure(f"decode_{kind}_view_{name}", partial(decode_request, view))
        measure(f"encode_{kind}_{name}", partial(encode_request, request, 7, form))
    published = responses.Published(1_000_000, 3)
    body = body_of(encode_response(published, 7, form))
    measure(f"encode_published_{name}", lambda: encode_response(published, 7, form))
    measure(f"make_and_encode_published_{name}", lambda: encode_response(responses.Published(1_000_000, 3), 7, form))
    measure(f"decode_published_{name}", lambda: decode_response(body))


def many(form: Format) -> None:
    name = form.name.lower()
    row = tuple(
        responses.MessageData(1_000_000 + place, 3, b"key-00000007", bytes(100), 1_700_000_000_000 + place)
        for place in range(MESSAGES)
    )
    messages = responses.Messages(row)
    body = body_of(encode_response(messages, 7, form))
    measure(f"encode_messages_{name}_each", lambda: encode_response(messages, 7, form), units=MESSAGES)
    measure(f"decode_messages_{name}_each", lambda: decode_response(body), units=MESSAGES)


def batches() -> None:
    view = memoryview(bytearray(16_384))
    for partitions in (1, 10):
        produce = requests.ProduceBatches(
            -1,
            30_000,
            (requests.TopicBatches("orders", tuple(requests.PartitionBatches(n, view) for n in range(partitions))),),
        )
        body = memoryview(bytearray(body_of(encode_request(produce, 7))))
        measure(f"decode_produce_batches_{partitions}", partial(decode_request, body))
        fetched = responses.FetchedBatches(
            (
                responses.TopicFetched(
                    "orders",
                    tuple(
                        responses.PartitionFetched(n, 0, None, 10**6, 10**6, 0, (), view) for n in range(partitions)
                    ),
                ),
            )
        )
        measure(f"encode_fetched_batches_{partitions}", partial(encode_response, fetched, 7))


def split() -> None:
    frame = b"".join(encode_request(requests.Publish("orders", 3, b"key-00000007", bytes(100)), 7))
    one, hundred = Splitter(), Splitter()
    measure("split_one_frame", lambda: one.feed(frame))
    measure("split_hundred_frames_each", lambda: hundred.feed(frame * 100), units=100)


if __name__ == "__main__":
    for form in Format:
        small(form)
        many(form)
    batches()
    split()
