"""The loop that blocking clients share: one in each process, also after a fork."""

from __future__ import annotations

import subprocess
import sys

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
