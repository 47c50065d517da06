"""Where the commands begin: Ctrl-C while one is still loading ends it at once, with code 130 and without a word.

Loading takes longer than a change of mind, and an interrupted import is a traceback. Invariant: until a command is
loaded it has nothing open, so ending is all there is to do. Hence the commands are loaded by name, once Ctrl-C is
seen to, and this file imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module

INTERRUPTED = 130


def rivven() -> int | None:
    return _launch("rivven.cli.main")


def rivven_connect() -> int | None:
    return _launch("rivven.connect.main")


def rivvend() -> int | None:
    """Its event loop takes the signals over, and until then the daemon has nothing open either."""
    return _launch("rivven.server.main", until_loaded=False)


def _launch(module: str, *, until_loaded: bool = True) -> int | None:
    guarded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else we were started to ignore it
    if guarded:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    command = import_module(module)
    try:
        if guarded and until_loaded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code: int | None = command.main()
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
