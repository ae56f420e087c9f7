"""What the page shows of the last batch, as data that JSON can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.engine.documents import Commit
from weir.engine.metrics.progress import OperatorProgress, Progress
from weir.watch.reader import CheckpointReader

UNEVEN = 2.0  # times the average of all servers from which a server stands out
SLOW = 2.0  # times the median seconds per row
NOTABLE = 0.1  # share of a batch's seconds below which a slow server delays nobody
BUSY = 0.25  # share of the time that an operator works, below which it has time enough to keep up


def snapshot(reader: CheckpointReader) -> dict[str, Any]:
    """Return the application, its last batch, its servers and how it fares."""
    commit, status = reader.latest, reader.status()
    about = {
        "checkpoint": reader.storage.location,
        "id": reader.head["id"],
        "mode": reader.head["mode"],
        "created": reader.head["created"],
        "status": status,
    }
    if commit is None or not commit.progress:
        waiting = {"level": "idle", "text": "No batch has been committed yet.", "details": [status["text"]]}
        return {**about, "batch": None, "health": waiting}
    did = Progress.from_dict(commit.progress)
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


def _servers(did: Progress) -> list[dict[str, Any]]:
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
        out.append(
            {
                "host": place.get("host") or server.host,
                "rack": place.get("rack", ""),
                "rows": server.rows,
                "busy": server.busy,
                "load": {name: load[i] for name, load in loads.items()},
                "pace": {name: pace[i] for name, pace in slow.items()},
                "moved": i in did.moved_servers,
            }
        )
    return out


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers as JSON can hold them, None for those that are none."""
    return [None if value != value else value for value in values.round(3).tolist()]


def _weight(op: OperatorProgress, server: int) -> float:
    """Return the seconds that an operator took on a server."""
    return (op.execution[server] or 0.0) * op.rows_by_server[server]


def _set_aside(did: Progress) -> list[str]:
    return [
        f"{operator.diverted:,} rows of {name} went to the dead letters in the last batch."
        for name, operator in did.operators.items()
        if operator.diverted
    ]


def health(did: Progress, status: dict[str, Any], servers: list[Any], congested: list[str]) -> dict[str, Any]:
    """Return how a query fares: ``level`` (good, warn, bad, idle), one sentence, and what else to know."""
    if status["state"] == "failed":
        return {"level": "bad", "text": "The query has failed.", "details": [status["text"]]}
    if status["state"] == "gone":
        return {"level": "bad", "text": "The query has stopped: it was killed.", "details": [status["text"]]}
    if status["state"] in ("stopped", "finished"):
        return {"level": "idle", "text": f"The query has {status['state']}.", "details": _set_aside(did)}
    details = []
    for name in congested:
        rates = did.load.rates.get(name, [0.0, 0.0])
        can, wants = f"{rates[1]:,.0f}", f"{rates[0]:,.0f}"
        details.append(f"{name} cannot keep up: {wants} rows/s want in, {can} get through.")
    for name, operator in did.operators.items():
        loads = [server["load"].get(name) or 0.0 for server in servers]
        if loads and max(loads) >= UNEVEN:
            busiest = int(np.argmax(loads))
            details.append(f"Server {busiest} gets {loads[busiest]:.1f} × the average of {name}.")
        paces = [server["pace"].get(name) or 0.0 for server in servers]
        slowest = int(np.argmax(paces)) if paces else 0
        if paces and paces[slowest] >= SLOW and _weight(operator, slowest) > NOTABLE * did.seconds.job:
            details.append(f"Server {slowest} is slow: {paces[slowest]:.1f} × the usual time in {name}.")
    details += _set_aside(did)
    if did.routing is not None and did.routing.stalled:
        details.append(f"Keys do not move: {did.routing.stalled}.")
    if did.ran_again:
        details.append(f"The last batch had to run twice: {did.ran_again}")
    if congested:
        return {"level": "warn", "text": "The stream is faster than the query.", "details": details}
    if details:
        return {"level": "warn", "text": "It runs, with something to look at.", "details": details}
    return {"level": "good", "text": "All is well.", "details": []}
