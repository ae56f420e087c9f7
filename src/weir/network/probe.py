"""A short measurement of latency and bandwidth by distance, over real sockets.

Within a process: Arrow rows are taken out of a batch, as one operator hands them to the next. Within a host: through
the loopback device to a process of its own. Further: over TCP between two hosts. Latency is half the median round trip
of a small message; bandwidth is what arrives while sending for a fraction of a second. Serialisation is packing and
unpacking rows as the exchange does; what Spark's exchange itself takes per byte is measured there.

Only a peer that knows the secret of the measurement is answered: both sides prove it by a challenge, and it never
passes over the wire.

This file also runs by itself, as the other process on a host, and so imports nothing but the standard library
when it is loaded.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from weir.network.distance import Distance, Place
    from weir.network.profile import Profile

PING, BULK, END = b"p", b"b", b"e"
PINGS = 200
BULK_SECONDS = 0.3
CHUNK = 1 << 18
_LENGTH = struct.Struct("!Q")
_CHALLENGE, _ANSWER = 32, 32  # bytes


class Link(NamedTuple):
    """Latency of an empty message in seconds, and bandwidth in bytes per second."""

    latency_s: float
    bandwidth_Bps: float


def listen(host: str) -> socket.socket:
    """Return a listening socket on any free port of a host's address."""
    return socket.create_server((host, 0))


def address_towards(peer: str) -> str:
    """Return the address of this host that ``peer`` sees; nothing is sent to find out. An OSError: there is none."""
    family, kind, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(address)
        return str(way.getsockname()[0])


def serve(listener: socket.socket, seconds: float, secret: bytes) -> bool:
    """Answer one prober that knows the secret, give up after ``seconds``; return whether one came."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            return False
        with peer, contextlib.suppress(OSError):  # of a stranger, that is
            peer.settimeout(min(left, 2.0))
            if _knows(peer, secret):
                peer.settimeout(seconds)
                return _answer(peer)
    return False


def _knows(peer: socket.socket, secret: bytes) -> bool:
    """Return whether a prober knows the secret; if so, show it that we do."""
    challenge = os.urandom(_CHALLENGE)
    peer.sendall(challenge)
    said = _receive(peer, _ANSWER + _CHALLENGE)
    answer, theirs = said[:_ANSWER], said[_ANSWER:]
    if not hmac.compare_digest(answer, _sign(secret, b"prober", challenge)):
        return False
    peer.sendall(_sign(secret, b"server", theirs))
    return True


def _prove(peer: socket.socket, secret: bytes) -> None:
    """Show a listener that we know the secret, and make sure that it does."""
    challenge = _receive(peer, _CHALLENGE)
    ours = os.urandom(_CHALLENGE)
    peer.sendall(_sign(secret, b"prober", challenge) + ours)
    if not hmac.compare_digest(_receive(peer, _ANSWER), _sign(secret, b"server", ours)):
        raise ConnectionError("whoever listens there does not know the secret of this measurement")


def _sign(secret: bytes, who: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, who + challenge, "sha256")


def _answer(peer: socket.socket) -> bool:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(ConnectionError):
        while True:
            kind = _receive(peer, 1)
            if kind == PING:
                peer.sendall(PING)
            elif kind == BULK:
                _discard(peer, _LENGTH.unpack(_receive(peer, _LENGTH.size))[0])
                peer.sendall(BULK)
            else:
                break
    return True


def probe(address: tuple[str, int], secret: bytes, seconds: float = 5.0) -> Link:
    """Measure the link to a listener that is being served; give up after ``seconds`` of silence."""
    with socket.create_connection(address, timeout=seconds) as peer:
        _prove(peer, secret)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips: list[float] = []
        until = time.perf_counter() + 1.0
        while len(trips) < PINGS and (len(trips) < 5 or time.perf_counter() < until):
            began = time.perf_counter()
            peer.sendall(PING)
            _receive(peer, 1)
            trips.append(time.perf_counter() - began)
        latency = statistics.median(trips) / 2
        size, best = CHUNK, 0.0
        until = time.perf_counter() + BULK_SECONDS
        # in doubling sizes: a traffic shaper lets a first burst through that is above the link's bandwidth
        while True:
            began = time.perf_counter()
            peer.sendall(BULK + _LENGTH.pack(size))
            chunk = bytes(min(size, CHUNK))
            for _ in range(size // len(chunk)):
                peer.sendall(chunk)
            _receive(peer, 1)
            took = time.perf_counter() - began
            best = size / max(1e-9, took - 2 * latency)
            if time.perf_counter() > until or size >= 1 << 28:
                break
            size *= 2
        peer.sendall(END)
    return Link(latency, best)


def probe_loopback(host: str = "127.0.0.1", seconds: float = 10.0) -> Link:
    """Measure the link to another process on this host, which is started for it."""
    secret = secrets.token_hex(32)
    other = subprocess.Popen(
        [sys.executable, __file__, host, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(f"{secret}\n")
        other.stdin.flush()
        port = int(other.stdout.readline() or 0)
        if not port:
            raise OSError(f"no process could be started to listen on {host}")
        return probe((host, port), bytes.fromhex(secret), seconds)
    finally:
        other.kill()
        other.wait()


def probe_memory(rows: int = 20_000, row_bytes: int = 100) -> Link:
    """Measure what handing rows on within a process takes, per call and per byte."""
    import numpy as np

    from weir.rows import Rows

    batch = _rows(rows, row_bytes)
    few, all_of_them = np.arange(1), np.random.default_rng(0).permutation(rows)
    latency = _median(lambda: Rows(batch).select(few).column("payload"), 200)
    took = _median(lambda: Rows(batch).select(all_of_them).column("payload"), 20)
    return Link(latency, batch.nbytes / max(1e-9, took - latency))


def probe_serialisation(rows: int = 20_000, row_bytes: int = 100) -> float:
    """Measure the processor's seconds per byte to pack rows for the exchange and to unpack them."""
    import pyarrow as pa

    batch = _rows(rows, row_bytes)
    took = _median(lambda: pa.ipc.read_record_batch(batch.serialize(), batch.schema).validate(), 50)
    return took / batch.nbytes


def far_pairs(places: Sequence[Place]) -> dict[Distance, tuple[int, int]]:
    """Return two servers on different hosts for each distance that occurs beyond one host.

    >>> from weir.network.distance import Place
    >>> pairs = far_pairs([Place("1", "a", "r"), Place("2", "a", "r"), Place("3", "b", "r"), Place("4", "c", "s")])
    >>> {d.name: pair for d, pair in pairs.items()}
    {'RACK': (0, 2), 'ANY': (0, 3)}
    """
    from weir.network.distance import Distance, distance

    pairs: dict[Distance, tuple[int, int]] = {}
    for i, one in enumerate(places):
        for j, other in enumerate(places[:i]):
            far = distance(one, other)
            if far >= Distance.RACK and far not in pairs:
                pairs[far] = (j, i)
    return dict(sorted(pairs.items()))


def measured_profile(links: Mapping[Distance, Link], serialise: float) -> Profile:
    """Return a profile from measurements; distances that could not be measured are as in the paper.

    The work on a row and its size are the paper's, too: an operator's own work is not part of the link, and how much
    nearness is worth depends on both.

    >>> from weir.network.distance import Distance
    >>> profile = measured_profile({Distance.NODE: Link(3e-5, 1e9)}, serialise=2e-9)
    >>> profile.latency_s[1], profile.latency_s[2], profile.serialise_s_per_byte[0]
    (3e-05, 0.0002, 0.0)
    """
    from weir.network.distance import Distance
    from weir.network.profile import PAPER, Profile

    by_distance = {d: links.get(d, Link(PAPER.latency_s[d], PAPER.bandwidth_Bps[d])) for d in Distance}
    return Profile(
        latency_s=tuple(by_distance[d].latency_s for d in Distance),  # type: ignore[arg-type]
        bandwidth_Bps=tuple(by_distance[d].bandwidth_Bps for d in Distance),  # type: ignore[arg-type]
        serialise_s_per_byte=(0.0, serialise, serialise, serialise),
        handling_s=PAPER.handling_s,
        row_bytes=PAPER.row_bytes,
    )


def _receive(peer: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        part = peer.recv(n - len(data))
        if not part:
            raise ConnectionError("the other side of a probe has gone")
        data += part
    return data


def _discard(peer: socket.socket, n: int) -> None:
    buffer = memoryview(bytearray(CHUNK))
    while n:
        got = peer.recv_into(buffer, min(n, CHUNK))
        if not got:
            raise ConnectionError("the other side of a probe has gone")
        n -= got


def _rows(rows: int, row_bytes: int) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"payload": [b"x" * row_bytes] * rows})


def _median(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _answer_one(host: str, seconds: str) -> None:
    secret = bytes.fromhex(sys.stdin.readline())
    with listen(host) as listener:
        print(listener.getsockname()[1], flush=True)
        serve(listener, float(seconds), secret)


if __name__ == "__main__":
    _answer_one(*sys.argv[1:])
