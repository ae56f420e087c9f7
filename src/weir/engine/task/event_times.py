"""Event time in batches: what tasks read of it, and the watermarks that follow.

A task reads the greatest event time at every point where a stream has one (:class:`EventTimes`). Commits keep it, and
when each point was last heard of; plans have the watermark of each operator that follows from the last commit
(:func:`watermarks`). So a batch that runs again has the same watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.engine.documents import BatchPlan, Commit, TaskReport
from weir.engine.progress import InputProgress
from weir.graph.model import Node, TimePoint, Topology
from weir.operators.windows import newest_time
from weir.rows import Rows

Times = dict[str, int]  # point → µs


class EventTimes:
    """Reads the event time of rows in one task, where they leave a source or an operator."""

    def __init__(self, topology: Topology, plan: BatchPlan, report: TaskReport) -> None:
        self._points, self._clock, self._seen = topology.points, plan.clock, report.event_times

    def read(self, part: str, rows: Rows) -> None:
        """Take note of the greatest event time that can be believed."""
        for point in self._points.get(part, ()):
            ahead = point.time.ahead
            newest = newest_time(
                rows.column(point.time.column), None if ahead is None else self._clock + ahead
            )
            if newest is not None:
                self._seen[point.name] = max(newest, self._seen.get(point.name, newest))


def watermarks(
    topology: Topology, last: Commit | None, clock: int, quiet_until: int | None
) -> dict[str, int]:
    """Return the watermark of each operator that has one, for the next batch.

    It is the least over the operator's inputs of the greatest event time that they have brought, less what may be late.
    An input without rows for longer than its time-out counts no more. If that goes for all of them, time goes on by the
    clock from where they were. A watermark never goes back.

    Parameters
    ----------
    clock
        Of the next batch.
    quiet_until
        Until when no source had any more rows, if the next batch has none; else None: then only what the last commit
        knows counts, since rows may have come meanwhile.
    """
    if last is None:
        return {}
    known_until = last.clock if quiet_until is None else max(last.clock, min(quiet_until, clock))
    out = {}
    for node in topology.nodes:
        reached = _reached(node, last, known_until)
        before = last.watermarks.get(node.name)
        if node.times and (reached is not None or before is not None):
            out[node.name] = max(t for t in (reached, before) if t is not None)
    return out


def _reached(node: Node, last: Commit, known_until: int) -> int | None:
    active: list[int | None] = []
    idle: list[int] = []
    for point in node.times:
        time = last.event_times.get(point.name)
        newest = None if time is None else time - point.time.lateness
        overdue = _overdue(point, last.heard.get(point.name, last.clock), known_until)
        if overdue is None:
            active.append(newest)
        elif newest is not None:
            idle.append(newest + overdue)
    if active:
        return None if None in active else min(t for t in active if t is not None)
    return min(idle, default=None)


def _overdue(point: TimePoint, since: int, clock: int) -> int | None:
    """Return for how long an input has been idle; None while it is waited for."""
    idle = point.time.idle
    return None if idle is None or clock - since <= idle else clock - since - idle


def inputs(topology: Topology, times: Times, clocks: Times, clock: int) -> dict[str, InputProgress]:
    """Return what progress says of each input, from what :func:`heard` returns."""
    points = {
        p.name: _overdue(p, clocks[p.name], clock) is not None for ps in topology.points.values() for p in ps
    }
    return {n: InputProgress(time=times.get(n), heard=clocks[n], idle=idle) for n, idle in points.items()}


def heard(
    topology: Topology, plan: BatchPlan, last: Commit | None, reports: Iterable[TaskReport]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the greatest event time of each point after a batch, and the clock of the last batch that brought any."""
    points: list[TimePoint] = [p for part in topology.points.values() for p in part]
    times = {p.name: last.event_times[p.name] for p in points if last and p.name in last.event_times}
    clocks = {p.name: last.heard.get(p.name, plan.clock) if last else plan.clock for p in points}
    for report in reports:
        for name, time in report.event_times.items():
            times[name], clocks[name] = max(time, times.get(name, time)), plan.clock
    return times, clocks
