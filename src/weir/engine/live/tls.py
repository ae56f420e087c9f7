"""Mutual TLS 1.3 between live servers: a certificate for each generation, and encryption of a connection's bytes.

The driver makes an authority and one certificate, which all servers of a generation present, and the only one that they
accept; the authority's key is thrown away at once. Keys of connections are agreed upon anew for each, so who learns the
certificate's key later can read nothing that was sent before.
"""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import ssl
import tempfile
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from weir.errors import LiveFailed

PIECE = 1 << 16  # bytes that are encrypted, or read, at a time
RECORD = 1 << 14  # bytes of one record of TLS
NAME = "live.weir"


def is_available() -> bool:
    """Return whether the package that makes certificates is installed."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Identity:
    """What a generation presents and accepts, as PEM; its key is encrypted, by a password that no file ever holds."""

    authority: str
    certificate: bytes = field(repr=False)
    password: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Identity:
        """Make an authority and a certificate, valid for ten years: connections may be made as long as servers live."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        def certificate(name: str, key: Any, by: str, by_key: Any, *extensions: tuple[Any, bool]) -> bytes:
            today = datetime.datetime.now(datetime.UTC)
            subject, issuer = (
                x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, by)
            )
            builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            builder = builder.not_valid_before(today - datetime.timedelta(days=1))
            builder = builder.not_valid_after(today + datetime.timedelta(days=3650))
            for extension, critical in extensions:
                builder = builder.add_extension(extension, critical)
            return builder.sign(by_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

        root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        password = secrets.token_hex(32).encode()
        authority = certificate("weir", root, "weir", root, (x509.BasicConstraints(True, 0), True))
        leaf = certificate(
            NAME, own, "weir", root, (x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
        )
        key = own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
        return cls(authority.decode(), leaf + key, password)


@lru_cache(maxsize=4)
def _context(identity: Identity, listens: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority)
    if listens:
        context.num_tickets = 0  # each connection agrees upon its own keys
    handle, path = tempfile.mkstemp(prefix="weir-certificate-")
    try:  # ssl reads certificates from files only
        with open(handle, "wb") as file:
            file.write(identity.certificate)
        context.load_cert_chain(path, password=identity.password)
    finally:
        os.unlink(path)
    return context


class Channel:
    """TLS over a socket, which others may use to send what was encrypted; one may read while another writes."""

    def __init__(self, sock: socket.socket, identity: Identity, listens: bool) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._space = memoryview(bytearray(PIECE))
        name = None if listens else NAME
        self._tls = _context(identity, listens).wrap_bio(self._incoming, self._outgoing, listens, name)
        while not self._greeted():
            pass

    def _greeted(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._socket.sendall(self._outgoing.read())
            if not self._take():
                raise LiveFailed("a connection ended in the greeting") from None
            return False
        finally:  # an alert, too
            self._socket.sendall(self._outgoing.read())
        return True

    def _take(self) -> bool:
        """Wait for more bytes; return whether there are any."""
        size = self._socket.recv_into(self._space)
        with self._lock:
            self._incoming.write(self._space[:size])
        return size > 0

    @property
    def pending(self) -> bool:
        """Whether something has come that was not read yet: nobody should wait for the socket then."""
        with self._lock:
            return bool(self._incoming.pending or self._tls.pending())

    def encrypted(self, *views: Any) -> bytes:
        """Return what is sent for some bytes; it must be sent in the order in which it was asked for."""
        with self._lock:
            for view in views:
                if len(view):
                    self._tls.write(view)
            return self._outgoing.read()

    def sendall(self, data: bytes) -> None:
        self._socket.sendall(self.encrypted(data))

    def recv(self, size: int) -> bytes:
        out = bytearray(size)
        return bytes(out[: self.recv_into(memoryview(out))])

    def recv_into(self, view: memoryview) -> int:
        """Wait for bytes; return how many there are, 0 if the other side has ended."""
        while True:
            try:
                with self._lock:
                    return self._tls.read(len(view), view)  # type: ignore[arg-type,return-value]
            except ssl.SSLWantReadError:
                if not self._take():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLError as error:
                raise LiveFailed(
                    f"what came on an encrypted connection is not what was sent: {error}"
                ) from None
