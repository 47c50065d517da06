"""A process that holds librdkafka's mock broker: prints the port, and stays until its input ends or it is killed."""

from __future__ import annotations

import sys

from confluent_kafka import Producer


def main() -> None:
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = host.list_topics(sys.argv[1], timeout=10).brokers.values()
    print(broker.port, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
