"""How a connection in Kafka's words begins and ends, on a real socket."""

from __future__ import annotations

import socket
import struct

import pytest
from daemon import Daemon

from rivven.wire.kafka import decode_response


def talk(daemon: Daemon, *bodies: str) -> bytes:
    """Send these frames; everything that comes back until the broker hangs up or is silent for a moment."""
    heard = b""
    with socket.create_connection(("127.0.0.1", daemon.port), 10) as sock:
        for body in bodies:
            data = bytes.fromhex(body)
            sock.sendall(struct.pack(">i", len(data)) + data)
        sock.settimeout(3)
        try:
            while piece := sock.recv(65536):
                heard += piece
                if len(heard) >= 4 + struct.unpack_from(">i", heard)[0] and len(bodies) == 1:
                    break
        except TimeoutError:
            pytest.fail(f"neither an answer nor an end; heard {heard[:40]!r}")
    return heard


def test_a_question_for_versions_of_the_future_is_answered_in_version_0(daemon: Daemon) -> None:
    heard = talk(daemon, "0012 0009 00000005 ffff 00")
    correlation_id, response = decode_response(heard[4:], 18, 0)
    assert (correlation_id, response.error_code) == (5, 35)
    assert {one.api_key for one in response.api_keys} >= {0, 1, 3, 18}


@pytest.mark.parametrize("second", ["0012 0003 0000", "0012", "0012 0003 00000006 ffff", "03e7 0000 00000006 ffff"])
def test_what_cannot_be_read_ends_the_connection_and_nothing_else(daemon: Daemon, second: str) -> None:
    heard = talk(daemon, "0012 0000 00000005 ffff", second)
    first = 4 + struct.unpack_from(">i", heard)[0]
    assert heard[first:] == b"", "only the first has an answer"
    assert talk(daemon, "0012 0000 00000007 ffff")[4:8] == (7).to_bytes(4, "big")
