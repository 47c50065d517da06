"""A session of a Spark Connect server: queries run there, and this process only says which, and looks on.

What the server starts in Python, planning, tasks and commits, imports `rivven` where it runs. So the package has to
be installed there, or to come with an environment that the session is given (docs/guides/spark.md).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rivven.errors import RivvenError

from .session import register

PORT = 15002
"""Where a server listens unless it was told otherwise."""
REACH_S = 5.0
"""A server that takes no connection in this time is away: Spark's own client would go on trying for minutes."""

log = logging.getLogger("rivven.spark")


class NoRemote(RivvenError, code=114):
    """A Spark Connect server that cannot be used."""

    message = "Spark Connect, {remote}: {reason}"


def start_remote(
    remote: str, settings: Mapping[str, str] | None = None, *, tell: Callable[[str], object] = log.warning
) -> SparkSession:
    """A session at a server such as `sc://host:15002`, with the format registered.

    A setting that belongs to the server and not to a session is told, and the session goes on without it.
    """
    _reach(remote)
    try:
        spark = SparkSession.builder.remote(remote).getOrCreate()
        for key, value in (settings or {}).items():
            if not _set(spark, key, value):
                tell(f"{key} is left as the server has it; set it where the server is started")
        register(spark)
    except ImportError as error:
        reason = f"its client is not installed ({error.name or error}); pip install 'rivven[spark-connect]'"
        raise NoRemote(remote=_plain(remote), reason=reason) from None
    except PySparkException as error:
        raise NoRemote(remote=_plain(remote), reason=str(error).splitlines()[0]) from None
    return spark


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _plain(remote: str) -> str:
    """Without its parameters: a token may be among them."""
    return remote.partition(";")[0].removesuffix("/")


def _reach(remote: str) -> None:
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        parts, host, port = None, None, 0
    if parts is None or parts.scheme != "sc" or not host:
        raise NoRemote(remote=_plain(remote), reason="this is no address of a server; write sc://host:15002")
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except OSError as error:
        reason = f"nobody answers ({error.strerror or error}); start-connect-server.sh of Spark starts a server"
        raise NoRemote(remote=_plain(remote), reason=reason) from None


def _set(spark: SparkSession, key: str, value: str) -> bool:
    """Whether the server lets a session choose this."""
    try:
        spark.conf.set(key, value)
    except PySparkException as error:
        if "CANNOT_MODIFY" not in str(error):
            raise
        return False
    return True
