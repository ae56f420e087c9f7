"""A user's function with timers: called when they go off, also while no rows come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.hashing import SECOND_SEED, hash_columns
from weir.operators.instance import NO_TIME, Context, one_array
from weir.operators.process.process_instance import Done, ProcessInstance, emitted_batch
from weir.operators.time_limit import TimeLimit
from weir.operators.timers import (
    CLOCKS,
    EVENT,
    PROCESSING,
    TIMER,
    Timer,
    Timers,
    from_micros,
    timer_entries,
    timer_hash,
    timers_in,
)
from weir.state.index import group_rows
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView

Hashes = NDArray[np.uint64]
_NAMES = {number: name for name, number in CLOCKS.items()}


class TimedProcess(ProcessInstance):
    """Calls ``on_timer`` for what is due, then ``process`` for rows; keeps the timers that both have set."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        self._fired: dict[
            tuple[int, int], bytes
        ] = {}  # states of keys whose timers have gone off in this step
        self._timer_changes: dict[
            tuple[int, int], bool
        ] = {}  # timers that this step has changed → whether they are set
        self._set: dict[int, Timers] = {}  # key's number → timers that its call has set

    def _timers(self) -> Timers:
        return Timers(list(self.operator.timers), self.context.watermark, self.context.clock)

    def _process(self, number: int, key: Any, rows: Sequence[Any], state: Any) -> Iterable[Any] | None:
        timers = self._set[number] = self._timers()
        return self.operator.process(key, rows, state, timers, *self.extra)

    def _prior(self, view: StateView, key_hash: Hashes, key_check: Hashes) -> dict[int, bytes]:
        prior = super()._prior(view, key_hash, key_check)
        if self._fired:
            for number, key in enumerate(zip(key_hash.tolist(), key_check.tolist(), strict=True)):
                if key in self._fired:
                    prior[number] = self._fired[key]
        return prior

    def _wake(self, woken: list[Done]) -> list[pa.Table]:
        written = super()._wake(woken)
        due = self._due()
        if not due.num_rows:
            return written
        keys = [one_array(due[k]) for k in self.node.key]
        d1, d2 = due[H1].to_numpy(), hash_columns(keys, SECOND_SEED)
        groups, first = group_rows(d1, d2)
        keys = [k.take(pa.array(first)) for k in keys]
        key_hash, key_check = d1[first], d2[first]
        self._timer_changes.update(dict.fromkeys(zip(d1.tolist(), due[H2].to_pylist(), strict=True), False))
        written.append(tombstones(d1, due[H2].to_numpy(), self.node.state))
        self.report.keys_delta -= due.num_rows
        prior = self._prior(self.context.view(), key_hash, key_check)
        fired = self._fire(self._by_key_and_time(due, groups, len(first)), keys, prior)
        woken += fired
        at = [d.number for d in fired]
        keys, key_hash, key_check = (
            [k.take(pa.array(at, pa.int64())) for k in keys],
            key_hash[at],
            key_check[at],
        )
        self._fired = {
            (a, b): d.state for a, b, d in zip(key_hash.tolist(), key_check.tolist(), fired, strict=True)
        }
        written.append(
            entries(
                self._data(keys, self.node.key, [d.state for d in fired]),
                key_hash,
                key_check,
                deadline=self._deadlines(len(at)),
            )
        )
        self.report.keys_delta += len(at) - sum(number in prior for number in at)
        return written + self._follow_up(fired, keys, key_hash, key_check)

    def _due(self) -> pa.Table:
        """Return the timers whose time has come."""
        context, view = self.context, self.context.view()
        before = NO_TIME if context.previous_watermark is None else context.previous_watermark
        mark = NO_TIME if context.watermark is None else context.watermark
        parts = [timers_in(view.due(context.previous_clock, context.clock), PROCESSING)]
        if mark > before:
            parts.append(timers_in(view.due(before, mark), EVENT))
        return pa.concat_tables(parts).combine_chunks()

    def _by_key_and_time(self, due: pa.Table, groups: NDArray[np.int64], n: int) -> list[list[Timer]]:
        """Return the timers of each key that are due, in the order of their times."""
        timers = one_array(due[TIMER.name])
        times = pc.struct_field(timers, "at").to_numpy(zero_copy_only=False)
        clocks = pc.struct_field(timers, "clock").to_numpy(zero_copy_only=False)
        out: list[list[Timer]] = [[] for _ in range(n)]
        for i in np.lexsort((clocks, times)).tolist():
            out[groups[i]].append(Timer(from_micros(int(times[i])), _NAMES[int(clocks[i])]))
        return out

    def _fire(self, due: list[list[Timer]], keys: list[pa.Array], prior: Mapping[int, bytes]) -> list[Done]:
        """Call the user's function for each timer; a key that fails keeps the state it had."""
        names = [k.to_pylist() for k in keys]
        labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
        fired: list[Done] = []
        for number, (key, timers) in enumerate(zip(labels, due, strict=True)):
            handle = self._timers()
            try:
                state = self._load(prior[number]) if number in prior else self._new()
                out: list[Any] = []
                with TimeLimit(self.node.declared.timeout):
                    for timer in timers:
                        out += self.operator.on_timer(key, timer, state, handle, *self.extra) or ()
                emitted_batch(
                    self.node.name, self.node.rows_out, out
                )  # rows that do not fit the output fail here, with their key at hand
                fired.append(Done(number, key, [], out, self._save(state)))
                self._set[number] = handle
            except Exception as error:
                lost = [{"timer": timer._asdict()} for timer in timers]
                self._failed(key, lost, lost[0], error)
        return fired

    def _follow_up(
        self, processed: list[Done], keys: list[pa.Array], key_hash: Hashes, key_check: Hashes
    ) -> list[pa.Table]:
        """Return the timers that calls have set, and tombstones of those that they have deleted."""
        changes = [
            (position, clock, at, wanted)
            for position, done in enumerate(processed)
            for (clock, at), wanted in self._set.get(done.number, self._timers()).changes.items()
        ]
        self._set = {}
        if not changes:
            return []
        position, clock, at = (np.array(c, np.int64) for c in list(zip(*changes, strict=True))[:3])
        wanted = np.array([change[3] for change in changes])
        key_hash, timers = key_hash[position], timer_hash(key_check[position], clock, at)
        there = self.context.view().find(key_hash, timers)[0] >= 0
        for i, timer in enumerate(zip(key_hash.tolist(), timers.tolist(), strict=True)):
            there[i] = self._timer_changes.get(timer, there[i])
            self._timer_changes[timer] = bool(wanted[i])
        new, gone = wanted & ~there, ~wanted & there
        self.report.keys_delta += int(new.sum()) - int(gone.sum())
        heads = [k.take(pa.array(position[new])) for k in keys]
        mark = NO_TIME if self.context.watermark is None else self.context.watermark
        passed = np.where(clock == EVENT, mark, self.context.clock)
        deadline = np.maximum(at, passed + 1)[
            new
        ]  # time that has passed already comes with the next that does
        schema = self.node.state
        return [
            tombstones(key_hash[gone], timers[gone], schema),
            timer_entries(heads, key_hash[new], timers[new], clock[new], at[new], deadline, schema),
        ]
