"""The state of one operator on one server: a list of segments, the newest entry of a key counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.state.index import find_in_segments, rows_of
from weir.state.segment import DEAD, SegmentRef, newest, open_segment, stored_schema
from weir.state.storage import Storage


class StateView:
    """The state of one operator on one server, as a list of segments tells it."""

    def __init__(self, storage: Storage, refs: Sequence[SegmentRef], schema: pa.Schema) -> None:
        self.schema = schema
        self.segments = [open_segment(storage, r) for r in refs]
        self._sorted = [(s.h1, s.h2) for s in self.segments]

    def find(
        self, h1: NDArray[np.uint64], h2: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(segment, row) of the living entry of each key, −1 where there is none."""
        which, row = find_in_segments(self._sorted, h1, h2)
        for number, segment in enumerate(self.segments):
            here = which == number
            if here.any():
                gone = here.copy()
                gone[here] = segment.dead[row[here]]
                which[gone] = row[gone] = -1
        return which, row

    def take(self, which: NDArray[np.int64], row: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
        """Return the entries found, and for each the position of the key that asked for it."""
        parts, positions = [], []
        for number, segment in enumerate(self.segments):
            asked = np.flatnonzero(which == number)
            if len(asked):
                parts.append(segment.table.take(pa.array(row[asked])))
                positions.append(asked)
        if not parts:
            return stored_schema(self.schema).empty_table(), np.empty(0, np.int64)
        return pa.concat_tables(parts).combine_chunks(), np.concatenate(positions)

    def due(self, after: int, until: int) -> pa.Table:
        """Return the living entries whose deadline lies in ``(after, until]``.

        Costs a binary search per segment plus the entries that come due, not a scan.
        """
        found: list[pa.Table] = []
        for number, segment in enumerate(self.segments):
            if segment.ref.min_deadline > until:
                continue
            deadlines, rows = segment.by_deadline
            lo, hi = np.searchsorted(deadlines, [after, until], side="right")
            rows = np.sort(rows[lo:hi])
            rows = rows[~segment.dead[rows]]
            if len(rows):
                which, _ = find_in_segments(self._sorted, segment.h1[rows], segment.h2[rows])
                rows = rows[which == number]  # an entry replaced by a newer one is history
                found.append(segment.table.take(pa.array(rows)))
        empty = stored_schema(self.schema).empty_table()
        return pa.concat_tables([empty, *found]).combine_chunks()

    def all_of(self, routes: NDArray[np.uint64]) -> pa.Table:
        """All living entries of the keys with these route hashes (several per key if it has windows)."""
        parts = [stored_schema(self.schema).empty_table()]
        for segment in self.segments:
            rows = rows_of(segment.h1, routes)
            if len(rows):
                parts.append(segment.table.take(pa.array(rows)))
        table = newest(pa.concat_tables(parts))
        return table.filter(pa.compute.invert(table[DEAD]))

    def everything(self, keep_dead: bool = False) -> pa.Table:
        """All entries, the newest of each key."""
        parts = [stored_schema(self.schema).empty_table(), *(s.table for s in self.segments)]
        table = newest(pa.concat_tables(parts))
        return table if keep_dead else table.filter(pa.compute.invert(table[DEAD]))
