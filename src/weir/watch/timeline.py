"""Time lines and decisions: what a query has been doing, from its history and its latest commits."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from weir.engine.batch.history import PHASES, Point, downsample
from weir.engine.metrics.traffic import NAMES

DECISIONS = 200  # the latest, on the page
AROUND = 5  # points before a change that it is compared with, and after a scaling


def timeline(
    points: Sequence[Point], marks: Sequence[dict[str, Any]], most: int, begin: float, end: float
) -> dict[str, Any]:
    """Return time lines column by column, of at most so many points between two times (seconds since 1970)."""
    times = [p.time for p in points]
    chosen = downsample(points[bisect.bisect_left(times, begin) : bisect.bisect_right(times, end)], most)
    edges = sorted({name for p in chosen for name in p.edges})
    distances = [d for d in NAMES if any(d in p.distance for p in chosen)]
    distances += sorted({d for p in chosen for d in p.distance} - {*distances})
    operators = sorted({name for p in chosen for name in p.imbalance})
    return {
        "time": [p.time for p in chosen],
        "batch": [p.batch for p in chosen],
        "batches": [p.batches for p in chosen],
        "rows_per_s": [_per_second(p, p.rows) for p in chosen],
        "seconds": {
            # zero: of the last batch these are not known yet
            phase: [round(p.seconds[i] / p.batches, 4) or None if p.seconds else None for p in chosen]
            for i, phase in enumerate(PHASES)
        },
        "locality": {name: [_share(p.edges.get(name)) for p in chosen] for name in edges},
        "bytes_per_s": {
            name: [_per_second(p, p.distance.get(name, [0, 0])[1]) for p in chosen] for name in distances
        },
        "imbalance": {name: [p.imbalance.get(name) for p in chosen] for name in operators},
        "moved_keys": [p.moved_keys for p in chosen],
        "latency": {
            q: [p.latency[i] if p.latency else None for p in chosen] for i, q in enumerate(("p50", "p99"))
        },
        "lag": [p.lag for p in chosen],
        "servers": [p.servers for p in chosen],
        "marks": [_brief(mark) for mark in marks if begin <= mark["time"] <= end][-DECISIONS:],
        "first": times[0] if times else None,
        "last": times[-1] if times else None,
    }


def _per_second(point: Point, count: int) -> float | None:
    total = sum(point.seconds)
    return round(count / total, 3) if total > 0 else None


def _share(edge: list[int] | None) -> float | None:
    return round(edge[0] / sum(edge), 4) if edge and sum(edge) else None


def _brief(mark: dict[str, Any]) -> dict[str, Any]:
    """Return a mark as a time line shows it."""
    text = {
        "scaled": f"{mark.get('from')} → {mark.get('to')} servers",
        "reconfigured": f"{(mark.get('forecast') or {}).get('moved', 0):,} keys get new homes",
        "ran again": mark.get("why", ""),
    }.get(mark["kind"], "")
    return {"kind": mark["kind"], "time": mark["time"], "batch": mark["batch"], "text": text}


def decisions(points: Sequence[Point], marks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return reconfigurations and scalings, newest first: what was predicted, and what was measured.

    The locality that a reconfiguration brought is that of all rows until the next change.
    """
    ours = [m for m in marks if m["kind"] not in ("restarted", "ran again")]
    done = [m["batch"] for m in ours if not m["kind"].startswith("not ")]
    batches = [p.batch for p in points]
    out = []
    for mark in ours[-DECISIONS:]:
        at = bisect.bisect_left(batches, mark["batch"])
        after = bisect.bisect_right(done, mark["batch"])
        until = bisect.bisect_left(batches, done[after]) if after < len(done) else len(points)
        was, came = points[max(0, at - AROUND) : at], points[at:until]
        # the batch that carries a change does more than the others
        shown = {"before": _summary(was), "after": _summary(came if len(came) < 2 else came[1:])}
        out.append({**mark, **shown} if not mark["kind"].startswith("not ") else dict(mark))
    return out[::-1]


def _summary(points: Sequence[Point]) -> dict[str, Any] | None:
    if not points:
        return None
    local, remote = sum(p.local for p in points), sum(p.remote for p in points)
    seconds, rows = sum(sum(p.seconds) for p in points), sum(p.rows for p in points)
    worst = [max(p.imbalance.values()) for p in points if p.imbalance]
    return {
        "batches": sum(p.batches for p in points),
        "locality": local / (local + remote) if local + remote else None,
        "rows_per_s": rows / seconds if seconds else None,
        "imbalance": sum(worst) / len(worst) if worst else None,
    }


class Steering:
    """What steering has brought: how many rows stayed before any table was in force, and since.

    It goes through each point once, however often it is asked.
    """

    def __init__(self) -> None:
        self._last = -1
        self._before = [0, 0]  # rows that stayed, and all
        self._since = [0, 0]
        self._chance = 0.0  # of the rows since, those that would have stayed by chance
        self._first: int | None = None  # the first batch with a table

    def of(self, points: Sequence[Point]) -> dict[str, Any]:
        """Return the locality before and since, by chance, and the rows that did not have to be sent."""
        new = bisect.bisect_right(points, self._last, key=lambda point: point.batch)
        for point in points[new:]:
            sums, rows = self._since if point.table_version else self._before, point.local + point.remote
            sums[0] += point.local
            sums[1] += rows
            if point.table_version and self._first is None:
                self._first = point.batch
            self._chance += rows / max(point.servers, 1) if point.table_version else 0.0
            self._last = point.batch
        kept, total = self._since
        return {
            "before": self._before[0] / self._before[1] if self._before[1] else None,
            "since": kept / total if total else None,
            "by_chance": self._chance / total if total else None,
            "kept_rows": max(0, round(kept - self._chance)),
            "first": self._first,
        }
