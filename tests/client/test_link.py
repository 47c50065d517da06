"""A connection without its socket."""

from __future__ import annotations

from typing import Any

import pytest

from rivven.client.failures import ConnectionException, SerializationException
from rivven.client.link import Link
from rivven.wire import Piece, decode_request, encode_response
from rivven.wire import requests as ask
from rivven.wire import responses as tell


def feed(link: Link, *frames: list[Piece]) -> None:
    data = b"".join(bytes(piece) for frame in frames for piece in frame)
    while data:
        with link.buffer() as room:
            count = min(len(room), len(data))
            room[:count] = data[:count]
        data = data[count:]
        link.received(count)


def test_answers_go_to_those_who_asked_in_order():
    link, heard = Link(), []
    sent = [link.ask(request, heard.append, due) for request, due in ((ask.Ping(), 5), (ask.ListTopics(), 9))]
    ids = [decode_request(b"".join(map(bytes, pieces))[4:]).correlation_id for pieces in sent]
    assert ids == [1, 2]
    assert (link.owed, link.due_ms, link.waits_for) == (2, 5, "Ping")
    feed(link, encode_response(tell.Pong(), 1), encode_response(tell.Topics(("a",)), 2))
    assert heard == [tell.Pong(), tell.Topics(("a",))]
    assert link.due_ms is None


def test_an_answer_that_was_not_asked_for_ends_it():
    link, heard = Link(), []
    link.ask(ask.Ping(), heard.append, 5)
    with pytest.raises(ConnectionException, match="not asked"):
        feed(link, encode_response(tell.Pong(), 7))
    assert heard == []


def test_a_refusal_without_an_id_goes_to_the_oldest():
    link, heard = Link(), []
    link.ask(ask.Ping(), heard.append, 5)
    feed(link, encode_response(tell.Error("INVALID_REQUEST: no"), 0))
    assert heard == [tell.Error("INVALID_REQUEST: no")]


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x06\0\0\0\0\x01\x7f", b"\0\0\0\x01\0"])
def test_nonsense_ends_it(data):
    link = Link()
    link.ask(ask.Ping(), lambda _: None, 5)
    with pytest.raises(ConnectionException):
        feed(link, [data])


def test_a_web_server_is_called_one():
    with pytest.raises(ConnectionException, match="that port speaks HTTP"):
        feed(Link(), [b"HTTP/1.1 400 Bad Request\r\n\r\n"])


def test_everybody_hears_of_the_loss():
    link, heard = Link(), []
    late, lost = ConnectionException(reason="late"), ConnectionException(reason="lost")
    for _ in range(3):
        link.ask(ask.Ping(), heard.append, 5)
    link.lost(late, lost)
    assert heard == [late, lost, lost]
    assert link.owed == 0


def test_what_cannot_be_written_is_not_owed():
    link: Any = Link()
    with pytest.raises(SerializationException):
        link.ask(ask.CreateTopic("x", -1), lambda _: None, 5)
    assert link.owed == 0
