"""The state of one operator on one server: a list of segments, the newest entry of a key counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.state.index import Search, positions_among, rows_of
from weir.state.reader import EVERYWHERE, Segment, between, open_segment
from weir.state.segment import DEAD, H1, H2, NEVER, Index, SegmentRef, completed, merged, stored_schema
from weir.state.storage import Storage

FEW = 8  # segments in which keys are looked for again rather than among those that were found


class _Found(NamedTuple):
    """Keys that were looked for, and where they are: who counts what a batch changes asks for them once more."""

    key_hash: NDArray[np.uint64]
    key_check: NDArray[np.uint64]
    which: NDArray[np.int64]
    row: NDArray[np.int64]

    def same(self, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64]) -> bool:
        return np.array_equal(key_hash, self.key_hash) and np.array_equal(key_check, self.key_check)


class StateView:
    """The state of one operator on one server, as a list of segments tells it."""

    def __init__(self, storage: Storage, refs: Sequence[SegmentRef], schema: pa.Schema) -> None:
        self.schema = schema
        self._stored = stored_schema(schema)
        self.refs = list(refs)
        self.segments = [open_segment(storage, r.whole) for r in refs]
        self._starts = list(accumulate((len(s.firsts) for s in self.segments), initial=0))  # of their blocks
        self._last: _Found | None = None

    def find(
        self, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (block, row) of the living entry of each key, for :meth:`take`; −1 where there is none."""
        last, n = self._last, len(key_hash)
        if last is not None and last.same(key_hash, key_check):
            return last.which, last.row
        at = np.full(n, -1)
        if last is not None and len(last.which) and len(self.segments) > FEW:
            at = positions_among(key_hash, key_check, last.key_hash, last.key_check)
        rest = np.flatnonzero(at < 0)
        search = self._search(key_hash[rest], key_check[rest], living=True)
        which, row = search.which, search.row
        if last is not None and len(rest) < n:
            which, row = last.which[at], last.row[at]
            which[rest], row[rest] = search.which, search.row
        self._last = _Found(key_hash, key_check, which, row)
        return which, row

    def _search(self, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64], living: bool) -> Search:
        search = Search(key_hash, key_check)
        for place in range(len(self.segments) - 1, -1, -1):
            if not len(search.missing):
                break
            segment, start, ref = self.segments[place], self._starts[place], self.refs[place]
            elsewhere = search.leave_out(ref.holds) if ref.ranges is not None else None
            for number, index in segment.holding(search):
                hits = search.look(start + number, index.key_hash, index.key_check)
                if living and len(hits) and len(index.bits):
                    gone = index.dead(search.row[hits])
                    if gone.any():
                        search.drop(hits[gone])
            if elsewhere is not None:
                search.missing = np.concatenate([search.missing, elsewhere])
        return search

    def take(
        self, which: NDArray[np.int64], row: NDArray[np.int64], columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, NDArray[np.int64]]:
        """Return the entries found, or some of their columns, and the position of the key that asked for each."""
        names = self._stored.names if columns is None else list(columns)
        parts, positions = [], []
        asked = np.flatnonzero(np.bincount(which + 1)[1:]).tolist()
        for place, numbers in groupby(asked, lambda number: bisect_right(self._starts, number) - 1):
            start = self._starts[place]
            for number, table in self._read(self.segments[place], [n - start for n in numbers]):
                keys = np.flatnonzero(which == start + number)
                parts.append(table.select(names).take(pa.array(row[keys])))
                positions.append(keys)
        if not parts:
            return self._stored.empty_table().select(names), np.empty(0, np.int64)
        return pa.concat_tables(parts).combine_chunks(), np.concatenate(positions)

    def look_up(
        self, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64], columns: Sequence[str]
    ) -> pa.Table:
        """Return some columns of the living entry of each key, null where there is none."""
        which, row = self.find(key_hash, key_check)
        found, positions = self.take(which, row, columns)
        if len(positions) == len(which) and (positions[1:] > positions[:-1]).all():
            return found
        at = np.full(len(which), -1, np.int64)
        at[positions] = np.arange(len(positions))
        return found.take(pa.array(at, mask=at < 0))

    def neighbours(self, routes: NDArray[np.uint64]) -> Neighbours:
        """Return where all entries of the keys with these route hashes are, in their order; found in one look."""
        blocks = []
        for place in range(len(self.segments) - 1, -1, -1):
            segment, own = self.segments[place], self.refs[place].holds(routes)
            for number, index in segment.holding_any(np.unique(routes[own])):
                start, end = (np.searchsorted(index.key_hash, routes, side) for side in ("left", "right"))
                end = np.where(own, end, start)
                if (end > start).any():
                    blocks.append(_Block(partial(self._table, place, number), index, start, end))
        return Neighbours(blocks, self._stored)

    def _table(self, place: int, number: int) -> pa.Table:
        ((_, table),) = self._read(self.segments[place], [number])
        return table

    def due(self, after: int, until: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the living entries whose deadline lies in ``(after, until]``, or some of their columns.

        Costs a binary search per segment plus the entries that come due, not a scan.
        """
        names = self._stored.names if columns is None else list(columns)
        parts = [self._stored.empty_table().select(names)]
        for start, segment, ref in zip(self._starts, self.segments, self.refs, strict=False):
            for number, index in segment.due(until):
                deadlines, order = index.by_deadline()
                lo, hi = np.searchsorted(deadlines, [after, until], side="right")
                rows = np.sort(order[lo:hi])
                rows = rows[~index.dead(rows) & ref.holds(index.key_hash[rows])]
                if not len(rows):
                    continue
                newer = self._search(index.key_hash[rows], index.key_check[rows], living=False)
                rows = rows[newer.which == start + number]  # an entry replaced by a newer one is history
                for _, table in self._read(segment, [number] if len(rows) else []):
                    parts.append(table.select(names).take(pa.array(rows)))
        return pa.concat_tables(parts).combine_chunks()

    def all_of(self, routes: NDArray[np.uint64]) -> pa.Table:
        """Return all living entries of the keys with these route hashes (several per key if it has windows)."""
        routes = np.unique(routes)
        parts: list[tuple[NDArray[Any], ...]] = []  # h1, h2, dead, block, row
        for start, segment, ref in zip(self._starts, self.segments, self.refs, strict=False):
            own = routes[ref.holds(routes)]
            for number, index in segment.holding_any(own):
                here = own
                if len(segment.firsts) > 1:
                    here = own[(own >= segment.firsts[number]) & (own <= segment.lasts[number])]
                rows = rows_of(index.key_hash, here)
                if len(rows):
                    block = np.full(len(rows), start + number)
                    parts.append((index.key_hash[rows], index.key_check[rows], index.dead(rows), block, rows))
        if not parts:
            return self._stored.empty_table()
        key_hash, key_check, dead, which, row = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        living = ~dead
        if len(parts) > 1:  # only hashes are sorted; of rows, those are read that count
            order = np.lexsort((key_check, key_hash))  # stable, so the newest of equal keys comes last
            older = np.zeros(len(order), np.bool_)
            older[:-1] = (key_hash[order][1:] == key_hash[order][:-1]) & (
                key_check[order][1:] == key_check[order][:-1]
            )
            living[order[older]] = False
        return self.take(which[living], row[living])[0]

    def changes(self, table: pa.Table) -> tuple[int, int]:
        """Return how many keys some entries would add to the state, and how many they would end."""
        which, _ = self.find(table[H1].to_numpy(), table[H2].to_numpy())
        before, dead = which >= 0, table[DEAD].to_numpy()
        return int((~dead & ~before).sum()), int((dead & before).sum())

    def everything(self, keep_dead: bool = False) -> pa.Table:
        """Return all entries, the newest of each key."""
        return merged(self._tables(), self._stored, keep_dead)

    def _tables(self) -> Iterator[pa.Table]:
        for segment, ref in zip(self.segments, self.refs, strict=True):
            for low, high in ref.ranges or EVERYWHERE:
                for _, table in self._read(segment, segment.between(low, high), keep=False):
                    yield between(table, low, high)

    def _read(
        self, segment: Segment, blocks: Sequence[int], keep: bool = True
    ) -> Iterator[tuple[int, pa.Table]]:
        for number, table in segment.tables(blocks, keep):
            yield number, completed(table, self._stored)


class _Block(NamedTuple):
    """One run of entries, newer ones first, and where in it those of each key begin and end."""

    table: Callable[[], pa.Table]
    system: Index
    start: NDArray[np.int64]
    end: NDArray[np.int64]


class Neighbours:
    """All entries of some keys, which are read when they are asked for; keys go by their position."""

    def __init__(self, blocks: Sequence[_Block], schema: pa.Schema) -> None:
        self._blocks, self._schema = blocks, schema

    def find(self, number: int, key_check: NDArray[np.uint64], column: str) -> list[Any]:
        """Return a column of those entries of one key that have these second hashes; None for one that is not there."""
        out: list[Any] = [None] * len(key_check)
        missing = np.arange(len(key_check))
        for block in self._blocks:
            start, end = int(block.start[number]), int(block.end[number])
            if start == end or not len(missing):
                continue
            here = block.system.key_check[start:end]
            rows = np.searchsorted(here, key_check[missing])
            hit = here[np.minimum(rows, end - start - 1)] == key_check[missing]
            if not hit.any():
                continue
            rows, asked, missing = rows[hit] + start, missing[hit], missing[~hit]
            living = ~block.system.dead(rows)
            values = block.table()[column].take(pa.array(rows[living])) if living.any() else ()
            for position, value in zip(asked[living].tolist(), values, strict=True):
                out[position] = value.as_py()
        return out

    def all(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all living entries of one key."""
        spans = [(block, int(block.start[number]), int(block.end[number])) for block in self._blocks]
        spans = [(block, start, end) for block, start, end in spans if start < end]
        parts = [self._schema.empty_table().select(columns)]
        if spans:
            checks = np.concatenate([block.system.key_check[start:end] for block, start, end in spans])
            newest = np.zeros(len(checks), np.bool_)
            newest[np.unique(checks, return_index=True)[1]] = True  # the first of equals, so the newest
            at = 0
            for block, start, end in spans:
                rows = start + np.flatnonzero(newest[at : at + end - start])
                at += end - start
                rows = rows[~block.system.dead(rows)]
                if len(rows):
                    parts.append(block.table().select(columns).take(pa.array(rows)))
        return pa.concat_tables(parts)


def next_deadline(storage: Storage, refs: Sequence[SegmentRef], after: int) -> int:
    """Return the least deadline beyond ``after`` in some segments, NEVER if there is none.

    It may be that of an entry that a newer one has replaced. Only segments with deadlines on both sides are opened.
    """
    least = int(NEVER)
    for ref in refs:
        if after < ref.min_deadline:
            least = min(least, ref.min_deadline)
            continue
        for _, index in open_segment(storage, ref.whole).due(int(NEVER) - 1):
            deadlines, _ = index.by_deadline()
            following = int(np.searchsorted(deadlines, after, side="right"))
            if following < len(deadlines):
                least = min(least, int(deadlines[following]))
    return least
