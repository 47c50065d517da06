"""The client for scripts, threads and Spark: the names of `rivven`, and calls that wait.

import rivven.blocking

with rivven.blocking.connect("localhost:9092") as client:
    client.producer("orders").send(b"paid", key=b"42")
"""

from .client import blocking as _blocking

Consumer = _blocking.Consumer
GroupConsumer = _blocking.GroupConsumer
Producer = _blocking.Producer
RivvenClient = _blocking.RivvenClient
connect = _blocking.connect
connect_tls = _blocking.connect_tls

__all__ = ["Consumer", "GroupConsumer", "Producer", "RivvenClient", "connect", "connect_tls"]
