"""A user's function with timers: called when they go off, also while no rows come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.operators.instance import NO_TIME, Context, one_array
from weir.operators.process.process_instance import Calls, Keys, ProcessInstance
from weir.operators.timers import (
    CLOCKS,
    EVENT,
    PROCESSING,
    TIMER,
    Timer,
    Timers,
    from_micros,
    second_hash,
    timer_entries,
    timers_in,
)
from weir.state.index import group_rows, positions_among
from weir.state.segment import H1, H2, tombstones
from weir.state.view import StateView

Hashes = NDArray[np.uint64]
_NAMES = {number: name for name, number in CLOCKS.items()}
_NONE = np.empty(0, np.uint64)


class TimedProcess(ProcessInstance):
    """Calls ``on_timer`` for what is due, then ``process`` for rows; keeps the timers that both have set."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        self._timers = Timers(list(operator.timers), context.watermark, context.clock)
        self._set: dict[int, Timers] = {}  # key's number → timers that its call has set
        # keys whose timers have gone off in this step, and their states since
        self._fired: tuple[Hashes, Hashes, list[bytes]] = _NONE, _NONE, []
        # timers that this step has changed, and whether they are set now
        self._changed: tuple[Hashes, Hashes, NDArray[np.bool_]] = _NONE, _NONE, np.empty(0, np.bool_)

    def _arguments(self, numbers: Sequence[int]) -> list[Iterable[Any]]:
        timers = [self._timers.again() for _ in numbers]
        self._set.update(zip(numbers, timers, strict=True))
        return [timers, *super()._arguments(numbers)]

    def _prior(self, view: StateView, keys: Keys) -> list[bytes | None]:
        prior = super()._prior(view, keys)
        key_hash, key_check, states = self._fired
        if states:
            at = positions_among(keys.key_hash, keys.key_check, key_hash, key_check)
            for number in np.flatnonzero(at >= 0).tolist():
                prior[number] = states[at[number]] or (b"" if self.operator.state is None else None)
        return prior

    def _wake(self) -> tuple[list[Calls], list[pa.Table]]:
        woken, written = super()._wake()
        due = self._due()
        if not due.num_rows:
            return woken, written
        d1, own = due[H1].to_numpy(), due[H2].to_numpy()
        d2 = self.node.second_hash(due)
        groups, first = group_rows(d1, d2)
        keys = Keys([one_array(due[k]).take(pa.array(first)) for k in self.node.key], d1[first], d2[first])
        self._changed = d1, own, np.zeros(len(own), np.bool_)
        written.append(tombstones(d1, own, self.node.state))
        self.report.keys_delta -= due.num_rows
        prior = self._prior(self.context.view(), keys)
        fired = self._fire(self._by_key_and_time(due, groups, len(first)), keys, prior)
        self._emitted(fired)  # rows that do not fit the output: their keys keep the state they had
        _, key_hash, key_check = keys.some(fired.numbers)
        self._fired = key_hash, key_check, fired.states
        self.report.keys_delta += sum(prior[number] is None for number in fired.numbers)
        written.append(self._saved(keys, fired, prior))
        return [*woken, fired], written + self._follow_up(keys, fired)

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
        order = np.lexsort((clocks, times))
        out: list[list[Timer]] = [[] for _ in range(n)]
        ordered = zip(*(column[order].tolist() for column in (groups, times, clocks)), strict=True)
        for group, time, clock in ordered:
            out[group].append(Timer(from_micros(time), _NAMES[clock]))
        return out

    def _fire(self, due: list[list[Timer]], keys: Keys, prior: Sequence[bytes | None]) -> Calls:
        """Call the user's function for each timer; a key that fails keeps the state it had."""

        def lost(number: int) -> list[Any]:
            return [{"timer": timer._asdict()} for timer in due[number]]

        def on_timers(key: Any, timers: list[Timer], state: Any, *more: Any) -> list[Any]:
            out: list[Any] = []
            for timer in timers:
                out += self.operator.on_timer(key, timer, state, *more) or ()
            return out

        calls = Calls(keys.labels, lost, lambda number, error: lost(number)[0])
        self._call_each(on_timers, lambda some: due[some.start : some.stop], prior, calls)
        return calls

    def _follow_up(self, keys: Keys, calls: Calls) -> list[pa.Table]:
        """Return the timers that calls have set, and tombstones of those that they have deleted."""
        handles, self._set = self._set, {}
        changes: tuple[list[int], list[tuple[int, int]], list[bool]] = [], [], []
        for n in calls.numbers:
            changed = handles[n].changes
            changes[0].extend([n] * len(changed))
            changes[1].extend(changed)
            changes[2].extend(changed.values())
        if not changes[0]:
            return []
        number, wanted = np.array(changes[0]), np.array(changes[2])
        clock, at = np.ascontiguousarray(np.array(changes[1], np.int64).T)
        key_hash, timers = keys.key_hash[number], second_hash(keys.key_check[number], clock, at)
        there = self.context.view().find(key_hash, timers)[0] >= 0
        if len(self._changed[2]):
            earlier = positions_among(key_hash, timers, *self._changed[:2])
            there = np.where(earlier >= 0, self._changed[2][earlier], there)
        both = zip(self._changed, (key_hash, timers, wanted), strict=True)
        self._changed = tuple(np.concatenate(pair) for pair in both)  # type: ignore[assignment]
        new, gone = wanted & ~there, ~wanted & there
        self.report.keys_delta += int(new.sum()) - int(gone.sum())
        heads = [k.take(pa.array(number[new])) for k in keys.columns]
        mark = NO_TIME if self.context.watermark is None else self.context.watermark
        passed = np.where(clock == EVENT, mark, self.context.clock)
        # time that has passed already comes with the next that does
        deadline = np.maximum(at, passed + 1)[new]
        schema = self.node.state
        return [
            tombstones(key_hash[gone], timers[gone], schema),
            timer_entries(heads, key_hash[new], timers[new], clock[new], at[new], deadline, schema),
        ]
