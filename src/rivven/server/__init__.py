"""The daemon: an asyncio shell round the broker. It owns sockets, threads and the clock, and holds no opinion.

`rivvend` is `rivven.server.main`; nobody imports from here, so that `rivvend --help` loads no broker.
"""

__all__: list[str] = []
