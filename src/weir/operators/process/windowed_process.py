"""A user's function in event-time windows: a state per key and window, and a call when a window closes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.hashing import SECOND_SEED, hash_columns
from weir.operators.instance import NO_TIME, Context, among, one_array
from weir.operators.process.process_instance import STATE, Done, ProcessInstance
from weir.operators.timers import WindowSpan, second_hash
from weir.operators.windows import WINDOW_END, WINDOW_START, Window, merge_sessions, timely
from weir.rows import Rows
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView

Hashes = NDArray[np.uint64]


class WindowedProcess(ProcessInstance):
    """Calls ``process`` for each key and window that has rows, and ``closed`` for windows that end."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        assert context.node.window is not None
        self.window: Window = context.node.window
        self.times: list[
            NDArray[np.int64]
        ] = []  # of each batch of rows: their windows' starts; in sessions, times
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}  # hashes of a window → its start and end
        self._saved: pa.Table | None = (
            None  # sessions of this step's keys, and which one each becomes a part of
        )
        self._part_of: list[tuple[int, int]] = []

    def push(self, rows: Rows) -> Iterator[Rows]:
        rows, times = timely(self.context, self.window, rows)
        if not self.window.session:
            at, times = self.window.assign(times, self.context.late_at)
            rows = rows.select(at)
        if len(rows):
            self.batches.append(rows.to_batch(self.node.input))
            self.times.append(times)
        return iter(())

    def _hashes(self, rows: Rows) -> tuple[Hashes, Hashes]:
        key_hash, key2 = rows.hash(self.node.key), rows.second_hash(self.node.key)
        starts = np.concatenate(self.times)
        if self.window.session:
            starts, ends = self._sessions(key_hash, key2, starts)
        else:
            ends = starts + self.window.size
        key_check = second_hash(key2, starts)
        for i in np.unique(key_check, return_index=True)[1].tolist():
            self._spans[int(key_hash[i]), int(key_check[i])] = int(starts[i]), int(ends[i])
        return key_hash, key_check

    def _sessions(
        self, key_hash: Hashes, key2: Hashes, times: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and end of the session of each row, as they are with what is saved."""
        saved = self.context.view().all_of(np.unique(key_hash))
        s1, s2 = saved[H1].to_numpy(), hash_columns([one_array(saved[k]) for k in self.node.key], SECOND_SEED)
        spans = [saved[name].cast(pa.int64()).to_numpy() for name in (WINDOW_START, WINDOW_END)]
        groups, starts, ends = merge_sessions(
            np.concatenate([s1, key_hash]),
            np.concatenate([s2, key2]),
            np.concatenate([spans[0], times]),
            np.concatenate([spans[1], times + self.window.size]),
        )
        n = len(s1)
        self._saved = saved
        self._part_of = list(zip(s1.tolist(), second_hash(s2, starts[groups[:n]]).tolist(), strict=True))
        return starts[groups[n:]], ends[groups[n:]]

    def _prior(self, view: StateView, key_hash: Hashes, key_check: Hashes) -> dict[int, bytes]:
        if self._saved is None:
            return super()._prior(view, key_hash, key_check)
        numbers = {
            key: number for number, key in enumerate(zip(key_hash.tolist(), key_check.tolist(), strict=True))
        }
        prior: dict[int, bytes] = {}
        names = [self._saved[k].to_pylist() for k in self.node.key]
        order = np.argsort(self._saved[WINDOW_START].cast(pa.int64()).to_numpy(), kind="stable")
        states = self._saved[STATE].to_pylist()
        for i in order.tolist():
            number = numbers.get(self._part_of[i])
            if number is None:
                continue  # a session that no row of this batch has touched
            if number in prior:
                try:
                    one, other = self._load(prior[number]), self._load(states[i])
                    prior[number] = self._save(self.operator.merge(one, other))
                except Exception as error:
                    key = tuple(name[i] for name in names)
                    lost = [{"session state": self._plain(states[i])}]
                    self._failed(key[0] if len(key) == 1 else key, lost, lost[0], error)
            else:
                prior[number] = states[i]
        return prior

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        view = context.view()
        written: list[pa.Table] = []
        closed: list[Done] = []
        processed: list[Done] = []
        mark = NO_TIME if context.watermark is None else context.watermark
        touched: tuple[Hashes, Hashes] = np.empty(0, np.uint64), np.empty(0, np.uint64)
        if self.batches:
            keys, key_hash, key_check, calls = self._by_key()
            self.report.pairs += len(key_hash)
            processed = self._call_each(calls, self._prior(view, key_hash, key_check), key_hash, key_check)
            if node.declared.on_error == "divert":  # before states are saved: rows that do not fit the output
                self._emitted([], processed)
            at = [d.number for d in processed]
            touched = key_hash[at], key_check[at]
            written += self._rewritten(
                view, [k.take(pa.array(at, pa.int64())) for k in keys], touched, processed
            )
        if context.step == node.level:
            spans = [self._spans[key] for key in zip(*(h.tolist() for h in touched), strict=True)]
            over = [i for i, (_, end) in enumerate(spans) if end <= mark]
            self._close([(processed[i].key, *spans[i], processed[i].state) for i in over], closed)
            written.append(tombstones(touched[0][over], touched[1][over], node.state))
            written += self._close_saved(view, touched, mark, closed)
            self.report.keys_delta -= len(over)
        self._written = pa.concat_tables(written) if written else None
        yield from self._counted(self._emitted(closed, processed))

    def _rewritten(
        self, view: StateView, keys: list[pa.Array], windows: tuple[Hashes, Hashes], processed: list[Done]
    ) -> list[pa.Table]:
        """Return the entries of windows that have been processed, after tombstones of what they replace."""
        key_hash, key_check = windows
        schema, saved = self.node.state, self._saved
        spans = [self._spans[key] for key in zip(key_hash.tolist(), key_check.tolist(), strict=True)]
        kind = schema.field(WINDOW_START).type
        times = [pa.array([span[i] for span in spans], pa.int64()) for i in (0, 1)]
        heads = [*keys, *(t.cast(kind) for t in times[: 2 if self.window.session else 1])]
        fresh = entries(
            self._data(heads, schema.names[: len(heads)], [d.state for d in processed]),
            key_hash,
            key_check,
            deadline=times[1].to_numpy(),
        )
        if saved is None:
            replaced = int((view.find(key_hash, key_check)[0] >= 0).sum())
            self.report.keys_delta += len(key_hash) - replaced
            return [fresh]
        kept = set(zip(key_hash.tolist(), key_check.tolist(), strict=True))
        part = pa.array([key in kept for key in self._part_of], pa.bool_())
        gone = saved.filter(part)
        self.report.keys_delta += len(key_hash) - gone.num_rows
        return [tombstones(gone[H1].to_numpy(), gone[H2].to_numpy(), schema), fresh]

    def _close_saved(
        self, view: StateView, touched: tuple[Hashes, Hashes], mark: int, closed: list[Done]
    ) -> list[pa.Table]:
        """Close saved windows that end now, but for those that this step has touched."""
        before = self.context.previous_watermark
        due = view.due(NO_TIME if before is None else before, mark)
        due = due.filter(pa.array(~among(due, *touched)))
        if self._saved is not None:
            kept = set(zip(*(h.tolist() for h in touched), strict=True))
            part = pa.array([key in kept for key in self._part_of], pa.bool_())
            replaced = self._saved.filter(part)
            due = due.filter(pa.array(~among(due, replaced[H1].to_numpy(), replaced[H2].to_numpy())))
        if not due.num_rows:
            return []
        self.report.keys_delta -= due.num_rows
        names = [due[k].to_pylist() for k in self.node.key]
        labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
        starts = due[WINDOW_START].cast(pa.int64()).to_pylist()
        if self.window.session:
            ends = due[WINDOW_END].cast(pa.int64()).to_pylist()
        else:
            ends = [start + self.window.size for start in starts]
        self._close(list(zip(labels, starts, ends, due[STATE].to_pylist(), strict=True)), closed)
        return [tombstones(due[H1].to_numpy(), due[H2].to_numpy(), self.node.state)]

    def _close(self, windows: list[tuple[Any, int, int, bytes]], closed: list[Done]) -> None:
        """Tell the user's code of windows that close: key, start, end and state."""
        if not self.operator.has("closed"):
            return
        kind = self.node.state.field(WINDOW_START).type
        for key, start, end, state in windows:
            try:
                span = WindowSpan(*(pa.scalar(t, pa.int64()).cast(kind).as_py() for t in (start, end)))
                out = self.operator.closed(key, span, self._load(state))
                closed.append(Done(-1, key, [], [] if out is None else list(out), state))
            except Exception as error:
                self._failed(key, [{"window state": self._plain(state)}], None, error)
