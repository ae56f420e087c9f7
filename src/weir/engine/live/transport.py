"""Frames over TCP between those who know a secret.

A frame is a fixed head and a payload, Arrow's own bytes for rows. Who connects and who listens prove to each other
that they know the secret of this generation of servers: each answers a fresh challenge of the other with an HMAC.
Every generation has a secret and a name of its own, so servers and source tasks of an earlier one are turned away. In a
sealed generation, all of this happens within mutual TLS (:mod:`weir.engine.live.tls`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from weir.engine.live.tls import PIECE, RECORD, Channel, Identity
from weir.errors import LiveFailed, WeirError

# what a frame is about
ROWS, END, JOB, SOURCES, ANSWER, FAILED, ALIVE, PEERS, QUIT, LOAD, READY, COUNTED = range(1, 13)
HEAD = struct.Struct("<BBHiIqQ")  # what, kind, step, edge, rows, source time, size
HANDSHAKE_SECONDS = 10.0
ACK_TIMEOUT = 60.0  # seconds after which a host that acknowledges nothing counts as lost
_NONCE = 32
_LENGTH = struct.Struct("<H")

Address = tuple[str, int]
Pieces = Iterator[list[memoryview]]


@dataclass(frozen=True)
class Generation:
    """All live servers of a query from one start to the next: what they are called, and what only they know.

    ``servers`` is how many there are at first; some may come and go.

    ``identity`` is what they prove by TLS, if they encrypt what they send.
    """

    servers: int
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    identity: Identity | None = field(default=None, repr=False)


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who connects: ``role`` is "server" (to the driver), "peer" (to another server) or "source" (to all)."""

    role: str
    number: int
    generation: str
    batch: int = -1
    listens: Address | None = None


class Frame(NamedTuple):
    """What has arrived; ``step`` is the one that it is for, ``arrived`` the monotonic clock."""

    what: int
    kind: int = 0
    step: int = 0
    edge: int = 0
    rows: int = 0
    source_time: int = 0
    payload: pa.Buffer | None = None
    arrived: float = 0.0

    @property
    def data(self) -> bytes:
        return b"" if self.payload is None else self.payload.to_pybytes()

    @property
    def size(self) -> int:
        """Return the bytes of the payload."""
        return 0 if self.payload is None else int(self.payload.size)


class Connection:
    """One end of a connection: frames arrive whole and in order, or an error says that they don't."""

    def __init__(
        self, sock: socket.socket, retry: float | None = None, channel: Channel | None = None
    ) -> None:
        self._socket = sock
        self._channel = channel
        self._reads: socket.socket | Channel = channel or sock
        self._lock = threading.Lock()
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if retry is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(retry * 1000))

    def send(self, what: int, payload: Any = b"", **about: int) -> None:
        """Send a frame; wait while the other side does not take it."""
        self.forward(Frame(what, payload=pa.py_buffer(payload) if len(payload) else None, **about))

    def forward(self, frame: Frame) -> None:
        """Send a frame as it is."""
        with self._lock:
            self.push(self.pieces(frame))

    def pieces(self, frame: Frame) -> Pieces:
        """Return what a frame is on the wire, to be offered and pushed in the order in which this was asked for."""
        view = memoryview(b"" if frame.payload is None else frame.payload).cast("B")
        head = HEAD.pack(*frame[:6], len(view))
        if self._channel is None:
            yield [memoryview(head), view]
            return
        encrypted = self._channel.encrypted
        if len(view) < RECORD:
            yield [memoryview(encrypted(head + view.tobytes()))]
            return
        for start in range(0, len(view), PIECE):
            yield [memoryview(encrypted(head, view[start : start + PIECE]))]
            head = b""

    def offer(self, pieces: Pieces) -> Pieces | None:
        """Send what the connection takes at once; return what it does not."""
        for piece in pieces:
            if left := self._put(piece, socket.MSG_DONTWAIT):
                return itertools.chain([left], pieces)
        return None

    def mention(self, frame: Frame) -> None:
        """Send a short frame that may as well be lost: not at all if the other side is slow to take it, or gone."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            ready = select.poll()
            ready.register(self._socket, select.POLLOUT)
            if ready.poll(0):
                self.push(self.pieces(frame))

    def fileno(self) -> int:
        """Return the number of the socket, for who waits for several."""
        return self._socket.fileno()

    def end(self) -> None:
        """Send no more, and wait until the other side has taken all and ended, too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self.receive() is not None:
                pass

    def push(self, pieces: Pieces) -> None:
        """Send; wait while the other side does not take it."""
        for piece in pieces:
            left = piece
            while left:
                left = self._put(left)

    def _put(self, views: list[memoryview], flags: int = 0) -> list[memoryview]:
        try:
            sent = self._socket.sendmsg(views, (), flags)
        except BlockingIOError:
            return views
        left = []
        for view in views:
            if sent < len(view):
                left.append(view[sent:])
            sent = max(0, sent - len(view))
        return left

    def receive(self, room: Callable[[int], Any] = pa.allocate_buffer) -> Frame | None:
        """Return the next frame; None if the other side ended between two frames.

        ``room`` returns memory for a payload of so many bytes.
        """
        head = bytearray(HEAD.size)
        if not self._fill(memoryview(head), may_end=True):
            return None
        what, kind, step, edge, rows, source_time, size = HEAD.unpack(head)
        payload = None
        if size:
            space = room(size)
            self._fill(memoryview(space).cast("B"))
            payload = pa.py_buffer(space)
        return Frame(what, kind, step, edge, rows, source_time, payload, time.perf_counter())

    @property
    def pending(self) -> bool:
        """Whether something has come already that :meth:`fileno` no longer tells of."""
        return self._channel is not None and self._channel.pending

    def wait_at_most(self, seconds: float | None) -> None:
        """Let :meth:`receive` raise a TimeoutError when nothing comes for so long."""
        self._socket.settimeout(seconds)

    def _fill(self, view: memoryview, may_end: bool = False) -> bool:
        filled = 0
        while filled < len(view):
            more = self._reads.recv_into(view[filled:])
            if not more:
                if may_end and not filled:
                    return False
                raise LiveFailed("a connection ended in the middle of a frame")
            filled += more
        return True

    def close(self) -> None:
        """End the connection; who waits for it, on either side, is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: Address, generation: Generation, hello: Hello | Callable[[str], Hello]) -> Connection:
    """Connect to a listener of the same generation; ``hello`` may depend on the address that this side has there."""
    try:
        sock = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
    except OSError as error:
        raise LiveFailed(f"{address[0]}:{address[1]} can't be reached: {error}") from None
    try:
        about = hello if isinstance(hello, Hello) else hello(sock.getsockname()[0])
        channel = None if generation.identity is None else Channel(sock, generation.identity, listens=False)
        way = channel or sock
        text, mine = msgspec.msgpack.encode(about), secrets.token_bytes(_NONCE)
        way.sendall(_LENGTH.pack(len(text)) + text + mine)
        theirs = _exactly(way, _NONCE)
        if not hmac.compare_digest(
            _exactly(way, 32), _proof(generation.secret, b"listens", text, mine, theirs)
        ):
            raise LiveFailed(f"{address[0]}:{address[1]} does not know the secret of these servers")
        way.sendall(_proof(generation.secret, b"connects", text, mine, theirs))
        (size,) = _LENGTH.unpack(_exactly(way, _LENGTH.size))
        if size:
            raise LiveFailed(
                f"{address[0]}:{address[1]} turned this side away: {_exactly(way, size).decode()}"
            )
    except OSError as error:
        sock.close()
        raise LiveFailed(f"{address[0]}:{address[1]} ended the greeting: {error}") from None
    except LiveFailed:
        sock.close()
        raise
    # a source waits for its servers however long they take; the system would count that as silence
    return Connection(sock, None if about.role == "source" else ACK_TIMEOUT, channel)


def admit(sock: socket.socket, generation: Generation) -> tuple[Hello, Connection]:
    """Greet who has connected, or raise a LiveFailed: without the secret, or of another generation."""
    sock.settimeout(HANDSHAKE_SECONDS)
    channel = None if generation.identity is None else Channel(sock, generation.identity, listens=True)
    way = channel or sock
    (size,) = _LENGTH.unpack(_exactly(way, _LENGTH.size))
    if size > 1024:
        raise LiveFailed("somebody who is no server connected")
    text, theirs = _exactly(way, size), _exactly(way, _NONCE)
    mine = secrets.token_bytes(_NONCE)
    way.sendall(mine + _proof(generation.secret, b"listens", text, theirs, mine))
    if not hmac.compare_digest(_exactly(way, 32), _proof(generation.secret, b"connects", text, theirs, mine)):
        raise LiveFailed("somebody without the secret connected")
    hello = msgspec.msgpack.decode(text, type=Hello)
    if hello.generation != generation.name:
        refusal = f"it is of generation {hello.generation}, this is {generation.name}"
        way.sendall(_LENGTH.pack(len(refusal)) + refusal.encode())
        raise LiveFailed(refusal)
    way.sendall(_LENGTH.pack(0))
    return hello, Connection(sock, channel=channel)


def _proof(secret: bytes, role: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join([b"weir", role, *said]), hashlib.sha256)


def _exactly(sock: socket.socket | Channel, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        more = sock.recv(size - len(out))
        if not more:
            raise LiveFailed("a connection ended in the greeting")
        out += more
    return bytes(out)


class Listener:
    """Takes connections at one address, each in a thread of its own, from those who know the secret."""

    def __init__(
        self, host: str, generation: Generation, welcome: Callable[[Connection, Hello], None]
    ) -> None:
        self._socket = socket.create_server((host, 0), backlog=128)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._generation, self._welcome = generation, welcome
        self._open: set[Connection] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="weir-listener").start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(sock,), daemon=True, name="weir-reader").start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            hello, connection = admit(sock, self._generation)
        except (OSError, WeirError, msgspec.MsgspecError):
            sock.close()
            return
        self._open.add(connection)
        try:
            if not self._closed:
                self._welcome(connection, hello)
        finally:
            self._open.discard(connection)
            connection.close()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            connection.close()
