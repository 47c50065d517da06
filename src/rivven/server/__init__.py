"""The daemon: an asyncio shell round the broker. It owns sockets, threads and the clock, and holds no opinion."""

from .node import Node

__all__ = ["Node"]
