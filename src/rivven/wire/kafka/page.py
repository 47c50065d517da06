"""docs/protocols/kafka.md, made from the table of apis: `python -m rivven.wire.kafka.page`."""

from __future__ import annotations

from .apis import APIS, NEVER, Api, Stage

INTRODUCTION = """\
# Kafka

<!-- Written by `python -m rivven.wire.kafka.page`; a test holds it to the code. -->

Whatever speaks Kafka talks to `rivvend` unchanged, on the port of the native protocol: the first frame of a
connection tells who speaks. Nothing is converted on the way. A record batch is kept and served as the producer
encoded it; only its offset and its leader epoch are written into it, and its checksum does not cover those.

The table is the one that clients are told: what is not in it is not advertised, and a client that needs it says so at
once instead of half working. [Which clients were tried](kafka-clients.md), and with what, is a page of its own.

## What is served
"""

HEAD = "| key | api | versions | flexible from | |\n|---|---|---|---|---|"

BEHAVIOUR = """
## How this broker behaves where Kafka leaves a choice

- **Acks.** `acks=all` and `acks=1` both wait until the batch is durable under the node's sync policy, which by
  default is a sync. `acks=0` is not answered; if such a batch is refused, the connection closes.
- **Fetch sessions** are not kept: each fetch names all it wants, which every client does when it is told session 0.
- **Idempotent producers** are recognised by their last five batches per partition, also after the broker was killed.
- **Groups.** Classic members and members of the consumer protocol (KIP-848) are decided by one coordinator; its
  state is in `__consumer_offsets`, and a restarted broker goes on with the generation it had. The broker's
  assignors are `uniform` and `range`; patterns of topics are matched by the broker.
- **From one group protocol to the other.** Restart the members of a group one by one with `group.protocol=consumer`.
  The first of them takes the group to the consumer protocol, and those of the classic protocol are members of it
  meanwhile, eager or cooperative, with the broker assigning for all. When the last member of the consumer protocol
  leaves or falls silent, those that remain are a classic group again. A group moves this way if its protocol type
  is `consumer` and its members' subscriptions can be read; any other is answered `INCONSISTENT_GROUP_PROTOCOL`.
- **Transactions** of both versions (KIP-890) are kept in `__transaction_state`. What had been decided before a crash
  is finished after it. Offsets that are part of a transaction count when it commits.
- **Looking at transactions.** Those of native producers are listed, too, as `native:` and the producer's id.
  DescribeTransactions says in tagged fields, which other clients pass over, what a native producer calls its
  transaction (100), its owner (101) and sequence (102), and the groups whose offsets it commits (103).
  WriteTxnMarkers ends what a partition shows as open and no coordinator knows of; for anything else the answer is
  `INVALID_TXN_STATE`, and `INVALID_PRODUCER_EPOCH` if the producer has a later epoch in that partition.
- **Topic configs** that Kafka has and rivven does not are taken with the value that says what rivven does
  anyway, and refused with any other. Topics whose names begin with `__` are the broker's own.
- **Messages of formats before version 2** (clients before 0.11) are refused.
- **A frame that cannot be read** ends the connection, as a Kafka broker does it. Counts and lengths inside a
  frame are checked against the bytes that are there before anything is allocated for them.
"""


def docs_page() -> str:
    lines = [INTRODUCTION]
    for stage in Stage:
        served = [api for api in APIS.values() if api.stage is stage and api.served]
        if served:
            lines += [f"### {stage.value[0].upper()}{stage.value[1:]}\n", HEAD, *map(_row, served), ""]
    later = ", ".join(f"{api.name} ({api.key})" for api in APIS.values() if not api.served)
    lines.append(f"Not served yet: {later}.")
    return "\n".join(lines) + "\n" + BEHAVIOUR


def _row(api: Api) -> str:
    least, most = api.advertised
    versions = str(most) if least == most else f"{least}-{most}"
    flexible = "-" if api.flexible >= NEVER else str(api.flexible)
    return f"| {api.key} | {api.name} | {versions} | {flexible} | {api.note} |"


if __name__ == "__main__":
    print(docs_page(), end="")
