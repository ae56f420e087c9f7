"""The statistics of one batch: key counts per operator and pair counts per edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.locality.counts import PairCounts, count_keys, count_pairs, merge

Edge = tuple[int, int]
_SCHEMA = pa.schema(
    [("part", pa.int16()), ("left", pa.uint64()), ("right", pa.uint64()), ("count", pa.float64())]
)


@dataclass(frozen=True)
class BatchStats:
    """Counts of one task, or of a whole batch once the tasks' counts are merged.

    Operators are numbered in topological order; an edge is a pair of such numbers. Key counts are of the rows
    that *arrived* at the operator; a pair is counted at the later operator, where both its keys are at hand.

    >>> state, tag = np.array([1, 1, 2], np.uint64), np.array([7, 7, 8], np.uint64)
    >>> task = BatchStats.of({0: state, 1: tag}, {(0, 1): (state, tag)})
    >>> both = BatchStats.merge([task, BatchStats.from_ipc(task.to_ipc())])
    >>> both.rows, both.pairs[0, 1].count.tolist()
    ({0: 6.0, 1: 6.0}, [4.0, 2.0])
    """

    keys: Mapping[int, PairCounts] = field(default_factory=dict)  # per operator: how often each key was seen
    # per edge: how often each pair of keys was seen
    pairs: Mapping[Edge, PairCounts] = field(default_factory=dict)
    # per operator: all rows, also those whose keys were truncated away
    rows: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        keys: Mapping[int, NDArray[np.uint64]],
        pairs: Mapping[Edge, tuple[NDArray[np.uint64], NDArray[np.uint64]]],
        *,
        capacity: int = 100_000,
        seed: int = 0,
    ) -> BatchStats:
        """Count the rows of one task: key hashes per operator, pairs of key hashes per edge."""
        return cls(
            {o: count_keys(k).truncate(capacity, seed) for o, k in sorted(keys.items())},
            {e: count_pairs(*p).truncate(capacity, seed) for e, p in sorted(pairs.items())},
            {o: float(len(k)) for o, k in sorted(keys.items())},
        )

    @classmethod
    def merge(cls, parts: Sequence[BatchStats], *, capacity: int | None = None, seed: int = 0) -> BatchStats:
        """Add up the statistics of all tasks, whatever their order."""
        operators = sorted({o for p in parts for o in p.keys})
        edges = sorted({e for p in parts for e in p.pairs})
        nothing = PairCounts.empty()
        return cls(
            {o: merge([p.keys.get(o, nothing) for p in parts], capacity, seed) for o in operators},
            {e: merge([p.pairs.get(e, nothing) for p in parts], capacity, seed) for e in edges},
            {o: sum(p.rows.get(o, 0.0) for p in parts) for o in sorted({o for p in parts for o in p.rows})},
        )

    def to_arrow(self) -> pa.Table:
        """Return one table: ``part`` says which counts a row belongs to, the metadata say what the parts are."""
        parts = [*self.keys.values(), *self.pairs.values()]
        sizes = [len(p) for p in parts]
        about = {
            "keys": list(self.keys),
            "pairs": [list(e) for e in self.pairs],
            "rows": [[o, r] for o, r in self.rows.items()],
        }
        columns = [
            np.repeat(np.arange(len(parts), dtype=np.int16), sizes),
            *(
                np.concatenate([getattr(p, name) for p in parts] or [np.zeros(0, kind)])
                for name, kind in (("left", np.uint64), ("right", np.uint64), ("count", np.float64))
            ),
        ]
        return pa.table(columns, schema=_SCHEMA.with_metadata({b"weir.stats": msgspec.json.encode(about)}))

    @classmethod
    def from_arrow(cls, table: pa.Table) -> BatchStats:
        """Make statistics from a table of :meth:`to_arrow`."""
        about = msgspec.json.decode(table.schema.metadata[b"weir.stats"])
        part, left, right, count = (table.column(name).to_numpy() for name in _SCHEMA.names)
        ends = np.searchsorted(part, np.arange(len(about["keys"]) + len(about["pairs"]) + 1))
        cut = [PairCounts(left[a:b], right[a:b], count[a:b]) for a, b in pairwise(ends)]
        n = len(about["keys"])
        return cls(
            dict(zip(about["keys"], cut[:n], strict=True)),
            {(a, b): c for (a, b), c in zip(about["pairs"], cut[n:], strict=True)},
            {int(o): float(r) for o, r in about["rows"]},
        )

    def to_ipc(self) -> bytes:
        """Return the statistics as bytes, for one cell of a control row."""
        sink = pa.BufferOutputStream()
        table = self.to_arrow()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
            out.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def from_ipc(cls, data: bytes) -> BatchStats:
        """Make statistics from the bytes of :meth:`to_ipc`."""
        with pa.ipc.open_stream(data) as stream:
            return cls.from_arrow(stream.read_all())
