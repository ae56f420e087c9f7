"""What a batch did, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.engine.plan import BatchPlan, TaskReport
from weir.topology import Topology

if TYPE_CHECKING:
    from weir.engine.ledger import Ledger


def summarise(
    topology: Topology, plan: BatchPlan, reports: list[TaskReport], ledger: Ledger
) -> dict[str, Any]:
    """One batch's progress.

    ``locality`` is the share of rows between operators that stayed on their server. ``busy`` is time spent
    computing, without waiting for input.
    """
    n = topology.servers
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
        }
    servers = [
        {
            "rows": sum(op.rows_in for r in reports if r.server == i for op in r.operators.values()),
            "busy": sum(r.busy for r in reports if r.server == i),
            "host": next((r.host for r in reports if r.server == i and r.step > 0), ""),
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
        "locality": local / (local + remote) if local + remote else None,
        "edges": edges,
        "operators": operators,
        "servers": servers,
        "state_keys": {node.name: keys.get(node.name, 0) for node in topology.stateful},
        "state_bytes_written": made,
        "table_version": plan.table_version,
        "watermarks": plan.watermarks,
    }
