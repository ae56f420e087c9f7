"""The rows of an exchange: Arrow blobs with an address.

Between two steps Spark moves few, large rows ``(slot, kind, edge, born, payload)``: everything that one task sends
to one server on one edge is one blob. ``born`` is its latency marker, see :mod:`weir.engine.metrics.latency`. Edges
may have different schemas; the JVM never sees a row of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from weir.columns import canonical_type
from weir.engine.exchange.parcels import Depot

DATA, CONTROL, STATE, PARTIAL, STATISTICS = 1, 2, 3, 4, 5
LEFT = (DATA, STATE, PARTIAL)  # may be left in a file; the others go to the driver in the end
ADDRESSED = 32  # + kind: the payload is an address, see weir.engine.exchange.parcels
NATIVE = 100  # + number of the source: a row of the user's own columns, routed in the JVM

WIRE = pa.schema(
    [
        ("slot", pa.int32()),
        ("kind", pa.int32()),
        ("edge", pa.int32()),
        ("born", pa.int64()),
        ("payload", pa.binary()),
    ]
)
WIRE_DDL = "slot int, kind int, edge int, born bigint, payload binary"
FLUSH_BYTES = 16 << 20
# To the JVM's collector a row of half a region is "humongous", an allocation of its own; heaps up to 4 GB have
# regions of 1 MB.
BLOB_BYTES = 384 << 10


class Outbox:
    """Collects what a task sends, and hands it to Spark in batches of bounded size."""

    def __init__(self, slots: list[int], depot: Depot | None = None) -> None:
        self._slots, self._depot = slots, depot
        self._rows: list[tuple[int, int, int, int, pa.Buffer | bytes]] = []
        self._bytes = 0
        self.posted: Counter[tuple[int, int, int]] = Counter()  # kind, edge, server → rows

    def longest(self, server: int) -> int:
        """Return how long blobs for a server may be, in bytes."""
        return BLOB_BYTES if self._depot is None else self._depot.longest(server, BLOB_BYTES)

    def put(
        self, server: int, kind: int, edge: int, payload: pa.Buffer | bytes, born: int = 0, rows: int = 0
    ) -> None:
        """Send a blob of so many rows to a server; ``edge`` is an operator's number for states."""
        if rows:
            self.posted[kind, edge, server] += rows
        if self._depot is not None and kind in LEFT and self._depot.takes(server, len(payload)):
            kind, payload = kind + ADDRESSED, self._depot.leave(payload)
        self._rows.append((self._slots[server], kind, edge, born, payload))
        self._bytes += len(payload)

    def full(self) -> bool:
        return self._bytes >= FLUSH_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        if not self._rows:
            return
        slots, kinds, edges, born, payloads = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(slots, pa.int32()),
                pa.array(kinds, pa.int32()),
                pa.array(edges, pa.int32()),
                pa.array(born, pa.int64()),
                pa.array([memoryview(p) for p in payloads], pa.binary()),
            ],
            schema=WIRE,
        )


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
