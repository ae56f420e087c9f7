"""Timers: as a user's Process sets and deletes them, and as entries of saved state that come due by a clock.

A timer is an entry beside that of its key's state, or of a window: it has the same first hash, so it moves and scales
with its key, a second hash of its own, and a deadline. What is due is found by deadline, without a scan. Deadlines of
different clocks share one column; which clock a timer goes by is in the timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.errors import OperatorError
from weir.hashing import SECOND_SEED, hash_columns
from weir.state.segment import entries

# the clocks: event time, processing time, early results by processing time
EVENT, PROCESSING, EARLY = 1, 2, 3
TIMER = pa.field("__alarm", pa.struct([("clock", pa.int8()), ("at", pa.int64())]))
Hashes = NDArray[np.uint64]
CLOCKS = {"event": EVENT, "processing": PROCESSING}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Timer(NamedTuple):
    """A timer: when it was to go off, and by which clock."""

    time: datetime
    clock: str


class WindowSpan(NamedTuple):
    """When a window starts and ends."""

    start: datetime
    end: datetime


class Timers:
    """The timers of one key: set them, delete them, and see what time it is.

    A timer is known by its time and clock. Set twice, it goes off once; deleted, it does not. One that is set in the
    past goes off when time next advances. Times without a zone are UTC.

    >>> timers = Timers(["processing"], watermark=None, now=60_000_000)
    >>> timers.set(timers.now + timedelta(seconds=30))
    >>> timers.changes
    {(2, 90000000): True}
    """

    __slots__ = ("_clocks", "_only", "changes", "now", "watermark")

    def __init__(self, clocks: list[str], watermark: int | None, now: int) -> None:
        self._clocks = clocks
        self._only = CLOCKS[clocks[0]] if len(clocks) == 1 else None
        self.now = from_micros(now)  #: the clock of this batch
        #: the time up to which all rows are taken to have come; None as long as nothing is known
        self.watermark = None if watermark is None else from_micros(watermark)
        self.changes: dict[tuple[int, int], bool] = {}  # clock, time → whether it is set

    def again(self) -> Timers:
        """Return the timers of another key at the same time."""
        other = object.__new__(Timers)
        other._clocks, other._only, other.changes = self._clocks, self._only, {}
        other.now, other.watermark = self.now, self.watermark
        return other

    def set(self, when: datetime, clock: str | None = None) -> None:
        """Let :meth:`~weir.Process.on_timer` be called at a time, by one of the operator's clocks."""
        self.changes[self._clock(clock), to_micros(when)] = True

    def delete(self, when: datetime, clock: str | None = None) -> None:
        """Take a timer back that was set for exactly this time; nothing happens if there is none."""
        self.changes[self._clock(clock), to_micros(when)] = False

    def _clock(self, clock: str | None) -> int:
        if clock is None and self._only is not None:
            return self._only
        if clock not in self._clocks:
            named = " or ".join(repr(c) for c in self._clocks)
            raise OperatorError(
                f"a timer by the clock {clock!r}: say {named}, as in timers.set(when, {named})"
            )
        return CLOCKS[clock]


def to_micros(when: datetime) -> int:
    """Return a time as µs since 1970."""
    if not isinstance(when, datetime):
        raise OperatorError(f"a timer's time is a datetime, not {when!r}")
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return a time from µs since 1970; beyond the year 9999, the last one there is."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def second_hash(key_check: Hashes, *others: NDArray[np.int64]) -> Hashes:
    """Return the second hash of an entry that a key has for each of several values: starts of windows, timers."""
    return hash_columns([pa.array(key_check.view(np.int64)), *map(pa.array, others)], SECOND_SEED)


def timer_entries(
    heads: Sequence[pa.Array],
    key_hash: Hashes,
    key_check: Hashes,
    clock: NDArray[np.int64],
    at: NDArray[np.int64],
    deadline: NDArray[np.int64],
    schema: pa.Schema,
) -> pa.Table:
    """Return timers as state entries; ``heads`` are the first columns of the operator's ``schema``, others are null."""
    about = pa.StructArray.from_arrays([pa.array(clock, pa.int8()), pa.array(at)], ["clock", "at"])
    empty = [pa.nulls(len(key_hash), f.type) for f in list(schema)[len(heads) : -1]]
    data = pa.Table.from_arrays([*heads, *empty, about], schema=schema)
    return entries(data, key_hash, key_check, deadline=deadline)


def states_in(table: pa.Table) -> pa.Table:
    """Return the entries that are no timers."""
    return table.filter(pc.is_null(table[TIMER.name])) if TIMER.name in table.column_names else table


def timers_in(table: pa.Table, *clocks: int) -> pa.Table:
    """Return the entries that are timers by one of some clocks."""
    clock = pc.struct_field(table[TIMER.name], "clock")
    return table.filter(pc.fill_null(pc.is_in(clock, pa.array(clocks, pa.int8())), False))
