"""What the page shows, as data that JSON can hold: the last batch, time lines, and decisions."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.engine.batch.history import PHASES, Point, downsample
from weir.engine.documents import Commit
from weir.engine.metrics.traffic import NAMES
from weir.engine.progress import OperatorProgress, Progress
from weir.watch.reader import CheckpointReader, QueryStatus

UNEVEN = 2.0  # times the average of all servers from which a server stands out
SLOW = 2.0  # times the median seconds per row
NOTABLE = 0.1  # share of a batch's seconds below which a slow server delays nobody
BUSY = 0.25  # share of the time that an operator works, below which it has time enough to keep up


class Health(msgspec.Struct):
    """How a query fares: ``level`` (good, warn, bad, idle), one sentence, and what else to know."""

    level: str
    text: str
    details: list[str] = []


class ServerNow(msgspec.Struct):
    """A server in the last batch: what it did, and its load and pace by operator over the usual."""

    host: str
    rack: str
    rows: int
    busy: float
    load: dict[str, float | None]
    pace: dict[str, float | None]
    moved: bool


def snapshot(reader: CheckpointReader) -> dict[str, Any]:
    """Return the application, its last batch, its servers and how it fares."""
    commit, status = reader.latest, reader.status()
    about = {
        "checkpoint": reader.storage.location,
        "id": reader.head["id"],
        "mode": (commit.mode if commit else "") or reader.head["mode"],
        "created": reader.head["created"],
        "status": status,
    }
    if commit is None or commit.progress is None:
        waiting = Health("idle", "No batch has been committed yet.", [status.text])
        return {**about, "batch": None, "health": _broken(status) or waiting}
    did = commit.progress
    span = max((did.seconds.waiting or 0.0) + did.seconds.plan + did.seconds.job, 1e-9)
    servers = _servers(did)
    operators = {name: _operator(name, op, did, commit, span) for name, op in did.operators.items()}
    return {
        **about,
        "batch": commit.batch,
        "time": did.time or commit.clock / 1e6,
        "servers_count": commit.servers,
        "rows": did.rows,
        "rows_per_s": did.rows / span,
        "seconds": did.seconds.to_dict(),
        "span": span,
        "locality": did.locality,
        "by_hash": 1 / commit.servers,
        "bytes_exchanged": did.bytes_exchanged,
        "lag": did.load.lag,
        "utilisation": did.load.utilisation,
        "table_version": commit.table_version,
        "graph": commit.graph or _graph(did),
        "operators": operators,
        "edges": _edges(did, commit),
        "sinks": did.sinks,
        "sink_rows": {name: sum(file.rows for file in outputs) for name, outputs in commit.outputs.items()},
        "servers": servers,
        "weights": did.weights,
        "health": health(did, status, servers, [name for name, op in operators.items() if op["congested"]]),
    }


def brief(reader: CheckpointReader) -> dict[str, Any]:
    """Return what an overview of several queries shows of one."""
    now = snapshot(reader)
    about = ("checkpoint", "status", "batch", "time", "health")
    figures = ("rows_per_s", "locality", "by_hash", "lag", "utilisation", "servers_count")
    return {name: now.get(name) for name in (*about, *figures)}


def _graph(did: Progress) -> dict[str, Any]:
    """Return the operators of a commit of an earlier version, which says nothing of sources and sinks."""
    plain: dict[str, Any] = {"what": "", "key": [], "stateful": False}
    operators = {name: {**plain, "placement": where} for name, where in did.load.placement.items()}
    edges = [[a, b, ""] for a, b in did.load.edges]
    return {"sources": [], "operators": operators, "edges": edges, "sinks": sorted(did.sinks)}


def _operator(name: str, op: OperatorProgress, did: Progress, commit: Commit, span: float) -> dict[str, Any]:
    rates = did.load.rates.get(name)
    instances = len(did.load.placement.get(name, [])) or commit.servers
    state = [s for servers in (commit.manifest.get(name, []),) for server in servers for s in server]
    busy = min(1.0, op.busy / (instances * span))
    return {
        "rows_in": op.rows_in,
        "rows_out": op.rows_out,
        "rows_per_s": op.rows_in / span,
        "busy": busy,
        "latency": op.latency,
        "spent": op.spent,
        "keys": did.state_keys.get(name),
        "state_bytes": sum(s.bytes for s in state) if name in commit.manifest else None,
        "watermark": did.watermarks.get(name),
        "congested": name in did.load.congested and busy >= BUSY,
        "input_rate": rates[0] if rates else None,
        "processing_rate": rates[1] if rates else None,
        "imbalance": op.imbalance,
        "instances": instances,
        "dropped": {n: rows for n in ("null_keys", "late", "diverted") if (rows := getattr(op, n))},
    }


def _edges(did: Progress, commit: Commit) -> list[dict[str, Any]]:
    """Return every edge with its rows, those that come from sources included."""
    graph = commit.graph or _graph(did)
    out = []
    for source, target, grouping in graph["edges"]:
        edge = did.edges.get(f"{source} → {target}")
        traffic = did.entered.get(f"{source} → {target}", {}) if edge is None else edge.distance
        far = {name: counts["rows"] for name, counts in traffic.items()}
        out.append(
            {
                "source": source,
                "target": target,
                "grouping": grouping,
                "rows": sum(far.values()),
                "local": None if edge is None else edge.local,
                "distance": far,
            }
        )
    return out


def _servers(did: Progress) -> list[ServerNow]:
    """Return each server with its place, and its load by operator: rows over the average of the operator."""
    loads: dict[str, list[float | None]] = {}
    slow: dict[str, list[float | None]] = {}
    for name, op in did.operators.items():
        rows = np.array(op.rows_by_server, float)
        where = did.load.placement.get(name) or list(range(len(rows)))
        if len(rows) and rows.sum():
            load = np.full(len(rows), np.nan)
            load[where] = rows[where] / max(rows[where].mean(), 1e-12)
            loads[name] = _numbers(load)
            times = np.array([np.nan if t is None else t for t in op.execution], float)
            middle = np.nanmedian(times) if not np.isnan(times).all() else np.nan
            slow[name] = _numbers(times / middle if middle > 0 else np.full(len(rows), np.nan))
    out = []
    for i, server in enumerate(did.servers):
        place = did.places[i] if i < len(did.places) else {}
        load_here = {name: values[i] for name, values in loads.items()}
        slow_here = {name: values[i] for name, values in slow.items()}
        host, rack = place.get("host") or server.host, place.get("rack", "")
        out.append(
            ServerNow(host, rack, server.rows, server.busy, load_here, slow_here, i in did.moved_servers)
        )
    return out


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers as JSON can hold them, None for those that are none."""
    return [None if value != value else value for value in values.round(3).tolist()]


def _set_aside(did: Progress) -> list[str]:
    return [
        f"{operator.diverted:,} rows of {name} went to the dead letters in the last batch."
        for name, operator in did.operators.items()
        if operator.diverted
    ]


def _broken(status: QueryStatus) -> Health | None:
    """Return how a query fares that ended without having been asked to, None for others."""
    texts = {"failed": "The query has failed.", "gone": "The query has stopped: it was killed."}
    text = texts.get(status.state)
    return None if text is None else Health("bad", text, [status.text])


def health(did: Progress, status: QueryStatus, servers: list[ServerNow], congested: list[str]) -> Health:
    """Return how a query fares."""
    if broken := _broken(status):
        return broken
    if status.state in ("stopped", "finished"):
        return Health("idle", f"The query has {status.state}.", _set_aside(did))
    details = []
    for name in congested:
        rates = did.load.rates.get(name, [0.0, 0.0])
        can, wants = f"{rates[1]:,.0f}", f"{rates[0]:,.0f}"
        details.append(f"{name} cannot keep up: {wants} rows/s want in, {can} get through.")
    for name, operator in did.operators.items():
        loads = [server.load.get(name) or 0.0 for server in servers]
        if loads and max(loads) >= UNEVEN:
            busiest = int(np.argmax(loads))
            details.append(f"Server {busiest} gets {loads[busiest]:.1f} × the average of {name}.")
        paces = [server.pace.get(name) or 0.0 for server in servers]
        slowest = int(np.argmax(paces)) if paces else 0
        if paces and paces[slowest] >= SLOW:
            took = (operator.execution[slowest] or 0.0) * operator.rows_by_server[slowest]
            if took > NOTABLE * did.seconds.job:
                details.append(f"Server {slowest} is slow: {paces[slowest]:.1f} × the usual time in {name}.")
    details += _set_aside(did)
    if did.routing is not None and did.routing.stalled:
        details.append(f"Keys do not move: {did.routing.stalled}.")
    if did.routing is not None:
        details += [f"{line[0].upper()}{line[1:]}." for line in did.routing.warnings()]
    if did.ran_again:
        details.append(f"The last batch had to run twice: {did.ran_again}")
    if congested:
        return Health("warn", "The stream is faster than the query.", details)
    return (
        Health("warn", "It runs, with something to look at.", details)
        if details
        else Health("good", "All is well.")
    )


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
