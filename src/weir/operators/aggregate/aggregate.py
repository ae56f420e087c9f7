"""Count and Aggregate: running values per key, vectorised from end to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from weir.errors import OperatorError, TopologyError, UnknownColumn, did_you_mean, renamed
from weir.operators.aggregate.aggregate_functions import FUNCTIONS, AggregateFunction, Columns, Groups, named
from weir.operators.base import Operator
from weir.operators.initial import checked_rows, keyed_entries
from weir.operators.instance import (
    NO_TIME,
    Context,
    Instance,
    among,
    conformed,
    hashes_of,
    keyed_schema,
    naming,
    one_array,
)
from weir.operators.timers import (
    EARLY,
    TIMER,
    Hashes,
    second_hash,
    states_in,
    timer_entries,
    timers_in,
)
from weir.operators.windows import WINDOW_END, WINDOW_START, Times, Window, merge_sessions, timely
from weir.rows import Rows, one_batch
from weir.state.index import group_rows, positions_among
from weir.state.segment import DEADLINE, H1, H2, NEVER, entries, newest, tombstones
from weir.state.view import StateView

if TYPE_CHECKING:
    from weir.graph.model import Node

REDUCE_AT = 1 << 20
CHANGE = "change"
Emit = Literal["rows", "updates", "changes"]


@dataclass(frozen=True)
class _Spec:
    name: str
    rule: AggregateFunction

    def kinds(self, schema: pa.Schema) -> list[pa.DataType]:
        return [schema.field(column).type for column in self.rule.columns]

    def failed(self, error: OperatorError) -> OperatorError:
        """Return an error that names the value that it is about."""
        return OperatorError(f"{self.name}={self}: {error}")

    def __str__(self) -> str:
        return self.rule.function + (f"({self.rule.arguments})" if self.rule.arguments else "")


class Aggregate(Operator):
    """Running aggregates per key.

    Parameters
    ----------
    emit
        What operators behind it get: ``"updates"``, one row per key touched in a batch, with its new values; or
        ``"rows"``, the rows that came in. It must be given where an operator follows. A sink gets updates in both
        cases. With ``"changes"`` both get what has changed: the new values, the old ones in columns ``old_…``,
        and in ``change`` whether the key is new (``"insert"``), not (``"update"``), or gone by its ttl
        (``"delete"``). With an event-time window both get the closed windows, and ``emit`` is left out.
    **values
        A name for each value and how to get it, in SQL's words: ``count``, ``count(c)``, ``sum(c)``,
        ``min(c)``, ``max(c)``, ``mean(c)``, ``variance(c)``, ``stddev(c)``, ``first(c, order)``, ``last(c, order)``,
        ``top_k(c, 3)``, ``top_k(c, 3, by)``, ``approx_distinct(c)``, ``approx_quantile(c, 0.5)``. Also the functions of
        :mod:`weir.agg`, which say the same with types, and those of one's own: an
        :class:`~weir.operators.AggregateFunction` or :class:`~weir.operators.PythonAggregate`. Nulls don't count.

    Notes
    -----
    All functions merge, so the operator may stand behind groupings that split keys. ``approx_distinct`` is
    HyperLogLog with 1,024 registers (3.2 % standard error, 1 kB per key). Sums of integers are 64 bits wide.

    Examples
    --------
    >>> Aggregate(n="count", total="sum(amount)").describe()
    'Aggregate(n=count, total=sum(amount))'
    """

    stateful = True
    windowed = True
    mergeable = True
    tells_early = True

    def __init__(self, *, emit: Emit | None = None, **values: str | AggregateFunction) -> None:
        if not values:
            raise TopologyError('Aggregate needs at least one value, e.g. Aggregate(total="sum(amount)")')
        if emit not in (None, "rows", "updates", "changes"):
            raise TopologyError(f'Aggregate: emit is "rows", "updates" or "changes", not {emit!r}')
        self.emit = emit
        self.specs = [_parse(name, text) for name, text in values.items()]

    @property
    def passes_rows(self) -> bool:
        return self.emit in (None, "rows")

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return {column for s in self.specs for column in s.rule.columns}

    def check(self, schema: pa.Schema, where: str) -> None:
        for spec in self.specs:
            for column in spec.rule.columns:
                if column not in schema.names:
                    known = did_you_mean(column, schema.names)
                    raise UnknownColumn(f"{where}: {spec} needs a column {column!r}; {known}")
            kinds = spec.kinds(schema)
            if kinds and not spec.rule.accepts(kinds):
                raise TopologyError(f"{where}: {spec} does not work on type {', '.join(map(str, kinds))}")

    def check_followed(self, by: str, where: str) -> None:
        if self.emit is None:
            raise TopologyError(
                f'{where}: {by!r} follows it, so say what it gets. emit="updates": a row per key of a batch, with its '
                'new values. emit="rows": the rows that came in, as chains of counts by different keys want them'
            )

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([(s.name, s.rule.result(s.kinds(schema))) for s in self.specs])

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                (s.name + suffix, kind)
                for s in self.specs
                for suffix, kind in zip(s.rule.suffixes, s.rule.types(s.kinds(schema)), strict=True)
            ]
        )

    def begin(self, column: Callable[[str], pa.Array], groups: Groups, n: int) -> Columns:
        """Return the partial state of each of ``n`` groups of rows."""
        out: Columns = []
        for s in self.specs:
            try:
                out += s.rule.begin([column(c) for c in s.rule.columns], groups, n)
            except OperatorError as error:
                raise s.failed(error) from None
        return out

    def merge(self, states: Sequence[pa.Array], groups: Groups, n: int) -> Columns:
        """Merge partial states: rows of equal group become one."""
        out: Columns = []
        for s, own in zip(self.specs, self._apart(states), strict=True):
            try:
                out += s.rule.merge(own, groups, n)
            except OperatorError as error:
                raise s.failed(error) from None
        return out

    def finish(self, states: Sequence[pa.Array]) -> Columns:
        """Return the values that users see, from states."""
        return [s.rule.finish(own) for s, own in zip(self.specs, self._apart(states), strict=True)]

    def _apart(self, states: Sequence[pa.Array]) -> Iterator[Columns]:
        """Yield the state columns of each function."""
        columns = iter(states)
        for s in self.specs:
            yield [next(columns) for _ in s.rule.suffixes]

    def updates(self, schema: pa.Schema, heads: Sequence[pa.Field]) -> pa.Schema:
        values = self.emits(schema)
        if self.emit in ("rows", "changes") and WINDOW_START in (head.name for head in heads):
            raise TopologyError(
                f"emit={self.emit!r} is not for windows: each of them tells its result once; leave it out"
            )
        if self.emit != "changes":
            return pa.schema([*heads, *values])
        old = [pa.field(f"old_{f.name}", f.type) for f in values]
        return pa.schema([*heads, pa.field(CHANGE, pa.string()), *values, *old])

    def merge_entries(self, table: pa.Table, heads: int) -> pa.Table:
        table = table.combine_chunks()
        groups, first = group_rows(table[H1].to_numpy(), table[H2].to_numpy())
        if len(first) == table.num_rows:
            return table
        head = table.select(range(heads)).take(pa.array(first))
        merged = self.merge([one_array(c) for c in table.columns[heads:]], groups, len(first))
        return conformed([*head.columns, *merged], table.schema)

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        """Return entries from values, where these say all, or from the columns of a state, as ``mean.sum``."""
        values: dict[str, pa.DataType | None] = {}
        for spec in self.specs:
            columns = [spec.name + suffix for suffix in spec.rule.suffixes]
            if not spec.rule.keeps_value and not set(columns) & set(rows.column_names):
                raise TopologyError(
                    f"{spec.name}={spec}: its value does not say what it goes on from. Give the columns of its state, "
                    f"{', '.join(columns)}, or weir.State(checkpoint, operator)"
                )
            values |= {column: node.state.field(column).type for column in columns}
        return keyed_entries(node, checked_rows(node, rows, values), clock)

    def instance(self, context: Context) -> Instance:
        if context.node.window is not None:
            return WindowedAggregate(context)
        return ChangesInstance(context) if self.emit == "changes" else AggregateInstance(context)

    def signature(self) -> dict[str, Any]:
        return {
            "kind": "Aggregate",
            "values": [[s.name, s.rule.function, s.rule.arguments] for s in self.specs],
        }

    def accepts(self, saved: dict[str, Any]) -> bool:
        """Go on if every value from before is still there; a new one starts as if it had seen no row."""
        values = self.signature()["values"]
        return saved["kind"] == "Aggregate" and all(value in values for value in saved["values"])

    def describe(self) -> str:
        return f"Aggregate({', '.join(f'{s.name}={s}' for s in self.specs)})"


class Count(Aggregate):
    """Counts the rows of each key."""

    @renamed(name="column")
    def __init__(self, column: str = "count", *, emit: Emit | None = None) -> None:
        super().__init__(emit=emit, **{column: "count"})

    def describe(self) -> str:
        return "Count"


class AggregateInstance(Instance):
    """Reduces rows to partial states per key, and merges them into the saved state once per batch."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.schema = self.stored = self.node.state
        self.width = len(self.node.key)  # columns before those of the state
        self.pieces: list[pa.Table] = []
        self.piece_rows = 0
        self._result: pa.Table | None = None
        self._prior: pa.Table | None = None  # what was saved of this batch's keys
        self._gone: pa.Table | None = None  # keys that have expired

    def push(self, rows: Rows) -> Iterator[Rows]:
        if self.context.passes_on:
            self.report.rows_out += len(rows)
            yield rows
        if len(rows):
            key_hash, key_check = rows.hash(self.node.key), self.node.second_hash(rows)
            groups, first = group_rows(key_hash, key_check)
            self._add(self._table(key_hash[first], key_check[first], self._columns(rows, groups, first)))

    def _columns(self, rows: Rows, groups: Groups, first: Groups) -> list[pa.Array]:
        """Return the key and the state of each group of rows."""
        keys = [rows.column(k).take(pa.array(first)) for k in self.node.key]
        with naming(self.node):
            return [*keys, *self.operator.begin(rows.column, groups, len(first))]

    def _table(self, key_hash: Hashes, key_check: Hashes, columns: list[pa.Array], *times: Times) -> pa.Table:
        """Return partial states from hashes, keys and states, and when their windows start and end."""
        keys = len(self.node.key)
        spans = (pa.array(t).cast(self.schema.field(WINDOW_START).type) for t in times)
        arrays = [pa.array(key_hash), pa.array(key_check), *columns[:keys], *spans, *columns[keys:]]
        return pa.Table.from_arrays(arrays, schema=self._wire)

    @property
    def _wire(self) -> pa.Schema:
        return keyed_schema(self.schema)

    def _add(self, piece: pa.Table) -> None:
        self.pieces.append(piece)
        self.piece_rows += piece.num_rows
        if self.piece_rows > REDUCE_AT and len(self.pieces) > 1:
            self.pieces = [self._reduced()]
            self.piece_rows = self.pieces[0].num_rows

    def absorb(self, partial: pa.RecordBatch) -> None:
        self._add(pa.Table.from_batches([partial]))

    def _reduced(self) -> pa.Table:
        """Return all pieces so far, one row per key."""
        table = pa.concat_tables(self.pieces).combine_chunks()
        return table if len(self.pieces) == 1 else self._merged(table)

    def _merged(self, table: pa.Table) -> pa.Table:
        """Return one entry per key."""
        with naming(self.node):
            return self.operator.merge_entries(table, 2 + self.width)

    def _with(self, saved: pa.Table, at: Groups, table: pa.Table) -> pa.Table:
        """Return entries after those that are saved; ``at`` is which of the entries each of these belongs to."""
        if not saved.num_rows:
            return table
        heads, n = 2 + self.width, table.num_rows
        names = table.column_names[heads:]
        both = pa.concat_tables([saved.select(names), table.select(names)])
        with naming(self.node):
            states = [one_array(c) for c in both.columns]
            merged = self.operator.merge(states, np.concatenate([at, np.arange(n)]), n)
        return conformed([*table.columns[:heads], *merged], table.schema)

    def partials(self) -> pa.Table | None:
        if self.context.step >= self.node.state_level or not self.pieces:
            return None
        table = self._reduced()
        if self.node.splits and self.context.step == self.node.level:
            self.report.pairs += table.num_rows
        return table

    @property
    def ends_quietly(self) -> bool:
        return self.node.passes

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        if context.step != node.state_level:
            return
        written: list[pa.Table] = []
        view = context.view() if self.pieces or node.ttl is not None else None
        if self.pieces:
            assert view is not None
            table = newest(self._reduced())  # in the order of hashes keys are found and written faster
            if not node.splits:
                self.report.pairs += table.num_rows
            columns = [*self._looked_up, *([] if node.ttl is None else [DEADLINE])]
            self._prior, at = view.take(*view.find(*hashes_of(table)), columns)
            living = self._prior
            if node.ttl is not None and living.num_rows:
                alive = living[DEADLINE].to_numpy() > context.clock
                living, at = living.filter(pa.array(alive)), at[alive]
            table = self._with(living, at, table)
            self.report.keys_delta += table.num_rows - self._prior.num_rows
            written.append(self._entries(table))
            if context.want_updates or not self.operator.passes_rows:
                self._result = table.combine_chunks()
        if node.ttl is not None:
            assert view is not None
            self._gone = view.due(context.previous_clock, context.clock)
            if self.pieces:
                self._gone = self._gone.filter(pa.array(~among(self._gone, *hashes_of(table))))
            written.append(self._tombstones(self._gone))
            self.report.keys_delta -= self._gone.num_rows
        self._written = pa.concat_tables(written) if written else None
        out = None if self.operator.passes_rows else self._told()
        if out is not None and out.num_rows:
            self.report.rows_out += out.num_rows
            yield Rows(out)

    @property
    def _looked_up(self) -> list[str]:
        """The columns that are read of what was saved: a key has those of its own at hand."""
        return self.schema.names[self.width :]

    def _deadlines(self, table: pa.Table) -> Times:
        ttl = self.node.ttl
        return np.full(table.num_rows, NEVER if ttl is None else self.context.clock + ttl)

    def _entries(self, table: pa.Table) -> pa.Table:
        return entries(table.select(self.stored.names), *hashes_of(table), deadline=self._deadlines(table))

    def _tombstones(self, table: pa.Table) -> pa.Table:
        return tombstones(*hashes_of(table), self.stored)

    def updates(self) -> pa.RecordBatch | None:
        return self._told() if self.operator.passes_rows else None

    def _told(self) -> pa.RecordBatch | None:
        """Return the keys of this batch and their values."""
        if self._result is None:
            return None
        columns = [*self._keys(self._result), *self._values(self._result)]
        return pa.RecordBatch.from_arrays(columns, schema=self.node.sink_out)

    def _keys(self, table: pa.Table) -> list[pa.Array]:
        return [one_array(table[k]) for k in self.node.key]

    def _values(self, table: pa.Table) -> list[pa.Array]:
        columns = (table[name] for name in self.schema.names[self.width :])
        return list(self.operator.finish([one_array(c) for c in columns]))


class ChangesInstance(AggregateInstance):
    """Emits one row per key that has changed, with the values from before and after."""

    @property
    def _looked_up(self) -> list[str]:
        return [H1, H2, *super()._looked_up]

    def _told(self) -> pa.RecordBatch | None:
        parts = []
        if self._result is not None and self._result.num_rows:
            assert self._prior is not None
            at = positions_among(*hashes_of(self._result), *hashes_of(self._prior))
            old = [c.take(pa.array(at, mask=at < 0)) for c in self._values(self._prior)]
            kinds = pa.array(np.where(at < 0, "insert", "update"))
            parts.append([*self._keys(self._result), kinds, *self._values(self._result), *old])
        if self._gone is not None and self._gone.num_rows:
            old = self._values(self._gone)
            nothing = [pa.nulls(len(c), c.type) for c in old]
            kinds = pa.array(["delete"] * self._gone.num_rows)
            parts.append([*self._keys(self._gone), kinds, *nothing, *old])
        batches = [pa.RecordBatch.from_arrays(columns, schema=self.node.sink_out) for columns in parts]
        return one_batch(batches) if batches else None


class WindowedAggregate(AggregateInstance):
    """Reduces rows to partial states per key and window; closes windows that the watermark has passed.

    Rows are first reduced to the panes of which windows are made; overlapping windows then share that work. Sessions of
    a key that a batch lets overlap, among themselves or with saved ones, become one.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert self.node.window is not None
        self.window: Window = self.node.window
        self.schema = pa.schema([f for f in self.stored if f.name != TIMER.name])  # of windows, not of timers
        self.width += 2 if self.window.session else 1

    def push(self, rows: Rows) -> Iterator[Rows]:
        rows, times = timely(self.context, self.window, rows)
        if len(rows):
            self._add(self._by_session(rows, times) if self.window.session else self._by_window(rows, times))
        return iter(())

    def _by_window(self, rows: Rows, times: Times) -> pa.Table:
        """Return partial states of rows, one per key and window that is still open."""
        key_hash, key2 = rows.hash(self.node.key), self.node.second_hash(rows)
        panes = self.window.panes(times)
        groups, first = group_rows(key_hash, second_hash(key2, panes))
        at, starts = self.window.assign(panes[first], self.context.late_at)
        columns = self._columns(rows, groups, first)
        if self.window.slide is None and len(at) == len(first):
            return self._table(key_hash[first], second_hash(key2[first], starts), columns, starts)
        columns = [column.take(pa.array(at)) for column in columns]
        table = self._table(key_hash[first][at], second_hash(key2[first][at], starts), columns, starts)
        return self._merged(table)  # a window has several panes

    def _by_session(self, rows: Rows, times: Times) -> pa.Table:
        """Return partial states of rows, one per key and session."""
        key_hash, key2 = rows.hash(self.node.key), self.node.second_hash(rows)
        groups, starts, ends = merge_sessions(key_hash, key2, times, times + self.window.size)
        first = _firsts(groups, len(starts))
        columns = self._columns(rows, groups, first)
        return self._table(key_hash[first], second_hash(key2[first], starts), columns, starts, ends)

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
        return self._merged_sessions(self.pieces)[0]

    def _merged_sessions(self, pieces: list[pa.Table]) -> tuple[pa.Table, Groups]:
        """Return sessions of a key that overlap as one, and which of them each row has become a part of."""
        table = pa.concat_tables(pieces).combine_chunks()
        key_hash, key2 = table[H1].to_numpy(), self.node.second_hash(table)
        starts, ends = (table[name].cast(pa.int64()).to_numpy() for name in (WINDOW_START, WINDOW_END))
        groups, starts, ends = merge_sessions(key_hash, key2, starts, ends)
        first = _firsts(groups, len(starts))
        keys = [key.take(pa.array(first)) for key in self._keys(table)]
        states = [one_array(c) for c in table.columns[2 + self.width :]]
        with naming(self.node):
            columns = [*keys, *self.operator.merge(states, groups, len(first))]
        merged = self._table(key_hash[first], second_hash(key2[first], starts), columns, starts, ends)
        return merged, groups

    def _deadlines(self, table: pa.Table) -> Times:
        """Return when windows end."""
        if self.window.session:
            return table[WINDOW_END].cast(pa.int64()).to_numpy()
        return self.window.ends(table[WINDOW_START].cast(pa.int64()).to_numpy())

    def finish(self) -> Iterator[Rows]:
        context = self.context
        if context.step != self.node.state_level:
            return
        view = context.view()
        written: list[pa.Table] = []
        since, mark = (NO_TIME if m is None else m for m in (context.previous_watermark, context.watermark))
        touched = before = self._wire.empty_table()
        if self.pieces:
            touched, before = self._with_saved(view, self._reduced())
            self.report.pairs += touched.num_rows
            written += [self._tombstones(before), self._entries(touched)]
            self.report.keys_delta += touched.num_rows - before.num_rows
        ended = self._deadlines(touched) <= mark
        due = states_in(view.due(since, mark)).select(self._wire.names)
        # saved windows that this batch has not changed
        due = due.filter(pa.array(~among(due, *hashes_of(before))))
        closed = pa.concat_tables([due, touched.filter(pa.array(ended))]).combine_chunks()
        written.append(self._tombstones(closed))
        self.report.keys_delta -= closed.num_rows
        if self.window.early is not None:
            written += self._early(view, touched.filter(pa.array(~ended)), before, closed, self.window.early)
        self._written = pa.concat_tables(written)
        if closed.num_rows:
            self.report.rows_out += closed.num_rows
            yield Rows(self._out(closed, True))

    def _with_saved(self, view: StateView, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return this batch's windows merged with what is saved of them, and the entries that they replace."""
        if self.window.session:
            saved = states_in(view.all_of(np.unique(table[H1].to_numpy())))
        else:
            table = newest(table)
            saved, at = view.take(*view.find(*hashes_of(table)))
        saved = saved.select(self._wire.names)
        if not saved.num_rows:
            return table, saved
        if not self.window.session:
            return self._with(saved, at, table), saved
        merged, groups = self._merged_sessions([saved, table])
        changed = np.zeros(merged.num_rows, np.bool_)
        changed[groups[saved.num_rows :]] = True
        return merged.filter(pa.array(changed)), saved.filter(pa.array(changed[groups[: saved.num_rows]]))

    def _early(
        self, view: StateView, touched: pa.Table, replaced: pa.Table, closed: pa.Table, early: int
    ) -> list[pa.Table]:
        """Tell the sink of windows that have changed since they were last told, if it is time; return timers."""
        context = self.context
        rung = timers_in(view.due(context.previous_clock, context.clock), EARLY)
        starts = rung[WINDOW_START].cast(pa.int64()).to_numpy()
        r1, r2 = rung[H1].to_numpy(), second_hash(self.node.second_hash(rung), starts)
        key_hash, key_check = hashes_of(touched)
        now = among(touched, r1, r2)
        others, _ = view.take(*view.find(r1, r2))
        others = others.select(self._wire.names)
        for windows in (touched, closed, replaced):
            others = others.filter(pa.array(~among(others, *hashes_of(windows))))
        told = pa.concat_tables([touched.filter(pa.array(now)), others]).combine_chunks()
        if told.num_rows and context.want_updates:
            context.to_sink(self._out(told, False))
        clock, at = np.full(len(key_hash), EARLY), np.zeros(len(key_hash), np.int64)
        timers = second_hash(key_check, clock, at)
        new = ~now & (view.find(key_hash, timers)[0] < 0)
        fresh = touched.filter(pa.array(new))
        heads = [one_array(fresh[name]) for name in self.schema.names[: self.width]]
        deadline = np.full(fresh.num_rows, context.clock + early)
        self.report.keys_delta += fresh.num_rows - rung.num_rows
        return [
            self._tombstones(rung),
            timer_entries(heads, key_hash[new], timers[new], clock[new], at[new], deadline, self.stored),
        ]

    def _entries(self, table: pa.Table) -> pa.Table:
        return super()._entries(self._as_stored(table))

    def _out(self, table: pa.Table, closed: bool) -> pa.RecordBatch:
        """Return windows as a sink gets them."""
        start = one_array(table[WINDOW_START])
        heads = [*self._keys(table), start, pa.array(self._deadlines(table)).cast(start.type)]
        if self.window.early is not None:
            heads.append(pa.array(np.full(table.num_rows, closed)))
        return pa.RecordBatch.from_arrays([*heads, *self._values(table)], schema=self.node.sink_out)


def _firsts(groups: Groups, n: int) -> Groups:
    """Return the first row of each of ``n`` groups."""
    first = np.empty(n, np.int64)
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)  # of equal groups the last assignment stays
    return first


def _parse(name: str, value: Any) -> _Spec:
    if isinstance(value, AggregateFunction):
        return _Spec(name, value)
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", value) if isinstance(value, str) else None
    if not match:
        raise TopologyError(f'Aggregate: cannot read {name}={value!r}; write it like {name}="sum(column)"')
    function = match[1].lower()
    arguments = [part.strip() for part in (match[2] or "").split(",")]
    arguments = [] if arguments in ([""], ["*"]) else arguments
    if function not in FUNCTIONS:
        raise TopologyError(f"Aggregate: {name}={value!r}: {did_you_mean(function, FUNCTIONS)}")
    _, allowed, written = FUNCTIONS[function]
    if len(arguments) not in allowed or not all(arguments):
        missing = "" if arguments else " needs a column"
        raise TopologyError(f"Aggregate: {name}={value!r}{missing}: write it as {written}")
    try:
        return _Spec(name, named(function, *arguments))
    except TopologyError as error:
        raise TopologyError(f"Aggregate: {name}={value!r}: {error}") from None
