"""Aggregates in event-time windows: one state per key and window, told when the window closes.

Rows are first reduced to the panes of which windows are made; overlapping windows then share that work. Sessions of a
key that a batch lets overlap, among themselves or with saved ones, become one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.hashing import SECOND_SEED, hash_columns
from weir.operators.aggregate.aggregate import AggregateInstance
from weir.operators.instance import NO_TIME, Context, among, naming, one_array
from weir.operators.timers import (
    EARLY,
    TIMER,
    second_hash,
    states_in,
    timer_entries,
    timer_hash,
    timers_in,
)
from weir.operators.windows import WINDOW_END, WINDOW_START, Window, merge_sessions, timely
from weir.rows import Rows
from weir.state.index import group_rows
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView

Hashes = NDArray[np.uint64]


class WindowedAggregate(AggregateInstance):
    """Reduces rows to partial states per key and window; closes windows that the watermark has passed."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        assert context.node.window is not None
        self.window: Window = context.node.window
        self.stored = self.schema
        self.schema = pa.schema([f for f in self.stored if f.name != TIMER.name])  # of windows, not of timers
        self.width += 2 if self.window.session else 1

    def push(self, rows: Rows) -> Iterator[Rows]:
        rows, times = timely(self.context, self.window, rows)
        if len(rows):
            self._add(self._by_session(rows, times) if self.window.session else self._by_window(rows, times))
        return iter(())

    def _by_window(self, rows: Rows, times: NDArray[np.int64]) -> pa.Table:
        """Return partial states of rows, one per key and window that is still open."""
        key_hash, key2 = rows.hash(self.node.key), rows.second_hash(self.node.key)
        panes = times - np.mod(times, self.window.pane)
        groups, first = group_rows(key_hash, second_hash(key2, panes))
        at, starts = self.window.assign(panes[first], self.context.late_at)
        columns = self._columns(rows, groups, first)
        if self.window.slide is None and len(at) == len(first):
            return self._table(key_hash[first], second_hash(key2[first], starts), columns, starts)
        columns = [column.take(pa.array(at)) for column in columns]
        table = self._table(key_hash[first][at], second_hash(key2[first][at], starts), columns, starts)
        return self._merged(table)  # a window has several panes

    def _by_session(self, rows: Rows, times: NDArray[np.int64]) -> pa.Table:
        """Return partial states of rows, one per key and session."""
        key_hash, key2 = rows.hash(self.node.key), rows.second_hash(self.node.key)
        groups, starts, ends = merge_sessions(key_hash, key2, times, times + self.window.size)
        first = _firsts(groups, len(starts))
        columns = self._columns(rows, groups, first)
        return self._table(key_hash[first], second_hash(key2[first], starts), columns, starts, ends)

    def _columns(self, rows: Rows, groups: NDArray[np.int64], first: NDArray[np.int64]) -> list[pa.Array]:
        keys = [rows.column(k).take(pa.array(first)) for k in self.node.key]
        with naming(self.node):
            return [*keys, *self.operator.begin(rows.column, groups, len(first))]

    def _table(
        self, key_hash: Hashes, key_check: Hashes, columns: list[pa.Array], *times: NDArray[np.int64]
    ) -> pa.Table:
        """Return a table of windows from their hashes, keys and states, and when they start and end."""
        kind = self.schema.field(WINDOW_START).type
        keys, states = columns[: len(self.node.key)], columns[len(self.node.key) :]
        arrays = [
            pa.array(key_hash),
            pa.array(key_check),
            *keys,
            *(pa.array(t).cast(kind) for t in times),
            *states,
        ]
        return pa.Table.from_arrays(arrays, schema=self._wire)

    def absorb(self, partial: pa.RecordBatch) -> None:
        self._add(pa.Table.from_batches([partial]).select(self._wire.names))

    def partials(self) -> pa.Table | None:
        table = super().partials()
        return table if table is None else self._as_stored(table)

    def _as_stored(self, table: pa.Table) -> pa.Table:
        if TIMER.name not in self.stored.names:
            return table
        return table.append_column(TIMER, pa.nulls(table.num_rows, TIMER.type))

    def _reduced(self) -> pa.Table:
        if not self.window.session:
            return super()._reduced()
        return self._merged_sessions(pa.concat_tables(self.pieces).combine_chunks())[0]

    def _merged_sessions(self, table: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
        """Return sessions of a key that overlap as one, and which of them each row has become a part of."""
        key_hash, key2 = table[H1].to_numpy(), self._key_hash(table)
        starts, ends = (table[name].cast(pa.int64()).to_numpy() for name in (WINDOW_START, WINDOW_END))
        groups, starts, ends = merge_sessions(key_hash, key2, starts, ends)
        first = _firsts(groups, len(starts))
        keys = [one_array(table[k]).take(pa.array(first)) for k in self.node.key]
        states = [one_array(c) for c in table.columns[2 + self.width :]]
        with naming(self.node):
            columns = [*keys, *self.operator.merge(states, groups, len(first))]
        merged = self._table(key_hash[first], second_hash(key2[first], starts), columns, starts, ends)
        return merged, groups

    def _key_hash(self, table: pa.Table) -> Hashes:
        return hash_columns([one_array(table[k]) for k in self.node.key], SECOND_SEED)

    def _ends(self, table: pa.Table) -> NDArray[np.int64]:
        if self.window.session:
            return table[WINDOW_END].cast(pa.int64()).to_numpy()
        return table[WINDOW_START].cast(pa.int64()).to_numpy() + self.window.size

    def finish(self) -> Iterator[Rows]:
        context = self.context
        if context.step != self.node.state_level:
            return
        view = context.view()
        written: list[pa.Table] = []
        mark = NO_TIME if context.watermark is None else context.watermark
        touched, before = self._wire.empty_table(), self._wire.empty_table()
        if self.pieces:
            touched, before = self._with_saved(view, self._reduced())
            self.report.pairs += touched.num_rows
            written += [self._tombstones(before), self._entries(touched)]
            self.report.keys_delta += touched.num_rows - before.num_rows
        ended = self._ends(touched) <= mark
        due = self._due(view, before, mark)
        closed = pa.concat_tables([due, touched.filter(pa.array(ended))]).combine_chunks()
        written.append(self._tombstones(closed))
        self.report.keys_delta -= closed.num_rows
        if self.window.early is not None:
            written += self._early(view, touched.filter(pa.array(~ended)), before, closed)
        self._written = pa.concat_tables(written)
        if closed.num_rows:
            self.report.rows_out += closed.num_rows
            yield Rows(self._out(closed, True))

    def _with_saved(self, view: StateView, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return this batch's windows merged with what is saved of them, and the entries that they replace."""
        key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
        if not self.window.session:
            saved, _ = view.take(*view.find(key_hash, key_check))
            saved = saved.select(self._wire.names)
            if not saved.num_rows:
                return table, saved
            return self._merged(pa.concat_tables([saved, table])), saved
        saved = states_in(view.all_of(np.unique(key_hash))).select(self._wire.names)
        if not saved.num_rows:
            return table, saved
        merged, groups = self._merged_sessions(pa.concat_tables([saved, table]).combine_chunks())
        changed = np.zeros(merged.num_rows, np.bool_)
        changed[groups[saved.num_rows :]] = True
        return merged.filter(pa.array(changed)), saved.filter(pa.array(changed[groups[: saved.num_rows]]))

    def _due(self, view: StateView, replaced: pa.Table, mark: int) -> pa.Table:
        """Return saved windows that end now, but for those that this batch has changed."""
        before = self.context.previous_watermark
        due = states_in(view.due(NO_TIME if before is None else before, mark)).select(self._wire.names)
        return due.filter(pa.array(~among(due, replaced[H1].to_numpy(), replaced[H2].to_numpy())))

    def _early(
        self, view: StateView, touched: pa.Table, replaced: pa.Table, closed: pa.Table
    ) -> list[pa.Table]:
        """Tell the sink of windows that have changed since they were last told, if it is time; return timers."""
        context, early = self.context, self.window.early
        assert early is not None
        rung = timers_in(view.due(context.previous_clock, context.clock), EARLY)
        starts = rung[WINDOW_START].cast(pa.int64()).to_numpy()
        r1, r2 = rung[H1].to_numpy(), second_hash(self._key_hash(rung), starts)
        key_hash, key_check = touched[H1].to_numpy(), touched[H2].to_numpy()
        now = among(touched, r1, r2)
        others, _ = view.take(*view.find(r1, r2))
        others = others.select(self._wire.names)
        for windows in (touched, closed, replaced):
            others = others.filter(pa.array(~among(others, windows[H1].to_numpy(), windows[H2].to_numpy())))
        told = pa.concat_tables([touched.filter(pa.array(now)), others]).combine_chunks()
        if told.num_rows and context.want_updates:
            context.to_sink(self._out(told, False))
        clock, at = np.full(len(key_hash), EARLY), np.zeros(len(key_hash), np.int64)
        timers = timer_hash(key_check, clock, at)
        new = ~now & (view.find(key_hash, timers)[0] < 0)
        fresh = touched.filter(pa.array(new))
        heads = [one_array(fresh[name]) for name in self.schema.names[: self.width]]
        deadline = np.full(fresh.num_rows, context.clock + early)
        self.report.keys_delta += fresh.num_rows - rung.num_rows
        return [
            tombstones(r1, rung[H2].to_numpy(), self.stored),
            timer_entries(heads, key_hash[new], timers[new], clock[new], at[new], deadline, self.stored),
        ]

    def _entries(self, table: pa.Table) -> pa.Table:
        data = self._as_stored(table).select(self.stored.names)
        return entries(data, table[H1].to_numpy(), table[H2].to_numpy(), deadline=self._ends(table))

    def _tombstones(self, table: pa.Table) -> pa.Table:
        return tombstones(table[H1].to_numpy(), table[H2].to_numpy(), self.stored)

    def _out(self, table: pa.Table, closed: bool) -> pa.RecordBatch:
        """Return windows as a sink gets them."""
        start = one_array(table[WINDOW_START])
        heads = [*(one_array(table[k]) for k in self.node.key), start]
        heads.append(pa.array(self._ends(table)).cast(start.type))
        if self.window.early is not None:
            heads.append(pa.array(np.full(table.num_rows, closed)))
        values = self.operator.finish([one_array(c) for c in table.columns[2 + self.width :]])
        return pa.RecordBatch.from_arrays([*heads, *values], schema=self.node.sink_out)


def _firsts(groups: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the first row of each of ``n`` groups."""
    first = np.empty(n, np.int64)
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)  # of equal groups the last assignment stays
    return first
