"""The rows of an exchange: Arrow blobs with an address.

Between two steps Spark moves few, large rows ``(slot, kind, edge, source_time, sender, payload)``: everything that one
task sends to one server on one edge is one blob. ``source_time`` is when its oldest row left the source, see
:mod:`weir.engine.metrics.latency`;
``sender`` is the sending server and its host. Edges may have different schemas; the JVM never sees a row of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from weir.columns import canonical_type
from weir.engine.exchange.host_handoff import HostHandoff
from weir.hashing import mix

DATA, CONTROL, PARTIAL, STATISTICS = 1, 2, 4, 5
HANDOFF_KINDS = (DATA, PARTIAL)  # may be left in a file; the others go to the driver in the end
ADDRESSED = 32  # + kind: the payload is an address, see weir.engine.exchange.host_handoff

WIRE = pa.schema(
    [
        ("slot", pa.int32()),
        ("kind", pa.int32()),
        ("edge", pa.int32()),
        ("source_time", pa.int64()),
        ("sender", pa.string()),
        ("payload", pa.binary()),
    ]
)
FLUSH_BYTES = 16 << 20
# To the JVM's collector a row of half a region is "humongous", an allocation of its own; heaps up to 4 GB have
# regions of 1 MB.
BLOB_BYTES = 384 << 10

PRIME = (1 << 61) - 1
Tally = tuple[int, int, int]  # rows, Σ server · rows, Σ factor(server) · rows
Tallies = dict[tuple[int, ...], Tally]
Answers = list[tuple[int, bytes]]  # kind, payload: reports and statistics, for the driver


class ExchangeOutbox:
    """Collects what a task sends, and hands it to Spark in batches of bounded size.

    ``sender`` is who sends, see :func:`sender_name`.
    """

    def __init__(self, slots: list[int], handoff: HostHandoff | None = None, sender: str = "") -> None:
        self._slots, self._handoff, self._sender = slots, handoff, sender
        self._rows: list[tuple[int, int, int, int, pa.Buffer | bytes]] = []
        self._bytes = 0
        self.posted: Tallies = {}  # kind, edge → rows, and a checksum of which servers they went to

    def longest(self, server: int) -> int:
        return BLOB_BYTES if self._handoff is None else self._handoff.longest(server, BLOB_BYTES)

    def put(
        self,
        server: int,
        kind: int,
        edge: int,
        payload: pa.Buffer | bytes,
        source_time: int = 0,
        rows: int = 0,
    ) -> None:
        if rows:
            add_tally(self.posted, (kind, edge), server, rows)
        if self._handoff is not None and kind in HANDOFF_KINDS and self._handoff.takes(server, len(payload)):
            kind, payload = kind + ADDRESSED, self._handoff.leave(payload)
        self._rows.append((self._slots[server], kind, edge, source_time, payload))
        self._bytes += len(payload)

    @property
    def left_bytes(self) -> int:
        """What it has left in files for other servers on this host."""
        return 0 if self._handoff is None else self._handoff.bytes

    def close(self) -> None:
        if self._handoff is not None:
            self._handoff.close()

    def full(self) -> bool:
        return self._bytes >= FLUSH_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        if not self._rows:
            return
        slots, kinds, edges, source_time, payloads = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(slots, pa.int32()),
                pa.array(kinds, pa.int32()),
                pa.array(edges, pa.int32()),
                pa.array(source_time, pa.int64()),
                pa.array([self._sender] * len(slots), pa.string()),
                pa.array([memoryview(p) for p in payloads], pa.binary()),
            ],
            schema=WIRE,
        )


def sender_name(server: int | None, host: str) -> str:
    """Return the name of a sender: its server (None: a source task) and the host it runs on.

    >>> sender_of(sender_name(3, "a.example.org")), sender_of(sender_name(None, "b"))
    ((3, 'a.example.org'), (None, 'b'))
    """
    return f"{'' if server is None else server}@{host}"


def sender_of(name: str) -> tuple[int | None, str]:
    """Return server and host of a sender."""
    server, _, host = name.partition("@")
    return int(server) if server else None, host


def add_tally(tallies: Tallies, where: tuple[int, ...], server: int, rows: int) -> None:
    """Add rows for a server to a tally: their number, and two sums over the servers, weighted differently.

    Who sends and who receives add up on their own, in three numbers however many servers there are. If the tallies
    agree, every server has got what was sent to it, but for a chance of 2⁻⁶¹; if one server has not, they tell which.

    >>> sent, received = {}, {}
    >>> for server in (3, 5, 3):
    ...     add_tally(sent, (), server, 10)
    >>> for server, rows in ((3, 20), (5, 10)):
    ...     add_tally(received, (), server, rows)
    >>> sent == received
    True
    """
    total, place, mark = tallies.get(where, (0, 0, 0))
    tallies[where] = total + rows, place + server * rows, (mark + factor(server) * rows) % PRIME


@functools.cache
def factor(server: int) -> int:
    """Return a number below :data:`PRIME` that stands for a server in a tally."""
    return int(mix(np.uint64(server), np.uint64(0x5EED))) % PRIME


def pack(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch without its schema, which the receiver knows."""
    return batch.serialize()


def unpack(payload: pa.Buffer | bytes, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)


def payloads(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """Return the payload of each row, not copied."""
    return [value.as_buffer() for value in batch.column("payload")]


def normalised(batch: pa.RecordBatch, schema: pa.Schema, names: list[str]) -> pa.RecordBatch:
    """Return columns as Spark sends them (session time zone, large types), as the topology spells them."""
    arrays = []
    for field, name in zip(schema, names, strict=True):
        column = batch.column(name)
        if column.type != field.type:
            column = column.cast(canonical_type(field.type))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def answered(answers: Answers) -> pa.RecordBatch:
    """Return what a task tells the driver, as a batch of kinds and payloads."""
    kinds, payloads = [kind for kind, _ in answers], [payload for _, payload in answers]
    return pa.record_batch(
        [pa.array(kinds, pa.int32()), pa.array(payloads, pa.binary())], ["kind", "payload"]
    )


def answers_in(sent: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield kind and payload of all that tasks have sent."""
    for batch in sent:
        for kind, payload in zip(batch.column("kind").to_pylist(), payloads(batch), strict=True):
            yield kind, payload.to_pybytes()
