"""SCRAM-SHA-256, by the example of RFC 7677."""

from __future__ import annotations

import pytest

from rivven.client.failures import ServerException
from rivven.client.scram import Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = rb"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = rb"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_standard():
    scram = Scram("user", "pencil", NONCE)
    assert scram.first() == b"n,,n=user,r=" + NONCE.encode()
    assert scram.final(SERVER_FIRST) == FINAL
    scram.verify(SERVER_FINAL)


def test_names_are_escaped():
    assert Scram("a=b,c", "p", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    "server_first",
    [
        SERVER_FIRST.replace(b"i=4096", b"i=4095"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999999"),
        SERVER_FIRST.replace(b"r=rOpr", b"r=rOpx"),
        b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"s=W22Z", b"s=W2*"),
        b"nonsense",
        b"\xff\xfe",
    ],
)
def test_a_server_that_asks_for_too_little_is_refused(server_first):
    with pytest.raises(ServerException, match="SCRAM_FAILED"):
        Scram("user", "pencil", NONCE).final(server_first)


@pytest.mark.parametrize("server_final", [b"v=AAAA", b"e=invalid-proof", b""])
def test_a_server_that_does_not_know_the_password_is_refused(server_final):
    scram = Scram("user", "pencil", NONCE)
    scram.final(SERVER_FIRST)
    with pytest.raises(ServerException, match="SCRAM_FAILED"):
        scram.verify(server_final)
