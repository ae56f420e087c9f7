"""Encryption of what live servers send each other, where Spark is told to encrypt its own traffic.

AES-GCM of the ``cryptography`` package, with a key per connection and direction that both sides derive from the secret
of this life of the servers and the numbers they drew in their greeting. Each piece is sealed under a counter, so one
that is changed, left out, repeated or out of order is not opened.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from weir.errors import LiveFailed

TAG = 16  # bytes by which a sealed piece is longer
PIECE = 1 << 24  # bytes that are sealed at a time


def is_available() -> bool:
    """Return whether the package that encrypts is installed."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        return False
    return True


class Seal:
    """Seals, or opens, the pieces of one direction of a connection, in their order.

    >>> send, receive = Seal(bytes(32)), Seal(bytes(32))
    >>> bytes(receive.open(send.seal(b"rows")))
    b'rows'
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)
        self._count = 0

    def seal(self, piece: Any) -> bytes:
        """Return a piece encrypted, longer by :data:`TAG` bytes."""
        return self._cipher.encrypt(self._next(), piece, None)

    def open(self, piece: Any) -> bytes:
        """Return what was sealed; raise a LiveFailed if it is not the next piece that the other side sealed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(self._next(), piece, None)
        except InvalidTag:
            raise LiveFailed("what came on a sealed connection is not what was sent") from None

    def _next(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "big")


def seals(secret: bytes, connects: bytes, listens: bytes) -> tuple[Seal, Seal]:
    """Return the seals of what goes to the listener and of what comes from it, by the numbers both sides drew."""
    keys = (
        hmac.digest(secret, b"weir seal " + way + connects + listens, hashlib.sha256) for way in (b">", b"<")
    )
    there, back = map(Seal, keys)
    return there, back
