"""One client for each set of servers in this process, kept for the next task: Spark uses its Python workers again."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from pyspark import TaskContext

from rivven.client import Closed, Options, blocking
from rivven.errors import RivvenError
from rivven.system import keep_freed_memory

from .options import Access

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a broker that is away is waited for; Spark itself tries a local task only once."""
PAUSE_S = 0.25

_clients: dict[Access, blocking.RivvenClient] = {}
_lock = threading.Lock()


def _forget() -> None:
    """A forked child has its parent's clients and not the thread that serves them."""
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)


_settled_pid = 0


def settle() -> None:
    """Make a worker of Spark one that moves bytes: once, and nowhere but in a worker, which is nobody else's process.

    It collects garbage after every task and looks each time at all that was ever imported, for a tenth of a second;
    what is there now is there to stay.
    """
    global _settled_pid
    if _settled_pid != os.getpid() and TaskContext.get() is not None:
        _settled_pid = os.getpid()
        gc.collect()
        gc.freeze()
        keep_freed_memory()


def client_of(access: Access) -> blocking.RivvenClient:
    """The client of this process, connected and logged in."""
    with _lock:
        found = _clients.get(access)
        if found is None:
            found = _clients[access] = _connect(access)
        return found


def _connect(access: Access) -> blocking.RivvenClient:
    options = Options(client_id="rivven-spark")
    if access.tls is None:
        client = blocking.connect(access.servers, options=options)
    else:
        ca_cert, server_name, cert, key = access.tls
        client = blocking.connect_tls(access.servers, ca_cert, server_name, cert, key, options=options)
    if access.username is not None and access.password is not None:
        client.authenticate_scram(access.username, access.password)
    return client


@atexit.register
def close_all() -> None:
    """Hang up; whoever needs a client later gets a new one."""
    with _lock:
        held = list(_clients.values())
        _clients.clear()
    for client in held:
        with contextlib.suppress(RivvenError, RuntimeError):
            client.close()


def patiently(act: Callable[[], T]) -> T:
    """Have it done, again and again while what stands in the way may pass."""
    deadline = monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except RivvenError as error:
            if isinstance(error, Closed) or not error.retriable or monotonic() > deadline:
                raise
            sleep(max(PAUSE_S, error.facts.get("retry_ms", 0) / 1000))
