"""A broker on the simulated disk, and clients that talk to it without a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from rivven.broker import Broker, BrokerConfig, Reply, Session
from rivven.log import Store, StoreConfig, SyncPolicy
from rivven.sim import SimClock, SimDisk, SimEntropy
from rivven.wire import Format, Request


class World:
    """One node through several lives; `ask` is a whole round trip, `send` and `settle` are its halves."""

    def __init__(
        self, *, policy: str = "every_write", defaults: Mapping[str, str] | None = None, **config: Any
    ) -> None:
        rng = Random(1)
        self.disk = SimDisk(rng)
        self.clock = SimClock()
        self._entropy = SimEntropy(rng)
        self._store_config = StoreConfig(
            sync_policy=SyncPolicy.parse(policy),
            wal_file_bytes=4 << 20,
            wal_first_file_bytes=1 << 18,
            topic_defaults=defaults or {},
        )
        self._config = BrokerConfig(**config)
        self.session = Session("127.0.0.1")
        self._open()

    def _open(self) -> None:
        store = Store(self.disk, self.clock, self._entropy, self._store_config)
        self.broker = Broker(store, self.disk, self.clock, self._config)

    def restart(self, *, defaults: Mapping[str, str] | None = None) -> None:
        """Kill it, and start it again, with other defaults for topics if some are given."""
        self.disk.kill()
        if defaults is not None:
            self._store_config = replace(self._store_config, topic_defaults=defaults)
        self._open()

    def send(self, request: Request, session: Session | None = None) -> Reply:
        reply = (session or self.session).expect(1, Format.POSTCARD)
        self.broker.handle(request, reply)
        return reply

    def settle(self) -> None:
        """Let the disk finish, and answer whatever can be answered."""
        for _ in range(4):
            self.broker.turn()
            self.preload()
            self.disk.step()
        self.broker.turn()

    def preload(self) -> None:
        """Bring into memory what readers wait for, as the shell's threads do."""
        for preload in self.broker.preloading.take():
            preload.run()
            self.broker.preloading.done(preload)

    def ask(self, request: Request, session: Session | None = None) -> Any:
        reply = self.send(request, session)
        self.settle()
        assert reply.response is not None, f"{type(request).__name__} is not answered"
        return reply.response
