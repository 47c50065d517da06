"""One event loop in a thread of its own, shared by the process, and what it takes to call something on it and wait.

Invariant: a process has one loop thread at most, and a forked child makes its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .failures import ConfigException

FORKED = "this client was made before the process was forked; connect anew in the child"
CALLBACK = "a callback must not wait for its own client; hand what it is to do to another thread"

A = TypeVar("A", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._runner = threading.Thread(target=self.loop.run_forever, name="rivven-client", daemon=True)
        self._runner.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done on the loop, and wait for it; an interrupt here cancels it there."""
        try:
            self.check_fork()
            if threading.current_thread() is self._runner:
                raise ConfigException(reason=CALLBACK)
        except ConfigException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_fork(self) -> None:
        """Raise in a child of the process that it was made in: there nobody runs the loop."""
        if self is not _thread:
            raise ConfigException(reason=FORKED)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_thread: LoopThread | None = None
_thread_lock = threading.Lock()


def loop_thread() -> LoopThread:
    global _thread
    with _thread_lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def _forget_thread() -> None:
    """A forked child has the loop and not its thread."""
    global _thread, _thread_lock
    _thread, _thread_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)


class Blocking(Generic[A]):
    """Something on the loop, and the thread to reach it by."""

    def __init__(self, inner: A, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread


def waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """The same method, done on the loop and waited for."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return call
