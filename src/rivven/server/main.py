"""`rivvend`: read the settings, run a node until somebody asks it to stop, and say clearly what went wrong.

Exit codes: 0 stopped in good order, 1 something failed, 2 used wrongly, 130 interrupted while loading. A mistake is a
line on stderr that names what to do, never a traceback. SIGTERM and SIGINT stop in good order; a second one ends at
once, which is safe, as SIGKILL is: recovery then does at the next start what stopping would have done.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from rivven import __version__
from rivven.errors import BadDirectory, DirectoryLocked, RivvenError, SyncFailed
from rivven.system import keep_freed_memory

from . import logs
from .config import Resolved, print_config, resolve
from .settings import Settings
from .sources import Misused, parse_line

if TYPE_CHECKING:
    import asyncio

    from starlette.applications import Starlette

    from rivven.log import RecoveryReport

    from .node import Node
    from .web import HttpServer

logger = logging.getLogger("rivven.server.main")  # also when it is run as a script

CLEAN, FAILED, MISUSED = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; returns the exit code."""
    if not __debug__:
        return _say(["python -O takes out checks that rivven needs; run it without -O and PYTHONOPTIMIZE"], MISUSED)
    try:
        line = parse_line(sys.argv[1:] if argv is None else argv)
        resolved = resolve(line, os.environ)
    except Misused as error:
        return _say(error.problems, MISUSED)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if line.print_config:
        _say(resolved.warnings, CLEAN)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        print_config(resolved, sys.stdout, as_json=line.as_json)
        return CLEAN
    return serve(resolved)


def _say(problems: Sequence[str], code: int) -> int:
    for problem in problems:
        print(f"rivvend: {problem}", file=sys.stderr)
    return code


def serve(resolved: Resolved, make_node: Callable[[Settings], Node] | None = None) -> int:
    """Run a node to its end."""
    settings = resolved.settings
    logs.configure(settings.log_level, settings.log_format)
    for warning in resolved.warnings:
        logger.warning("%s", warning)
    keep_freed_memory()
    import asyncio

    try:
        with asyncio.Runner(loop_factory=_loop_factory(settings.loop)) as runner:
            return runner.run(_run(settings, make_node or _make_node))
    except _Stopped as stopped:
        return _say([stopped.text], FAILED)


def _make_node(settings: Settings) -> Node:
    from .node import Node

    return Node(settings)


class _Stopped(Exception):
    """The daemon could not start, or could not go on."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


def _loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if wanted == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted == "uvloop":
            raise _Stopped("uvloop is not installed; install it, or say --loop asyncio") from None
        return None
    return uvloop.new_event_loop


async def _run(settings: Settings, make_node: Callable[[Settings], Node]) -> int:
    import asyncio

    stop = asyncio.Event()
    _take_signals(asyncio.get_running_loop(), stop)
    daemon = _Daemon(settings, make_node)
    try:
        node = await daemon.start()
        _tell_ready(settings, node, daemon.http_address)
        await node.run_until(stop)
        await daemon.stop()
    except SyncFailed as error:
        _end_now(str(error))
    except (RivvenError, OSError, _Stopped) as error:
        await daemon.give_up()
        raise _Stopped(explain(error, settings)) from None
    logger.info("stopped in good order")
    return CLEAN


class _Daemon:
    """A node with its HTTP, started and stopped in the right order."""

    def __init__(self, settings: Settings, make_node: Callable[[Settings], Node]) -> None:
        self._settings = settings
        self._make_node = make_node
        self._node: Node | None = None
        self._http: HttpServer | None = None

    async def start(self) -> Node:
        settings = self._settings
        node = self._node = self._make_node(settings)
        await node.start()
        if settings.http_port:
            from .web import HttpServer, create_app

            def app() -> Starlette:
                return create_app(node, metrics=settings.metrics, dashboard=settings.dashboard)

            self._http = HttpServer(app, settings.http_host, settings.http_port)
            try:
                await self._http.start()
            except OSError as error:
                at = _bracketed(settings.http_host, settings.http_port)
                raise _Stopped(_about_address(error, at, "--http-port")) from None
        return node

    @property
    def http_address(self) -> tuple[str, int] | None:
        return self._http.address if self._http is not None else None

    async def stop(self) -> None:
        """The node first: as long as it drains, HTTP tells that it is not ready any more."""
        node, self._node = self._node, None
        http, self._http = self._http, None
        try:
            if node is not None:
                await node.stop()
        finally:
            if http is not None:
                await http.stop()

    async def give_up(self) -> None:
        """Close what is still open. What fails now is no news beside what failed before."""
        with suppress(RivvenError, OSError):
            await self.stop()


def _take_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def asked(name: str) -> None:
        if stop.is_set():
            _end_now(f"{name} again: ending at once; the next start recovers")
        logger.info("%s: stopping", name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number.name)


def _end_now(text: str) -> NoReturn:
    """End this process, whatever its threads are at: a disk that fails may never let them go."""
    _say([text], FAILED)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(FAILED)


# The ready line


def _tell_ready(settings: Settings, node: Node, http: tuple[str, int] | None) -> None:
    store = node.store
    topics, partitions, elapsed_ms = len(store.topics), len(store.logs), round(store.recovery.elapsed_us / 1000)
    where = f"http on {_bracketed(*http)}" if http is not None else "no http"
    report = store.recovery
    text = (
        f"rivvend ready: native protocol on {_bracketed(*node.address)}, {where}, data in {settings.data_dir} "
        f"({_counted(topics, 'topic')}, {_counted(partitions, 'partition')}, "
        f"recovered in {elapsed_ms} ms {_how_it_stopped(report)})"
    )
    if settings.log_format == "json":
        facts = {
            "event": "ready",
            "version": __version__,
            "address": _bracketed(*node.address),
            "http": _bracketed(*http) if http is not None else None,
            "data_dir": settings.data_dir,
            "topics": topics,
            "partitions": partitions,
            "recovered_ms": elapsed_ms,
            "clean_stop": report.clean,
            "replayed_batches": report.replayed,
            "cut_bytes": sum(cut.cut_bytes for cut in report.cuts),
        }
        record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None, extra=facts)
        text = logs.JsonLines().format(record)
    with suppress(OSError, ValueError):  # nobody may be listening
        print(text, flush=True)


def _how_it_stopped(report: RecoveryReport) -> str:
    """What the last process left behind."""
    if report.clean:
        return "after a clean stop"
    if report.topics_from == "new":
        return "from nothing"
    cut_bytes = sum(cut.cut_bytes for cut in report.cuts)
    cut = f", and cut {_counted(cut_bytes, 'byte')} that were never acknowledged" if cut_bytes else ""
    batches = f"{report.replayed} {'batch' if report.replayed == 1 else 'batches'}"
    return f"after an unclean stop: took {batches} from the write-ahead log{cut}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _bracketed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# What went wrong, and what to do


def explain(error: Exception, settings: Settings) -> str:
    """One line that names the thing and the next step."""
    match error:
        case _Stopped():
            return error.text
        case DirectoryLocked():
            return f"data directory {error}"
        case BadDirectory():
            return f"data directory {error}; choose another with --data-dir, or look with `rivven log verify`"
        case OSError():
            return _about_os(error, settings)
        case _:
            return str(error)


def _about_os(error: OSError, settings: Settings) -> str:
    path = error.filename
    if path is None and (isinstance(error, socket.gaierror) or error.errno in _OF_SOCKETS):
        return _about_address(error, _bracketed(settings.bind_host, settings.bind_port), "--bind")
    path = path or settings.data_dir
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"no room on the disk for {path}; free some space, or choose another place with --data-dir"
        case errno.EACCES | errno.EPERM:
            return f"{path}: permission denied; run as the user that owns it, or choose another with --data-dir"
        case errno.ENOENT:
            return f"{path} is not there and cannot be made; choose another place with --data-dir"
        case errno.EROFS:
            return f"{path} is on a read-only file system; choose another place with --data-dir"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} is not a directory; choose another place with --data-dir"
        case errno.EMFILE | errno.ENFILE:
            return "too many open files; raise the limit (ulimit -n, LimitNOFILE) and start again"
        case _:
            return f"{path}: {error.strerror or error}; check the disk (dmesg, smartctl), then start again"


_OF_SOCKETS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EAFNOSUPPORT}


def _about_address(error: OSError, at: str, flag: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"{at} cannot be resolved; name an address of this machine with {flag}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{at} is in use by another process; stop that, or choose another with {flag}"
        case errno.EADDRNOTAVAIL:
            return f"{at} is no address of this machine; name one with {flag}, as 127.0.0.1"
        case errno.EACCES:
            return f"{at} may not be used by this user; choose a port above 1023 with {flag}"
        case _:
            return f"cannot listen on {at}: {error.strerror or error}; choose another with {flag}"


if __name__ == "__main__":
    sys.exit(main())
