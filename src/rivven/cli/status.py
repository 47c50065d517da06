"""`rivven ping`, `status` and `metrics`: whether a broker is there, and how it is."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from . import show
from .server import DEFAULT, AsJson, Server, connected, done
from .text import counted, harmless


def ping(server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Ask whether the broker answers.

    Exits with 0 if it does, and with 1 if not.

    Example:

        rivven ping --server broker-1:9092
    """
    with connected(server) as client:
        begun_ns = time.monotonic_ns()
        client.ping()
        elapsed_ms = (time.monotonic_ns() - begun_ns) / 1e6
    if as_json:
        show.show_json({"address": server, "elapsed_ms": round(elapsed_ms, 3)})
    else:
        done(f"Pong from {server}")


def status(server: Server = DEFAULT, as_json: AsJson = False) -> None:
    """Show the brokers, the topics and what they hold.

    Records are counted from the first offset to the last; what compaction took out of the middle is counted, too.

    Example:

        rivven status --json
    """
    with connected(server) as client:
        cluster = client.get_cluster_metadata()
        groups = client.list_groups()
        topics: list[dict[str, Any]] = []
        for topic in cluster.topics:
            bounds = [client.get_offset_bounds(topic.name, part.partition) for part in topic.partitions]
            topics.append(
                {
                    "name": topic.name,
                    "internal": topic.is_internal,
                    "partitions": len(topic.partitions),
                    "offline_partitions": sum(part.offline for part in topic.partitions),
                    "records": sum(latest - earliest for earliest, latest in bounds),
                }
            )
    brokers = [
        {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack} for each in cluster.brokers
    ]
    if as_json:
        show.show_json(
            {"controller": cluster.controller_id, "brokers": brokers, "topics": topics, "groups": len(groups)}
        )
        return
    for each in brokers:
        mark = ", controller" if each["node_id"] == cluster.controller_id else ""
        show.say(f"Broker {each['node_id']} at {each['host']}:{each['port']}{mark}")
    own = [topic for topic in topics if not topic["internal"]]
    partitions = sum(topic["partitions"] for topic in own)
    show.say(
        f"{counted(len(own), 'topic')}, {counted(partitions, 'partition')}, "
        f"{counted(sum(topic['records'] for topic in own), 'record')}, {counted(len(groups), 'group')}"
    )
    if own:
        show.say()
        columns = [show.Column("TOPIC", flexible=True), show.Column("PARTITIONS", True), show.Column("RECORDS", True)]
        rows = [(harmless(each["name"]), str(each["partitions"]), f"{each['records']:,}") for each in own]
        show.show_table(columns, rows)


def metrics(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only metrics whose name begins like this.", show_default=False)
    ] = "",
    server: Server = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the broker's metrics, in the text format of Prometheus.

    Example:

        rivven metrics rivven_core
    """
    with connected(server) as client:
        text = client.get_metrics(prefix)
    if as_json:
        show.show_json({"metrics": [_sample(line) for line in text.splitlines() if line and line[0] != "#"]})
    else:
        show.say(text.rstrip("\n"))


SAMPLE = re.compile(r"(?P<name>[^{\s]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _sample(line: str) -> dict[str, Any]:
    found = SAMPLE.match(line)
    if found is None:
        return {"text": line}
    value: float | str = found["value"]
    number = float(value)
    if number - number == 0:  # neither endless nor no number, which JSON has no words for
        value = int(number) if number.is_integer() else number
    return {"name": found["name"], "labels": dict(LABEL.findall(found["labels"] or "")), "value": value}
