"""What a batch did, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.engine.documents import BatchPlan, OperatorReport, TaskReport
from weir.engine.metrics.latency import merged, percentiles
from weir.engine.metrics.traffic import added, by_distance
from weir.graph.model import Topology
from weir.network.locator import Locator

if TYPE_CHECKING:
    from weir.engine.ledger import Ledger


def summarise(
    topology: Topology,
    plan: BatchPlan,
    reports: list[TaskReport],
    ledger: Ledger,
    locator: Locator | None = None,
) -> dict[str, Any]:
    """One batch's progress.

    ``locality`` is the share of rows between operators that stayed on their server. ``busy`` is time spent
    computing, without waiting for input.
    """
    n = topology.servers
    locator = locator or Locator(n)
    crossed, partials = by_distance(topology, reports, locator)
    edges: dict[str, dict[str, Any]] = {}
    for edge in topology.edges:
        if edge.source in topology.sources:
            continue
        parts = [r.edges[edge.index] for r in reports if edge.index in r.edges]
        local, remote = sum(p.local for p in parts), sum(p.remote for p in parts)
        edges[f"{edge.source} → {edge.target}"] = {
            "local": local,
            "remote": remote,
            "bytes": sum(p.bytes for p in parts),
            "locality": local / (local + remote) if local + remote else None,
            "distance": {name: c for name, c in crossed[edge.index].items() if c["rows"]},
        }
    operators: dict[str, dict[str, Any]] = {}
    for node in topology.nodes:
        parts_op = [r.operators[node.name] for r in reports if node.name in r.operators]
        per_server = [0] * n
        for r in reports:
            if r.server >= 0 and node.name in r.operators:
                per_server[r.server] += r.operators[node.name].rows_in
        average = sum(per_server) / n if n else 0
        operators[node.name] = {
            "rows_in": sum(p.rows_in for p in parts_op),
            "rows_out": sum(p.rows_out for p in parts_op),
            "busy": sum(p.busy for p in parts_op),
            "null_keys": sum(p.null_keys for p in parts_op),
            "pairs": sum(p.pairs for p in parts_op),
            "late": sum(p.late for p in parts_op),
            "diverted": sum(p.diverted for p in parts_op),
            "imbalance": max(per_server) / average if average else None,
            "latency": percentiles(merged(p.ages for p in parts_op)),
            **_times(node.name, n, reports),
        }
    servers = [
        {
            "rows": sum(op.rows_in for r in reports if r.server == i for op in r.operators.values()),
            "busy": sum(r.busy for r in reports if r.server == i),
            "host": next((r.host for r in reports if r.server == i and r.step > 0), ""),
            **_mean_times([o for r in reports if r.server == i for o in r.operators.values()]),
        }
        for i in range(n)
    ]
    first = 0 if any(r.server == -1 for r in reports) else 1
    entered = [r for r in reports if r.step == first and (r.server == -1 or first == 1)]
    local = sum(e["local"] for e in edges.values())
    remote = sum(e["remote"] for e in edges.values())
    keys = dict(ledger.last.keys) if ledger.last else {}
    for report in reports:
        for name, op in report.operators.items():
            keys[name] = keys.get(name, 0) + op.keys_delta
    made = sum(m.ref.bytes for r in reports for m in r.segments if m.ref is not None)
    return {
        "batch": plan.batch,
        "rows": sum(r.rows for r in entered) + sum(r.read_rows for r in reports),
        "bytes_in": sum(r.bytes for r in entered) + sum(r.read_bytes for r in reports),
        "rows_local": local,
        "rows_exchanged": remote,
        "bytes_exchanged": sum(e["bytes"] for e in edges.values()),
        "bytes_left_on_host": sum(r.left_bytes for r in reports),
        "locality": local / (local + remote) if local + remote else None,
        "distance": added(crossed.values()),
        "partials": partials,
        "places": [{"process": p.process, "host": p.host, "rack": p.rack} for p in locator.places],
        "weights": _weights(topology, reports),
        "edges": edges,
        "operators": operators,
        "sinks": {
            name: percentiles(merged(r.sink_ages[name] for r in reports if name in r.sink_ages))
            for name in sorted(topology.sinks)
        },
        "servers": servers,
        "state_keys": {node.name: keys.get(node.name, 0) for node in topology.stateful},
        "state_bytes_written": made,
        "table_version": plan.table_version,
        "watermarks": plan.watermarks,
    }


def _times(name: str, n: int, reports: list[TaskReport]) -> dict[str, list[float | None]]:
    """Mean execution and waiting time of a row, in seconds, on each server; None where no row came."""
    found: list[list[OperatorReport]] = [[] for _ in range(n)]
    for report in reports:
        if report.server >= 0 and name in report.operators:
            found[report.server].append(report.operators[name])
    times = [_mean_times(parts) for parts in found]
    return {what: [t[what] for t in times] for what in ("execution", "waiting")}


def _mean_times(parts: list[OperatorReport]) -> dict[str, float | None]:
    rows = sum(p.rows_in for p in parts)
    if not rows:
        return {"execution": None, "waiting": None}
    return {
        "execution": round(sum(p.busy for p in parts) / rows, 9),
        "waiting": round(sum(p.waited for p in parts) / rows, 6),
    }


def _weights(topology: Topology, reports: list[TaskReport]) -> dict[str, dict[str, list[float]]]:
    """Rows per round that each instance gets from each server, on edges where weights decide.

    Source tasks are alike as far as the plan knows; theirs are given as a mean, under ``source``.
    """
    out: dict[str, dict[str, list[float]]] = {}
    for edge in topology.edges:
        found = [(r.server, r.weights[edge.index]) for r in reports if edge.index in r.weights]
        if not found:
            continue
        mine: dict[str, list[float]] = {str(s): list(map(float, w)) for s, w in sorted(found) if s >= 0}
        read = [w for s, w in found if s < 0]
        if read:
            mine["source"] = [round(sum(w) / len(read), 3) for w in zip(*read, strict=True)]
        out[f"{edge.source} → {edge.target}"] = mine
    return out
