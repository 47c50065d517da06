"""One client and no faults."""

from __future__ import annotations

from random import Random

from rivven.broker import BrokerConfig
from rivven.log import StoreConfig
from rivven.sim import Agenda, SimClock, SimDisk, SimNetwork
from rivven.sim.client import SimClient
from rivven.sim.node import SimNode
from rivven.wire import Format, Request, Response


class Quiet:
    """A node on a network where nothing goes wrong."""

    def __init__(self, form: Format = Format.POSTCARD, *, seed: int = 1) -> None:
        rng = Random(seed)
        self.agenda = Agenda(SimClock())
        self.network = network = SimNetwork(self.agenda, rng)
        config = StoreConfig(wal_file_bytes=1 << 20, wal_first_file_bytes=1 << 18)
        self.node = SimNode("node", network, SimDisk(rng), config, BrokerConfig(default_partitions=1), say=len)
        self.node.start()
        self.client = SimClient("client", network, "node", form)

    def ask_all(self, *requests: Request) -> list[Response]:
        """Send all of them before the first is answered."""
        answers: list[Response | None] = []
        for request in requests:
            self.client.ask(request, answers.append)
        assert self.agenda.run(10_000_000, lambda: len(answers) == len(requests))
        return [answer for answer in answers if answer is not None]

    def restart(self) -> None:
        """The power goes and comes back."""
        self.node.die(power_lost=True)
        self.client.close()
        self.node.start()
