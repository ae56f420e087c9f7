"""Two operators of a word count and the channel between them, for Figs. 3 and 4 of Squirrel.

One side splits sentences into words, the other counts them. Words travel as Arrow batches: as a pointer within a
process, packed and over TCP otherwise. Each batch carries the time when it was emitted. Run by ``sq_fig03_04.py``,
as a process of its own on each side, in network namespaces where hosts are meant:

    python sq_channel.py receive ADDRESS
    python sq_channel.py send ADDRESS PORT SECONDS ROWS BYTES
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEAD = struct.Struct("!QQQ")  # length, emitted at (ns), sentence read at (ns); a length of 0 ends
ACK = struct.Struct("!QQQ")  # rows, arrived at (ns), counted at (ns)
PACED = 200  # batches that are sent one by one, to tell how long a way takes that nobody else is on
FEW = 10  # tuples in each of these
WORDS = 20_000


class Splitter:
    """The first operator: sentences into words, each with its padding."""

    def __init__(self, rows: int, size: int) -> None:
        self.size = size
        rng = np.random.default_rng(5)
        self._sentences = []
        for _ in range(16):
            words = [f"w{w}" for w in rng.zipf(1.3, rows) % WORDS]
            self._sentences.append(pa.array([" ".join(words[i : i + 10]) for i in range(0, rows, 10)]))
        self._padding = pa.array([b"x" * size] * rows)
        self._turn = 0

    def next(self) -> pa.RecordBatch:
        self._turn += 1
        words = pc.split_pattern(self._sentences[self._turn % len(self._sentences)], " ").flatten()
        return pa.RecordBatch.from_arrays([words, self._padding[: len(words)]], names=["word", "padding"])


class Counter:
    """The second operator: words per word."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        for one in pc.value_counts(batch.column("word")).to_pylist():
            self.counts[one["values"]] = self.counts.get(one["values"], 0) + one["counts"]


def measure(
    splitter: Splitter,
    send: Callable[[int, pa.RecordBatch, int], tuple[int, int, int] | None],
    seconds: float,
) -> dict[str, Any]:
    """Times of batches sent one by one, then tuples per second at full rate.

    ``send(mode, batch, read)`` hands a batch on; in mode 0 it waits until it is counted and returns rows, time of
    arrival and time when it was counted; in mode 1 it goes on at once.
    """
    transmission, processing = [], []
    few = Splitter(FEW, splitter.size)
    for turn in range(PACED + 20):
        read = time.time_ns()
        batch = few.next()
        emitted = time.time_ns()
        answer = send(0, batch, read)
        assert answer is not None
        if turn >= 20:
            transmission.append((answer[1] - emitted) / 1e9)
            processing.append((answer[2] - read) / 1e9)
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        batch = splitter.next()
        send(1, batch, 0)
        rows += batch.num_rows
    send(2, batch, 0)
    whole = rows / (time.perf_counter() - began)
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        send(3, batch, 0)
        rows += batch.num_rows
    send(2, batch, 0)
    return {
        "transmission_ms": 1000 * statistics.median(transmission),
        "processing_ms": 1000 * statistics.median(processing),
        "rows_per_s": whole,
        "channel_rows_per_s": rows / (time.perf_counter() - began),
    }


def within_a_process(seconds: float, rows: int, size: int) -> dict[str, Any]:
    """Both operators here: a batch is handed on as a pointer."""
    counter = Counter()

    def send(mode: int, batch: pa.RecordBatch, read: int) -> tuple[int, int, int] | None:
        arrived = time.time_ns()
        if mode < 2:
            counter.take(batch)
        return batch.num_rows, arrived, time.time_ns()

    return measure(Splitter(rows, size), send, seconds)


def over_a_socket(address: str, port: int, seconds: float, rows: int, size: int) -> dict[str, Any]:
    """The second operator is elsewhere, and listening."""
    with socket.create_connection((address, port), timeout=60) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(mode: int, batch: pa.RecordBatch, read: int) -> tuple[int, int, int] | None:
            # the channel by itself (mode 3) is packed and unpacked, but not counted
            packed = memoryview(batch.serialize())
            peer.sendall(struct.pack("!B", mode) + HEAD.pack(len(packed), time.time_ns(), read))
            peer.sendall(packed)
            return None if mode in (1, 3) else ACK.unpack(_exactly(peer, ACK.size))

        found = measure(Splitter(rows, size), send, seconds)
        peer.sendall(struct.pack("!B", 9))
    return found


def receive(address: str) -> None:
    """The second operator: says its port, serves one sender, ends."""
    listener = socket.create_server((address, 0))
    listener.settimeout(60)
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
    peer.settimeout(60)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    counter = Counter()
    schema = pa.schema([("word", pa.string()), ("padding", pa.binary())])
    with peer:
        while (mode := _exactly(peer, 1)[0]) != 9:
            size, _, _ = HEAD.unpack(_exactly(peer, HEAD.size))
            batch = pa.ipc.read_record_batch(pa.py_buffer(_exactly(peer, size)), schema)
            arrived = time.time_ns()
            if mode < 2:
                counter.take(batch)
            if mode in (0, 2):
                peer.sendall(ACK.pack(batch.num_rows, arrived, time.time_ns()))


def _exactly(peer: socket.socket, n: int) -> bytearray:
    data = bytearray(n)
    view, got = memoryview(data), 0
    while got < n:
        part = peer.recv_into(view[got:])
        if not part:
            raise ConnectionError("the other operator has gone")
        got += part
    return data


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        address, port, seconds, rows, size = sys.argv[2:]
        print(json.dumps(over_a_socket(address, int(port), float(seconds), int(rows), int(size))))
