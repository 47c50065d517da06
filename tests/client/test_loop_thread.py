"""The loop that blocking clients share: one in each process, also after a fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rivven import ConfigException

FORK = """
import os, sys
from rivven import blocking
client = blocking.connect(sys.argv[1])
child = os.fork()
if child == 0:
    with blocking.connect(sys.argv[1]) as other:
        os._exit(0 if other.list_topics() == ["t"] else 1)
_, status = os.waitpid(child, 0)
client.ping()
client.close()
sys.exit(status)
"""


def test_a_forked_child_has_a_loop_of_its_own(client):
    """As Spark's workers are made: by forks of a process that may have loaded the client, and used it."""
    client.create_topic("t", 1)
    address = str(client._inner._cluster._roster.addresses[0])
    subprocess.run([sys.executable, "-c", FORK, address], check=True, timeout=60)


INHERITED = """
import os, sys
from rivven import ConfigException, blocking
client = blocking.connect(sys.argv[1])
producer = client.producer("t")
child = os.fork()
if child == 0:
    refused = 0
    adding = (lambda: producer.put(b"v"), lambda: producer.send(b"v"))
    for call in (client.ping, *adding, producer.flush, producer.close, client.close):
        try:
            call()
        except ConfigException as error:
            refused += "connect anew" in str(error)
    os._exit(refused != 6)
_, status = os.waitpid(child, 0)
producer.send(b"v")
client.close()
sys.exit(status)
"""


def test_a_forked_child_is_told_that_its_parents_client_is_of_no_use_to_it(client):
    """As the workers of `multiprocessing` may find out: nobody there would ever answer."""
    client.create_topic("t", 1)
    address = str(client._inner._cluster._roster.addresses[0])
    subprocess.run([sys.executable, "-W", "error", "-c", INHERITED, address], check=True, timeout=60)


def test_a_callback_that_would_wait_for_itself_is_told_so(client):
    client.create_topic("t", 1)
    told = []

    def wait(_):
        with pytest.raises(ConfigException, match="callback must not wait") as raised:
            producer.flush()
        told.append(raised.value)

    with client.producer("t") as producer:
        producer.put(b"v", on_delivery=wait)
    assert len(told) == 1
