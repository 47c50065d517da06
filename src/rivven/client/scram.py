"""The client's half of SCRAM-SHA-256: three messages, and the proof that the server knows the password too."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

from .failures import ServerException

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 10_000_000


class Scram:
    """
    >>> Scram("user", "pencil", "rOprNGfwEbeRWgbNEkqO").first()
    b'n,,n=user,r=rOprNGfwEbeRWgbNEkqO'
    """

    def __init__(self, username: str, password: str, nonce: str) -> None:
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._password = password.encode()
        self._nonce = nonce
        self._verifier = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof, once the server has named its salt."""
        text = server_first.decode(errors="replace")
        parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        nonce, iterations = parts.get("r", ""), parts.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ServerException(reason="SCRAM_FAILED: the server did not extend the nonce")
        if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise ServerException(reason=f"SCRAM_FAILED: {iterations or 'no'} iterations asked for")
        try:
            salt = b64decode(parts.get("s", ""), validate=True)
        except ValueError:
            raise ServerException(reason="SCRAM_FAILED: the server's salt cannot be read") from None
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, int(iterations))
        client_key = _hmac(salted, b"Client Key")
        bare_final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{bare_final}".encode()
        signature = _hmac(hashlib.sha256(client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._verifier = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{bare_final},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Whether the server knows the password; else, or if it refuses, raises."""
        text = server_final.decode(errors="replace")
        if not text.startswith("v="):
            raise ServerException(reason=f"SCRAM_FAILED: {text.removeprefix('e=')}")
        if not hmac.compare_digest(text[2:].encode(), b64encode(self._verifier)):
            raise ServerException(reason="SCRAM_FAILED: the server does not know the password")


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
