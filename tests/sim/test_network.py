"""The simulated network fails as TCP may: late, in pieces, cut at any byte, but never out of order."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rivven.sim import Agenda, SimClock, SimNetwork, SimSocket, Weather

SECOND_US = 1_000_000


class Listener:
    """Keeps what it receives, and sends it back if told to."""

    def __init__(self, network: SimNetwork, *, echoes: bool = False) -> None:
        self.sockets: list[SimSocket] = []
        self.received: list[bytearray] = []
        self.closed = 0
        self._echoes = echoes
        network.listen("here", self._accept)

    def _accept(self, socket: SimSocket) -> None:
        data = bytearray()

        def take(piece: bytes) -> None:
            data.extend(piece)
            if self._echoes:
                socket.send([piece])

        socket.received = take
        socket.closed = self._end
        self.sockets.append(socket)
        self.received.append(data)

    def _end(self) -> None:
        self.closed += 1


def network_of(seed: int, **weather: int) -> SimNetwork:
    rng = Random(seed)
    return SimNetwork(Agenda(SimClock()), rng, Weather(shreds=0.7, **weather))


def listen_to(socket: SimSocket) -> tuple[bytearray, list[int]]:
    """What arrives at an end, and how often it heard of the connection's end."""
    data, ends = bytearray(), []
    socket.received = data.extend
    socket.closed = lambda: ends.append(1)
    return data, ends


@given(seed=st.integers(0, 10_000), pieces=st.lists(st.binary(max_size=300), max_size=12))
def test_bytes_arrive_whole_and_in_order_both_ways(seed: int, pieces: list[bytes]) -> None:
    network = network_of(seed)
    there = Listener(network, echoes=True)
    here = network.connect("here")
    back, _ = listen_to(here)
    for piece in pieces:
        here.send([piece])
        network.agenda.step()
    network.agenda.run(SECOND_US)
    assert bytes(there.received[0]) == b"".join(pieces) == bytes(back)


@given(seed=st.integers(0, 10_000), steps=st.integers(0, 40))
def test_a_cut_leaves_a_prefix_and_both_ends_hear_of_it(seed: int, steps: int) -> None:
    network = network_of(seed)
    there = Listener(network, echoes=True)
    here = network.connect("here")
    back, ends = listen_to(here)
    sent = Random(seed).randbytes(2000)
    here.send([sent])
    for _ in range(steps):
        network.agenda.step()
    network.cut(here)
    here.send([b"too late"])
    network.agenda.run(SECOND_US)
    assert ends == [1]
    if there.sockets:
        assert there.closed == 1
        assert sent.startswith(bytes(there.received[0]))
        assert there.received[0].startswith(bytes(back))


def test_cuts_do_fall_in_the_middle() -> None:
    lengths = set()
    for seed in range(60):
        network = network_of(seed)
        there = Listener(network)
        here = network.connect("here")
        network.agenda.run(SECOND_US)
        here.send([bytes(1000)])
        network.cut(here)
        lengths.add(len(there.received[0]))
    assert {0, 1000} < lengths, "some lose all, some nothing, and some a part"


def test_a_close_in_good_order_lets_everything_arrive_first() -> None:
    network = network_of(1)
    there = Listener(network)
    here = network.connect("here")
    here.send([b"all of ", b"this"])
    here.close()
    network.agenda.run(SECOND_US)
    assert bytes(there.received[0]) == b"all of this"
    assert there.closed == 1
    assert network.open_connections == []


def test_where_nobody_listens_a_connection_ends_at_once() -> None:
    network = network_of(1)
    _, ends = listen_to(network.connect("nowhere"))
    network.agenda.run(SECOND_US)
    assert ends == [1]


def test_whoever_does_not_read_makes_the_bytes_wait() -> None:
    network = network_of(2)
    there = Listener(network)
    here = network.connect("here")
    network.agenda.run(SECOND_US)
    there.sockets[0].pause()
    here.send([b"patience"])
    network.agenda.run(SECOND_US)
    assert (bytes(there.received[0]), here.unsent_bytes) == (b"", 8)
    there.sockets[0].resume()
    network.agenda.run(SECOND_US)
    assert (bytes(there.received[0]), here.unsent_bytes) == (b"patience", 0)


def test_a_network_that_stands_still_loses_nothing() -> None:
    network = network_of(3)
    there = Listener(network)
    here = network.connect("here")
    network.agenda.run(SECOND_US)
    network.stand_still(2 * SECOND_US)
    here.send([b"late"])
    network.agenda.run(SECOND_US)
    assert bytes(there.received[0]) == b""
    network.agenda.run(2 * SECOND_US)
    assert bytes(there.received[0]) == b"late"


def test_when_the_process_goes_its_ends_fall_silent_and_the_others_hear_of_it() -> None:
    network = network_of(4)
    there = Listener(network)
    here = network.connect("here")
    _, ends = listen_to(here)
    network.agenda.run(SECOND_US)
    network.stop_listening("here")
    network.agenda.run(SECOND_US)
    assert (ends, there.closed) == ([1], 0)
    _, refused = listen_to(network.connect("here"))
    network.agenda.run(SECOND_US)
    assert refused == [1]
