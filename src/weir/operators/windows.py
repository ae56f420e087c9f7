"""Event time: where it comes from, which windows a row belongs to, and which rows are too late or too far ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.compiled import compiled
from weir.durations import Duration, microseconds
from weir.errors import TopologyError
from weir.operators.local_time import LocalTime, Times, local_time
from weir.state.index import by_group, group_rows

if TYPE_CHECKING:
    from weir.operators.instance import Context
    from weir.rows import Rows

WINDOW_START, WINDOW_END, CLOSED = "window_start", "window_end", "closed"
HOUR, DAY = 3_600_000_000, 86_400_000_000  # µs
IDLE, AHEAD = 300_000_000, DAY


@dataclass(frozen=True)
class EventTime:
    """How a stream tells the time: by ``column``; all durations are in µs.

    Rows may be ``lateness`` older than the newest row before them. A stream without rows for ``idle`` holds nobody up
    any more. Rows more than ``ahead`` of the clock are not believed. None switches either off.
    """

    column: str
    lateness: int = 0
    idle: int | None = IDLE
    ahead: int | None = AHEAD


@dataclass(frozen=True)
class Window:
    """Event-time windows over ``column``; all durations are in µs.

    ``size`` is that of a window, or a session's gap. Windows begin every ``slide``; if that is None, they tumble. They
    begin at multiples of it since 1970, plus ``offset``: of the time in UTC, or of the local time in ``zone``. Local
    times that a clock skips begin none. ``early`` is how often a window that has changed tells its value before it
    closes.
    """

    column: str
    size: int
    lateness: int = 0
    slide: int | None = None
    session: bool = False
    early: int | None = None
    offset: int = 0
    zone: LocalTime | None = None

    @property
    def step(self) -> int:
        """The time from the start of one window to that of the next."""
        return self.slide or self.size

    def signature(self) -> list[Any]:
        """Return what saved windows depend on, as JSON-able data."""
        kind = ["session"] if self.session else [] if self.slide is None else [self.slide]
        begin = {"offset": self.offset, "timezone": self.zone and self.zone.name}
        return [self.column, self.size, *kind, *([begin] if self.offset or self.zone else [])]

    def _local(self, times: Times) -> Times:
        """Return times such that windows begin at multiples of their step."""
        return (times if self.zone is None else self.zone.local(times)) - self.offset

    def _instant(self, local: Times) -> Times:
        return local + self.offset if self.zone is None else self.zone.instant(local + self.offset)

    def panes(self, times: Times) -> Times:
        """Return the start of the pane of each time: every window consists of whole ones."""
        local = self._local(times)
        return self._instant(local - np.mod(local, gcd(self.size, self.step)))

    def ends(self, starts: Times) -> Times:
        """Return when windows end; sessions that are begun by a row."""
        return starts + self.size if self.session or self.zone is None else self.last_end(starts)

    def last_end(self, times: Times) -> Times:
        """Return the end of the last window that each time belongs to; of a session that it would begin."""
        if self.session:
            return times + self.size
        local = self._local(times)
        return self._instant(local - np.mod(local, self.step) + self.size)

    def assign(self, times: Times, watermark: int | None) -> tuple[NDArray[np.int64], Times]:
        """Return positions of times and the start of each open window that they belong to.

        >>> window = Window("time", 10, slide=5)
        >>> [a.tolist() for a in window.assign(np.array([3, 12]), watermark=8)]
        [[0, 1, 1], [0, 10, 5]]
        """
        count = -(-self.size // self.step)
        local = self._local(times)
        newest = local - np.mod(local, self.step)
        begin = (newest[:, None] - np.arange(count) * self.step).ravel()
        positions = np.repeat(np.arange(len(times)), count)
        starts = self._instant(begin)
        belongs = begin + self.size > np.repeat(local, count)
        if self.zone is not None:
            belongs &= starts < self._instant(begin + self.step)
        if watermark is not None:
            belongs &= self._instant(begin + self.size) > watermark
        return positions[belongs], starts[belongs]


def tumbling(
    column: str,
    size: Duration,
    lateness: Duration = 0,
    *,
    early: Duration | None = None,
    offset: Duration = 0,
    timezone: str | None = None,
) -> Window:
    """Return event-time windows of equal size, one after the other.

    Rows may arrive ``lateness`` after newer ones; later ones are counted and go to :meth:`weir.Stream.late_sink`. A
    window's result is emitted once, when no more rows can belong to it. With ``early``, a sink also gets
    the value so far of windows that have changed, every so often by the clock; its column ``closed`` is false then.

    Windows begin at multiples of their size since 1970 in UTC, plus ``offset``. With a ``timezone`` of the IANA
    database these are readings of a clock there: a day has 23 or 25 hours when daylight saving begins or ends. Such
    windows begin every hour, or several that divide a day, or days.

    >>> tumbling("time", "10 minutes", lateness="1 minute").size
    600000000
    >>> tumbling("time", "1 day", offset="6 hours", timezone="Europe/Berlin").zone.name
    'Europe/Berlin'
    """
    return _window(column, size, lateness, early, **_begin(offset, timezone))


def sliding(
    column: str,
    size: Duration,
    slide: Duration,
    lateness: Duration = 0,
    *,
    early: Duration | None = None,
    offset: Duration = 0,
    timezone: str | None = None,
) -> Window:
    """Return event-time windows that overlap: one of ``size`` begins every ``slide``; see :func:`weir.tumbling`.

    >>> sliding("time", "1 hour", "10 minutes").slide
    600000000
    """
    return _window(column, size, lateness, early, slide=microseconds(slide), **_begin(offset, timezone))


def session(column: str, gap: Duration, lateness: Duration = 0, *, early: Duration | None = None) -> Window:
    """Return windows of activity: one lasts until its key has had no row for longer than ``gap``.

    A session begins with its first row and ends ``gap`` after its last one, as Spark's ``session_window``. A row that
    closes the gap between two sessions of a key makes them one; a :class:`~weir.Process` needs ``merge`` for that. See
    :func:`weir.tumbling` for the other parameters.

    >>> session("time", "30 minutes").session
    True
    """
    return _window(column, gap, lateness, early, session=True)


def event_time(column: str, lateness: Duration, idle: Duration | None, ahead: Duration | None) -> EventTime:
    """Return how a stream tells the time; see :meth:`weir.Stream.event_time`."""
    if not isinstance(column, str) or not column:
        raise TopologyError(f"event_time({column!r}): expected the name of a timestamp column")
    told = EventTime(column, microseconds(lateness), _optional(idle), _optional(ahead))
    if told.lateness < 0 or any(time is not None and time <= 0 for time in (told.idle, told.ahead)):
        raise TopologyError(
            f"event_time({column!r}): lateness must not be negative, idle and ahead must be positive or None"
        )
    return told


def _optional(duration: Duration | None) -> int | None:
    return None if duration is None else microseconds(duration)


def _begin(offset: Duration, timezone: str | None) -> dict[str, Any]:
    return {"offset": microseconds(offset), "zone": None if timezone is None else local_time(timezone)}


def described_window(signature: list[Any]) -> Window:
    """Return the window that has a signature."""
    column, size, *kind = signature
    begin: dict[str, Any] = {"offset": 0, "timezone": None}
    if kind and isinstance(kind[-1], dict):
        begin = kind.pop()
    zone = None if begin["timezone"] is None else local_time(begin["timezone"])
    session = kind == ["session"]
    slide = kind[0] if kind and not session else None
    return Window(column, size, slide=slide, session=session, offset=begin["offset"], zone=zone)


def _window(column: str, size: Duration, lateness: Duration, early: Duration | None, **kind: Any) -> Window:
    window = Window(column, microseconds(size), microseconds(lateness), early=_optional(early), **kind)
    if window.size <= 0 or window.lateness < 0 or (window.early is not None and window.early <= 0):
        raise TopologyError(
            "a window needs a positive size or gap, a lateness that is not negative, and early= positive or not at all"
        )
    if window.slide is not None and not 0 < window.slide <= window.size:
        raise TopologyError("sliding windows begin every slide, which is positive and at most their size")
    if not abs(window.offset) < window.step:
        raise TopologyError(
            "offset= is when the first window begins: less than the time from one window to the next"
        )
    if window.zone is not None and (
        window.size % HOUR or window.step % HOUR or (window.step % DAY and DAY % window.step)
    ):
        raise TopologyError(
            "with a timezone=, windows last whole hours, and begin every so many days, or hours that divide a day; "
            "others do not depend on daylight saving: leave timezone= out, and give an offset= if need be"
        )
    return replace(window, offset=window.offset % window.step)


def newest_time(times: pa.Array, horizon: int | None) -> int | None:
    """Return the greatest time that is not beyond a horizon; None if there is none."""
    micros = times.drop_null().cast(pa.int64()).to_numpy()
    if horizon is not None and len(micros) and micros.max() > horizon:
        micros = micros[micros <= horizon]
    return int(micros.max()) if len(micros) else None


def timely(context: Context, window: Window, rows: Rows) -> tuple[Rows, Times]:
    """Return the rows that belong to a window that is still open, and their times; see :func:`on_time`."""
    return on_time(context, window.column, rows, window.last_end)


def on_time(
    context: Context,
    column: str,
    rows: Rows,
    wanted_until: Callable[[Times], Times],
    as_input: Callable[[Rows], Rows] = lambda rows: rows,
) -> tuple[Rows, Times]:
    """Return the rows that can still be worked on, and their times.

    A row is late when the watermark has reached the time until which it is wanted. ``as_input`` gives rows the columns
    of the operator's input, if they have others.

    Those without a time or too late are counted as late and go to the sink for such; those too far ahead of the clock
    are counted and become dead letters.
    """
    report, horizon = context.report, context.node.horizon(context.clock)
    times = rows.column(column)
    good = times.is_valid().to_numpy(zero_copy_only=False)
    micros = times.cast(pa.int64()).fill_null(0).to_numpy()
    if horizon is not None and (ahead := good & (micros > horizon)).any():
        report.ahead += int(ahead.sum())
        context.set_aside(as_input(rows.select(ahead)), f"{column} is too far ahead of the clock")
        good = good & ~ahead
        rows, micros, good = rows.select(~ahead), micros[~ahead], good[~ahead]
    if context.late_at is not None:
        good = good & (wanted_until(micros) > context.late_at)
    if good.all():
        return rows, micros
    report.late += int((~good).sum())
    context.late(as_input(rows.select(~good)))
    return rows.select(good), micros[good]


@compiled("int64[]", "int64[]", "int64[]", "out int64[]", "out int64[]", "out int64[]")
def _sweep(keys, starts, ends, groups, merged_starts, merged_ends):  # type: ignore[no-untyped-def]
    count = -1
    for i in range(len(keys)):
        if i > 0 and keys[i] == keys[i - 1] and starts[i] <= merged_ends[count]:
            merged_ends[count] = max(merged_ends[count], ends[i])
        else:
            count += 1
            merged_starts[count] = starts[i]
            merged_ends[count] = ends[i]
        groups[i] = count
    return count + 1


def merge_sessions(
    key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64], starts: Times, ends: Times
) -> tuple[NDArray[np.int64], Times, Times]:
    """Return the session that each of several spans of a key belongs to, and where sessions start and end.

    Spans of a key that overlap or touch are of one session.

    >>> key = np.zeros(3, np.uint64)
    >>> [a.tolist() for a in merge_sessions(key, key, np.array([8, 0, 20]), np.array([13, 9, 25]))]
    [[0, 0, 1], [0, 20], [13, 25]]
    """
    n = len(key_hash)
    keys, leads = group_rows(key_hash, key_check)
    in_time = (starts[1:] >= starts[:-1]).all()  # as rows of a stream mostly are
    order, _ = by_group(keys, len(leads), np.arange(n) if in_time else np.argsort(starts, kind="stable"))
    sorted_groups, first, last = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    count = _sweep(keys[order], starts[order], ends[order], sorted_groups, first, last)
    groups = np.empty(n, np.int64)
    groups[order] = sorted_groups
    return groups, first[:count], last[:count]
