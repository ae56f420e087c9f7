"""Timers of a key, as a user's Process sets and deletes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from weir.errors import OperatorError
from weir.operators.timer_entries import EVENT, PROCESSING

CLOCKS = {"event": EVENT, "processing": PROCESSING}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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

    A timer is known by its time and clock. Set twice, it goes off once; deleted, it does not. One whose time has passed
    already goes off when time next goes on. Times without a zone are UTC.

    >>> timers = Timers(["processing"], watermark=None, now=60_000_000)
    >>> timers.set(timers.now + timedelta(seconds=30))
    >>> timers.changes
    {(2, 90000000): True}
    """

    def __init__(self, clocks: list[str], watermark: int | None, now: int) -> None:
        self._clocks = clocks
        self.now = from_micros(now)  #: the clock of this batch
        #: the time up to which all rows are taken to have come; None as long as nothing is known
        self.watermark = None if watermark is None else from_micros(watermark)
        self.changes: dict[tuple[int, int], bool] = {}  # clock, time → whether it is set

    def set(self, when: datetime, clock: str | None = None) -> None:
        """Let :meth:`~weir.Process.on_timer` be called at a time, by one of the operator's clocks."""
        self.changes[self._clock(clock), to_micros(when)] = True

    def delete(self, when: datetime, clock: str | None = None) -> None:
        """Take a timer back that was set for exactly this time; nothing happens if there is none."""
        self.changes[self._clock(clock), to_micros(when)] = False

    def _clock(self, clock: str | None) -> int:
        if clock is None and len(self._clocks) == 1:
            return CLOCKS[self._clocks[0]]
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
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return a time from µs since 1970; beyond the year 9999, the last one there is."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
