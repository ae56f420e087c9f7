"""A user's function in event-time windows: a state per key and window, and a call when a window closes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.operators.instance import NO_TIME, Context, among, one_array
from weir.operators.process.process_instance import STATE, Calls, Keys, ProcessInstance
from weir.operators.timers import WindowSpan, second_hash
from weir.operators.windows import WINDOW_END, WINDOW_START, Window, merge_sessions, timely
from weir.rows import Rows
from weir.state.index import positions_among
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView
from weir.values import to_python

Hashes = NDArray[np.uint64]
Times = NDArray[np.int64]


class WindowedProcess(ProcessInstance):
    """Calls ``process`` for each key and window that has rows, and ``closed`` for windows that end."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        assert context.node.window is not None
        self.window: Window = context.node.window
        self.times: list[Times] = []  # of each batch of rows: their windows' starts; in sessions, times
        self._spans: tuple[Times, Times] = (
            np.empty(0, np.int64),
            np.empty(0, np.int64),
        )  # of each row's window
        # sessions of this step's keys that are saved, and the hashes of those that they become parts of
        self._sessions: tuple[pa.Table, Hashes, Hashes] | None = None

    def push(self, rows: Rows) -> Iterator[Rows]:
        rows, times = timely(self.context, self.window, rows)
        if not self.window.session:
            at, times = self.window.assign(times, self.context.late_at)
            rows = rows.select(at)
        if len(rows):
            self.times.append(times)
        return super().push(rows)

    def _hashes(self, rows: Rows) -> tuple[Hashes, Hashes]:
        key_hash, key2 = rows.hash(self.node.key), self.node.second_hash(rows)
        starts = np.concatenate(self.times)
        if self.window.session:
            starts, ends = self._merge_sessions(key_hash, key2, starts)
        else:
            ends = self.window.ends(starts)
        self._spans = starts, ends
        return key_hash, second_hash(key2, starts)

    def _merge_sessions(self, key_hash: Hashes, key2: Hashes, times: Times) -> tuple[Times, Times]:
        """Return start and end of the session of each row, as they are with what is saved."""
        saved = self.context.view().all_of(np.unique(key_hash))
        s1, s2 = saved[H1].to_numpy(), self.node.second_hash(saved)
        spans = [saved[name].cast(pa.int64()).to_numpy() for name in (WINDOW_START, WINDOW_END)]
        groups, starts, ends = merge_sessions(
            np.concatenate([s1, key_hash]),
            np.concatenate([s2, key2]),
            np.concatenate([spans[0], times]),
            np.concatenate([spans[1], times + self.window.size]),
        )
        n = len(s1)
        self._sessions = saved, s1, second_hash(s2, starts[groups[:n]])
        return starts[groups[n:]], ends[groups[n:]]

    def _prior(self, view: StateView, keys: Keys) -> list[bytes | None]:
        if self._sessions is None:
            return super()._prior(view, keys)
        saved, s1, s2 = self._sessions
        numbers = positions_among(s1, s2, keys.key_hash, keys.key_check)
        prior: list[bytes | None] = [None] * len(keys)
        states, load = saved[STATE].to_pylist(), self._type.load
        order = np.argsort(saved[WINDOW_START].cast(pa.int64()).to_numpy(), kind="stable")
        for i, number in zip(order.tolist(), numbers[order].tolist(), strict=True):
            if number < 0:
                continue  # a session that no row of this batch has touched
            before = prior[number]
            if before is None:
                prior[number] = states[i]
                continue
            try:
                prior[number] = self._type.save(self.operator.merge(load(before), load(states[i])))
            except Exception as error:
                lost = [{"session state": self._plain(states[i])}]
                self._failed(keys.labels[number], lost, lost[0], error)
        return prior

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        view = context.view()
        written: list[pa.Table] = []
        made: list[Calls] = []
        touched: tuple[Hashes, Hashes] = np.empty(0, np.uint64), np.empty(0, np.uint64)
        if self.batches:
            with self.spending("encoding"):
                keys = self._by_key()
            self.report.pairs += len(keys)
            with self.spending("fetching"):
                prior = self._prior(view, keys)
            calls = self._process_each(keys, prior)
            if node.declared.on_error == "divert":  # before states are saved: rows that do not fit the output
                self._emitted(calls)
            made.append(calls)
            columns, *touched = keys.some(calls.numbers)  # type: ignore[assignment]
            spans = [times[keys.leads[calls.numbers]] for times in self._spans]
            with self.spending("writing"):
                written += self._rewritten(view, columns, touched, spans, calls.states)
        if context.step == node.level:
            mark = NO_TIME if context.watermark is None else context.watermark
            if made:
                over = np.flatnonzero(spans[1] <= mark)
                labels, states = (
                    [of[i] for i in over.tolist()]
                    for of in ([keys.labels[n] for n in calls.numbers], calls.states)
                )
                made.insert(0, self._close(labels, spans[0][over], spans[1][over], states))
                written.append(tombstones(touched[0][over], touched[1][over], node.state))
                self.report.keys_delta -= len(over)
            written += self._close_saved(view, touched, mark, made)
        self._written = pa.concat_tables(written) if written else None
        with self.spending("encoding"):
            emitted = self._emitted(*made)
        yield from self._counted(emitted)

    def _rewritten(
        self,
        view: StateView,
        keys: list[pa.Array],
        windows: tuple[Hashes, Hashes],
        spans: list[Times],
        states: list[bytes],
    ) -> list[pa.Table]:
        """Return the entries of windows that have been processed, after tombstones of what they replace."""
        key_hash, key_check = windows
        schema = self.node.state
        kind = schema.field(WINDOW_START).type
        times = [pa.array(t).cast(kind) for t in spans]
        heads = [*keys, *times[: 2 if self.window.session else 1]]
        data = self._data(heads, schema.names[: len(heads)], states)
        fresh = entries(data, key_hash, key_check, deadline=spans[1])
        if self._sessions is None:
            replaced = int((view.find(key_hash, key_check)[0] >= 0).sum())
            self.report.keys_delta += len(key_hash) - replaced
            return [fresh]
        gone = self._replaced(windows)
        self.report.keys_delta += len(key_hash) - gone.num_rows
        return [tombstones(gone[H1].to_numpy(), gone[H2].to_numpy(), schema), fresh]

    def _replaced(self, windows: tuple[Hashes, Hashes]) -> pa.Table:
        """Return the saved sessions that have become parts of these windows."""
        assert self._sessions is not None
        saved, s1, s2 = self._sessions
        return saved.filter(pa.array(positions_among(s1, s2, *windows) >= 0))

    def _close_saved(
        self, view: StateView, touched: tuple[Hashes, Hashes], mark: int, made: list[Calls]
    ) -> list[pa.Table]:
        """Close saved windows that end now, but for those that this step has touched."""
        before = self.context.previous_watermark
        due = view.due(NO_TIME if before is None else before, mark)
        due = due.filter(pa.array(~among(due, *touched)))
        if self._sessions is not None:
            replaced = self._replaced(touched)
            due = due.filter(pa.array(~among(due, replaced[H1].to_numpy(), replaced[H2].to_numpy())))
        if not due.num_rows:
            return []
        self.report.keys_delta -= due.num_rows
        key_hash, key_check = due[H1].to_numpy(), due[H2].to_numpy()
        labels = Keys([one_array(due[k]) for k in self.node.key], key_hash, key_check).labels
        starts = due[WINDOW_START].cast(pa.int64()).to_numpy()
        ends = self.window.ends(starts)
        if self.window.session:
            ends = due[WINDOW_END].cast(pa.int64()).to_numpy()
        made.insert(0, self._close(labels, starts, ends, due[STATE].to_pylist()))
        return [tombstones(key_hash, key_check, self.node.state)]

    def _close(self, labels: list[Any], starts: Times, ends: Times, states: list[bytes]) -> Calls:
        """Tell the user's code of windows that close."""
        calls = Calls(labels, lambda number: [{"window state": self._plain(states[number])}])
        if not self.operator.has("closed"):
            return calls
        kind = self.node.state.field(WINDOW_START).type
        spans = map(WindowSpan, *(to_python(pa.array(times).cast(kind)) for times in (starts, ends)))
        for number, (key, span, state) in enumerate(zip(labels, spans, states, strict=True)):
            try:
                out = self.operator.closed(key, span, self._type.load(state))
                calls.add(number, state, None if out is None else list(out))
            except Exception as error:
                self._failed(key, calls.lost(number), None, error)
        return calls
