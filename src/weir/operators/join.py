"""Joins of two keyed streams by event time: all rows within a bound, or the latest one as of a row's time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.columns import check_column
from weir.compiled import compiled
from weir.errors import TopologyError, refuse
from weir.hashing import SECOND_SEED, hash_columns
from weir.operators.base import Operator, side_schema
from weir.operators.instance import BufferingInstance, Context, Instance, conformed, hashes_of, record_batch
from weir.operators.windows import on_time
from weir.rows import Rows, one_batch, row_hashes
from weir.state.index import group_rows
from weir.state.segment import DEADLINE, H1, H2, NEVER, entries, tombstones

SIDE, KEY2, TIME, MATCHED = "side", "__key", "__time", "matched"
LEFT, RIGHT = "left.", "right."
U64 = NDArray[np.uint64]


class Join(Operator):
    """Joins two streams by key: each row with every row of the other side whose time is within a bound.

    ``stream.join(other, …)`` makes one. A left row of time ``t`` meets the right rows of its key from ``t − before`` to
    ``t + after``. Every such pair is emitted once, in the batch in which its later row arrives. A row is kept until
    the watermark says that no partner can come; then, with ``how="left"`` or ``"full"``, it is emitted alone if it
    never had one. Rows older than the watermark, and rows without a time, are dropped and counted (``late``).

    ``bounds`` are ``(before, after)`` in µs, and None for no bound; ``times`` the event-time column of each side. The
    watermark is that of the side which is behind. :meth:`weir.Stream.join` explains the other parameters.

    State is one entry per row, found by its key's hash: a key with many rows is never rewritten for a new one. What is
    emitted depends on the rows of each batch alone, not on their order or on the number of servers.
    """

    stateful = True
    emits_early = True
    sides = 2

    def __init__(
        self,
        how: str = "inner",
        bounds: tuple[int, int] | None = None,
        times: tuple[str, str] | None = None,
        lateness: int = 0,
        suffix: str = "_right",
    ) -> None:
        if how not in ("inner", "left", "full"):
            raise TopologyError(f'join: how is "inner", "left" or "full", not {how!r}')
        if (bounds is None) != (times is None):
            raise TopologyError(
                'join: within= and time= go together, e.g. within="10 minutes", time="time"; time= is not needed '
                'where both streams have declared it, e.g. source(…).event_time("time")'
            )
        if bounds is None and how != "inner":
            raise TopologyError(
                f'join: how="{how}" needs within= and time=: without a bound a row may always find a partner later'
            )
        if bounds is not None and (min(bounds) < 0 or lateness < 0):
            raise TopologyError("join: within= and lateness= cannot be negative")
        self.how, self.bounds, self.times, self.suffix = how, bounds, times, suffix
        # the sides whose rows are emitted alone when they never had a partner
        self.outer_sides = {"inner": (), "left": (0,), "full": (0, 1)}[how]
        self.lateness, self.time_columns = None if bounds is None else lateness, times or ()

    def check(self, schema: pa.Schema, where: str) -> None:
        for side, column in enumerate(self.times or ()):
            own = side_schema(schema, side, key_columns(schema))
            check_column(
                column, own, where, "its time", timestamp=True, side=f"{('left', 'right')[side]} side"
            )
        check_joined(self.emits(schema), where)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return joined_schema(schema, self.suffix)

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        named = [
            f.with_name(mark + f.name)
            for side, mark in ((0, LEFT), (1, RIGHT))
            for f in side_schema(schema, side, ())
        ]
        about = [(SIDE, pa.int8()), (KEY2, pa.uint64()), (TIME, pa.int64()), (MATCHED, pa.bool_())]
        return pa.schema([*(pa.field(*one) for one in about), *named])

    def instance(self, context: Context) -> Instance:
        return _JoinInstance(context)

    def signature(self) -> dict[str, Any]:
        return {
            "kind": "Join",
            "how": self.how,
            "bounds": list(self.bounds) if self.bounds else None,
            "times": list(self.times) if self.times else None,
        }

    def describe(self) -> str:
        return f"Join({self.how})"


class AsOfJoin(Join):
    """Adds to each row of a stream the latest row of another that has the same key and is not newer.

    ``stream.join_asof(other, …)`` makes one. A left row of time ``t`` is emitted once, when the watermark says that all
    rows until ``t`` have come, with the right row of the greatest time from ``t − tolerance`` to ``t``, or nulls; with
    ``how="inner"`` not at all then. Of several right rows of that time their content decides which one it is. So what
    is emitted does not depend on batches or servers, but for rows that are late: these are dropped and counted.

    Left rows are kept until they are emitted, right rows until the watermark is ``tolerance`` (µs) behind them.
    """

    def __init__(
        self, tolerance: int, times: tuple[str, str] | None, how: str, lateness: int, suffix: str
    ) -> None:
        refuse(
            "join_asof: ",
            (how not in ("left", "inner"), f'how is "left" or "inner", not {how!r}'),
            (times is None, 'say time="time", or declare it for both streams: source(…).event_time("time")'),
            (tolerance < 0 or lateness < 0, "tolerance= and lateness= cannot be negative"),
        )
        super().__init__("inner", (tolerance, 0), times, lateness, suffix)
        self.how = how

    def instance(self, context: Context) -> Instance:
        return _AsOfInstance(context)

    def signature(self) -> dict[str, Any]:
        assert self.bounds is not None
        return {"kind": "AsOfJoin", "tolerance": self.bounds[0], "times": list(self.time_columns)}

    def describe(self) -> str:
        return f"AsOfJoin({self.how})"


def key_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a schema of two sides that both share."""
    return [f.name for f in schema if not f.name.startswith(("0:", "1:"))]


def joined_schema(schema: pa.Schema, suffix: str) -> pa.Schema:
    """Return the columns of rows put together: the key, the left side's, the right side's."""
    left = side_schema(schema, 0, key_columns(schema))
    right = side_schema(schema, 1, ())
    renamed = [f.with_name(f.name + suffix) if f.name in left.names else f for f in right]
    return pa.schema([*left, *renamed])


def check_joined(schema: pa.Schema, where: str) -> None:
    """Refuse two columns of one name."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise TopologyError(f"{where}: two columns would be called {name!r}; choose another suffix=")


class _Side:
    """Rows of one side: those that were saved, then the new ones."""

    def __init__(self, saved: pa.Table, new: pa.Table) -> None:
        self.saved = saved.num_rows
        self.rows = pa.concat_tables([saved, new])
        self.time = self.rows[TIME].to_numpy()
        self.matched = np.zeros(self.rows.num_rows, np.bool_)  # in this step

    def __len__(self) -> int:
        return self.rows.num_rows


class _JoinInstance(BufferingInstance):
    """Joins the rows of a step with each other and with what is saved, at the end of the step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        bounds: tuple[int, int] = self.operator.bounds or (0, 0)
        self.before, self.after = bounds

    def push_side(self, rows: Rows, side: int) -> Iterator[Rows]:
        missing = rows.nulls(self.node.key)
        if missing is not None:  # as in SQL, null equals nothing: no partner will ever come
            positions = np.arange(int(missing.sum()))
            alone = self._entries(rows.select(missing), np.zeros(len(positions), np.int64), side)
            at, partner = (positions, None) if side == 0 else (None, positions)
            yield from self.emitted(self._batch(alone, at, alone, partner))
            rows = rows.select(~missing)
        yield from super().push_side(rows, side)

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        new = [self._new(side) for side in (0, 1)]
        written: list[pa.Table] = []
        met: list[pa.Table] = []  # saved rows that found their first partner now
        if new[0].num_rows or new[1].num_rows:
            keys = np.unique(np.concatenate([table[H1].to_numpy() for table in new]))
            saved = context.view().all_of(keys)
            if node.ttl is not None:
                saved = saved.filter(pa.array(saved[DEADLINE].to_numpy() > context.clock))
            of = saved[SIDE].to_numpy()
            sides = [_Side(saved.filter(pa.array(of == side)), new[side]) for side in (0, 1)]
            for batch in self._joined(sides[0], sides[1]):
                yield from self.emitted(batch)
            for side in sides:
                written.append(self._remembered(side))
                fresh = len(side) - side.saved
                met.append(written[-1].slice(0, written[-1].num_rows - fresh))
                self.report.keys_delta += fresh
            self.report.pairs += len(keys)
        timed, outer = self.operator.bounds is not None, self.operator.outer_sides
        if context.step == node.state_level and (timed or node.ttl is not None):
            # rows that no partner can come for any more; only those that may have to go on alone are read
            due = self.due(timed, written, met, None if outer else (H1, H2))
            self.report.keys_delta -= due.num_rows
            written.append(tombstones(*hashes_of(due), node.state))
            for side in outer:
                rows = np.flatnonzero((due[SIDE].to_numpy() == side) & ~due[MATCHED].to_numpy())
                at, partner = (rows, None) if side == 0 else (None, rows)
                yield from self.emitted(self._batch(due, at, due, partner))
        self._written = pa.concat_tables(written) if written else None

    def _new(self, side: int) -> pa.Table:
        """Return the new rows of a side as entries, without those that come too late or are not believed."""
        rows, times = self.arrived(side), self.operator.times
        if times is None:
            return self._entries(rows, np.zeros(len(rows), np.int64), side)
        as_input = partial(self._as_input, side)
        return self._entries(*on_time(self.context, times[side], rows, lambda t: t + 1, as_input), side)

    def _as_input(self, side: int, rows: Rows) -> Rows:
        """Return rows of one side with the columns of both, for those who take rows that are not joined."""
        mark = f"{side}:"
        columns = [
            rows.column(f.name.removeprefix(mark))
            if f.name.startswith(mark) or f.name in self.node.key
            else pa.nulls(len(rows), f.type)
            for f in self.node.input
        ]
        return Rows(pa.RecordBatch.from_arrays(columns, schema=self.node.input), source_time=rows.source_time)

    def _entries(self, rows: Rows, time: NDArray[np.int64], side: int) -> pa.Table:
        node, n = self.node, len(rows)
        batch = rows.to_batch(self.schemas[side])
        key_hash, key_check = rows.hash(node.key), node.second_hash(rows)
        own, other = (LEFT, RIGHT) if side == 0 else (RIGHT, LEFT)
        columns = []
        for field in node.state:
            if field.name in node.key:
                columns.append(batch.column(field.name))
            elif field.name.startswith(own):
                columns.append(batch.column(field.name.removeprefix(own)))
            elif field.name.startswith(other):
                columns.append(pa.nulls(n, field.type))
        about = [
            pa.array(np.full(n, side, np.int8)),
            pa.array(key_check),
            pa.array(time),
            pa.array(np.zeros(n, np.bool_)),
        ]
        keys = len(node.key)
        table = conformed([*columns[:keys], *about, *columns[keys:]], node.state)
        deadline = np.full(n, NEVER)
        if self.operator.bounds is not None:
            deadline = time + (self.after if side == 0 else self.before) + 1
        elif node.ttl is not None:
            deadline = np.full(n, self.context.clock + node.ttl)
        return entries(table, key_hash, self._identities(batch, key_check, side), deadline=deadline)

    def _identities(self, batch: pa.RecordBatch, key_check: U64, side: int) -> U64:
        """Return a number for each row that no other of its key has, and that it gets again when a task runs again."""
        r1, r2 = row_hashes(batch)
        order = np.lexsort((r2, r1))
        same = np.zeros(len(order), np.bool_)
        same[1:] = (r1[order][1:] == r1[order][:-1]) & (r2[order][1:] == r2[order][:-1])
        starts = np.where(same, 0, np.arange(len(order)))
        ordinal = np.empty(len(order), np.int64)
        ordinal[order] = np.arange(len(order)) - np.maximum.accumulate(starts)
        stamp = np.full(len(order), (self.context.batch * 64 + self.context.step) * 2 + side)
        parts = [key_check.view(np.int64), r1.view(np.int64), r2.view(np.int64), ordinal, stamp]
        return hash_columns([pa.array(part) for part in parts], SECOND_SEED)

    def _joined(self, left: _Side, right: _Side) -> Iterator[pa.RecordBatch]:
        """Yield all pairs of which at least one row is new; note who has found a partner."""
        hashes = [np.concatenate([side.rows[c].to_numpy() for side in (left, right)]) for c in (H1, KEY2)]
        groups, _ = group_rows(*hashes)
        mine, theirs = groups[: len(left)], groups[len(left) :]
        # every new left row with all on the right, then the saved left rows with what is new on the right
        for rows, first in ((slice(left.saved, None), 0), (slice(0, left.saved), right.saved)):
            both = (mine[rows], theirs[first:])
            times = (left.time[rows], right.time[first:])
            for one, other in pairs(both, times, self.before, self.after):
                at, partner = one + (rows.start or 0), other + first
                left.matched[at] = right.matched[partner] = True
                yield self._batch(left.rows, at, right.rows, partner)

    def _batch(self, left: pa.Table, at: Any, right: pa.Table, partner: Any) -> pa.RecordBatch:
        """Return rows put together; a side that is missing is null."""
        keyed, positions = (right, partner) if at is None else (left, at)
        n = len(positions)
        columns = [keyed[k].take(pa.array(positions)) for k in self.node.key]
        for table, rows, mark in ((left, at, LEFT), (right, partner, RIGHT)):
            for field in self.node.state:
                if field.name.startswith(mark):
                    taken = (
                        pa.nulls(n, field.type) if rows is None else table[field.name].take(pa.array(rows))
                    )
                    columns.append(taken)
        return record_batch(columns, self.node.rows_out)

    def _remembered(self, side: _Side) -> pa.Table:
        """Return the entries that change: saved rows that found their first partner, then the new rows."""
        rows = side.rows
        changed = np.arange(side.saved, len(side))
        if self.operator.outer_sides:
            before = rows[MATCHED].to_numpy()
            newly_matched = np.flatnonzero(side.matched[: side.saved] & ~before[: side.saved])
            changed = np.concatenate([newly_matched, changed])
            at = rows.column_names.index(MATCHED)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(before | side.matched))
        return rows.take(pa.array(changed))


class _AsOfInstance(_JoinInstance):
    """Keeps the rows of both sides; at the end of the batch, emits left rows that the watermark has passed."""

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        written = [table for side in (0, 1) if (table := self._new(side)).num_rows]
        self.report.keys_delta += sum(table.num_rows for table in written)
        if context.step == node.state_level:
            due = self.due(True, written, columns=(H1, H2, SIDE))
            keys = np.unique(due[H1].to_numpy()[due[SIDE].to_numpy() == 0])
            if len(keys):
                self.report.pairs += len(keys)
                rows = pa.concat_tables([context.view().all_of(keys), *written]).combine_chunks()
                yield from self._as_of(rows)
            self.report.keys_delta -= due.num_rows
            written.append(tombstones(*hashes_of(due), node.state))
        self._written = pa.concat_tables(written) if written else None

    def _as_of(self, rows: pa.Table) -> Iterator[Rows]:
        """Emit the left rows whose time has come, each with the latest right row before it."""
        side, passed = rows[SIDE].to_numpy(), rows[DEADLINE].to_numpy() <= self.context.watermark
        left, right = rows.filter(pa.array((side == 0) & passed)), rows.filter(pa.array(side == 1))
        hashes = [np.concatenate([table[c].to_numpy() for table in (left, right)]) for c in (H1, KEY2)]
        groups, _ = group_rows(*hashes)
        mine, theirs = groups[: len(left)], groups[len(left) :]
        times = right[TIME].to_numpy()
        own = right.select([name for name in right.column_names if name.startswith(RIGHT)])
        contents = row_hashes(one_batch(own.to_batches())) if own.num_columns and len(right) else ()
        order = np.lexsort((*contents, times, theirs))
        low, high = _found(mine, left[TIME].to_numpy(), theirs[order], times[order], self.before, 0)
        partner = np.where(high > low, order[high - 1] if len(order) else -1, -1)
        at = np.arange(len(left)) if self.operator.how == "left" else np.flatnonzero(partner >= 0)
        for first in range(0, len(at), AT_ONCE):
            some = at[first : first + AT_ONCE]
            yield from self.emitted(self._batch(left, some, right, np.ma.masked_less(partner[some], 0)))


I64 = NDArray[np.int64]
AT_ONCE = 1 << 19  # pairs that are handed over together


@compiled(*["int64[]"] * 5, "int64", "int64", "out int64[]", "out int64[]")
def _ranges(groups, times, starts, ends, others, before, after, low, high):  # type: ignore[no-untyped-def]
    """For each row: where in the sorted other side those begin and end whose time is within its bounds."""
    for i in range(len(groups)):
        lo, hi = starts[groups[i]], ends[groups[i]]
        least, most = times[i] - before, times[i] + after
        end = hi
        while lo < hi:
            mid = (lo + hi) >> 1
            if others[mid] < least:
                lo = mid + 1
            else:
                hi = mid
        low[i] = lo
        hi = end
        while lo < hi:
            mid = (lo + hi) >> 1
            if others[mid] <= most:
                lo = mid + 1
            else:
                hi = mid
        high[i] = lo


def _found(groups: I64, times: I64, right: I64, right_times: I64, before: int, after: int) -> tuple[I64, I64]:
    """Return for each row from where to where, in a right side sorted by group and time, its partners are."""
    numbers = np.arange(int(max(groups.max(initial=-1), right.max(initial=-1))) + 1)
    starts, ends = np.searchsorted(right, numbers, "left"), np.searchsorted(right, numbers, "right")
    low, high = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
    _ranges(groups, times, starts, ends, right_times, before, after, low, high)
    return low, high


def pairs(
    groups: tuple[I64, I64], times: tuple[I64, I64], before: int, after: int
) -> Iterator[tuple[I64, I64]]:
    """Yield positions of rows, left and right, of equal group where ``left − before ≤ right ≤ left + after``.

    Costs a sort of the right side, two binary searches per left row, and the pairs themselves, in bounded portions.

    >>> left, right = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> ten = np.array([10, 20, 10]), np.array([12, 10, 30])
    >>> [[p.tolist() for p in both] for both in pairs((left, right), ten, before=0, after=5)]
    [[[0, 2], [0, 1]]]
    """
    left, right = groups
    if not len(left) or not len(right):
        return
    order = np.lexsort((times[1], right))
    low, high = _found(left, times[0], right[order], times[1][order], before, after)
    counts = high - low
    total = np.cumsum(counts)
    first = 0
    while first < len(left):
        done = total[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(total, done + AT_ONCE, "right")))
        here = counts[first:last]
        if here.sum():
            offsets = np.arange(here.sum()) - np.repeat(np.cumsum(here) - here, here)
            yield (
                np.repeat(np.arange(first, last), here),
                order[np.repeat(low[first:last], here) + offsets],
            )
        first = last
