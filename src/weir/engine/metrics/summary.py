"""From the reports of a batch's tasks to its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from weir.engine.documents import BatchPlan, TaskReport, added, by_server
from weir.engine.metrics.latency import percentiles
from weir.engine.metrics.traffic import by_distance, nothing
from weir.engine.progress import (
    EdgeProgress,
    OperatorProgress,
    Progress,
    ServerProgress,
    Traffic,
)
from weir.graph.model import Node, Topology
from weir.network.locator import Locator
from weir.operators.instance import OperatorReport

Reports = Sequence[TaskReport]
_ADDED = ("rows_in", "rows_out", "busy", "null_keys", "pairs", "late", "ahead", "diverted")  # over all tasks


def summarise(
    topology: Topology,
    plan: BatchPlan,
    reports: list[TaskReport],
    keys_before: Mapping[str, int],
    locator: Locator | None = None,
) -> Progress:
    """Return one batch's progress; ``keys_before`` has the number of keys of each operator before it."""
    locator = locator or Locator(topology.servers)
    crossed, partials = by_distance(topology, reports)
    edges = _edges(topology, reports, crossed)
    local, remote = sum(e.local for e in edges.values()), sum(e.remote for e in edges.values())
    entered = _entered(topology, reports)
    return Progress(
        batch=plan.batch,
        rows=sum(r.rows for r in entered) + sum(r.read_rows for r in reports),
        bytes_in=sum(r.bytes for r in entered) + sum(r.read_bytes for r in reports),
        rows_local=local,
        rows_exchanged=remote,
        bytes_exchanged=sum(e.bytes for e in edges.values()),
        bytes_left_on_host=sum(r.left_bytes for r in reports),
        locality=local / (local + remote) if local + remote else None,
        distance=added([nothing(), *crossed.values()]),
        partials=partials,
        places=[{"process": p.process, "host": p.host, "rack": p.rack} for p in locator.places],
        weights=_weights(topology, reports),
        edges=edges,
        entered={
            f"{edge.source} → {edge.target}": _some(crossed[edge.index])
            for edge in topology.edges
            if edge.source in topology.sources
        },
        operators={node.name: _operator(node, topology.servers, reports) for node in topology.nodes},
        sinks={
            name: percentiles(added([{}, *(r.sink_ages[name] for r in reports if name in r.sink_ages)]))
            for name in sorted(topology.sinks)
        },
        servers=[_server(mine) for mine in by_server(reports, topology.servers)],
        state_keys=_keys(topology, reports, keys_before),
        state_bytes_written=sum(m.ref.bytes for r in reports for m in r.segments if m.ref is not None),
        table_version=plan.table_version,
        watermarks=plan.watermarks,
    )


def _entered(topology: Topology, reports: Reports) -> list[TaskReport]:
    """Return the reports of tasks that rows of sources came to: source tasks, or servers in the first step.

    Where servers read all that there is, nothing comes from sources.
    """
    if topology.listings.keys() == topology.sources.keys():
        return []
    sources = [r for r in reports if r.server is None]
    if sources:
        return sources
    return [r for r in reports if r.step > 0]  # of all steps together, they say what came in with the first


def _edges(topology: Topology, reports: Reports, crossed: Mapping[int, Traffic]) -> dict[str, EdgeProgress]:
    edges = {}
    for edge in topology.edges:
        if edge.source in topology.sources:
            continue
        parts = [r.edges[edge.index] for r in reports if edge.index in r.edges]
        local, remote = sum(p.local for p in parts), sum(p.remote for p in parts)
        edges[f"{edge.source} → {edge.target}"] = EdgeProgress(
            local=local,
            remote=remote,
            bytes=sum(p.bytes for p in parts),
            locality=local / (local + remote) if local + remote else None,
            distance=_some(crossed[edge.index]),
        )
    return edges


def _some(traffic: Traffic) -> Traffic:
    """Return the distances at which there was any."""
    return {name: counts for name, counts in traffic.items() if counts["rows"]}


def _operator(node: Node, servers: int, reports: Reports) -> OperatorProgress:
    name = node.name
    parts = [r.operators[name] for r in reports if name in r.operators]
    rows, queued, busy, waited = [0] * servers, [0] * servers, [0.0] * servers, [0.0] * servers
    for report in reports:
        server = report.server
        if server is not None and name in report.operators:
            did = report.operators[name]
            rows[server] += did.rows_in
            queued[server] += did.queued
            busy[server] += did.busy
            waited[server] += did.waited
    times = list(map(_mean_times, rows, busy, waited))
    average = sum(rows) / servers if servers else 0
    return OperatorProgress(
        **{field: sum(map(attrgetter(field), parts)) for field in _ADDED},
        imbalance=max(rows) / average if average else None,
        latency=percentiles(added([{}, *(p.ages for p in parts)])),
        rows_by_server=rows,
        execution=[execution for execution, _ in times],
        waiting=[waiting for _, waiting in times],
        queued=queued,
        spent=_spent(parts, sum(p.rows_in for p in parts)),
    )


def _spent(parts: Sequence[OperatorReport], rows: int) -> dict[str, float] | None:
    """Return where the time of a row went, if a function of the user's was called."""
    if not rows or not any(part.calling for part in parts):
        return None
    fields = {"fetching": "fetching", "function": "calling", "encoding": "encoding", "writing": "writing"}
    return {name: round(sum(map(attrgetter(f), parts)) / rows, 9) for name, f in fields.items()}


def _server(mine: Reports) -> ServerProgress:
    parts = [op for r in mine for op in r.operators.values()]
    rows = sum(op.rows_in for op in parts)
    execution, waiting = _mean_times(rows, sum(op.busy for op in parts), sum(op.waited for op in parts))
    return ServerProgress(
        rows=rows,
        busy=sum(r.busy for r in mine),
        host=next((r.host for r in mine if r.step > 0), ""),
        execution=execution,
        waiting=waiting,
        spilled=sum(r.spilled_bytes for r in mine),
    )


def _mean_times(rows: int, busy: float, waited: float) -> tuple[float | None, float | None]:
    """Return the mean seconds of work and of waiting per row; None where no row came."""
    return (round(busy / rows, 9), round(waited / rows, 6)) if rows else (None, None)


def _keys(topology: Topology, reports: Reports, before: Mapping[str, int]) -> dict[str, int]:
    keys = {node.name: before.get(node.name, 0) for node in topology.stateful}
    for report in reports:
        for name, op in report.operators.items():
            if name in keys:
                keys[name] += op.keys_delta
    return keys


def _weights(topology: Topology, reports: Reports) -> dict[str, dict[str, list[float]]]:
    """Return rows per round that each instance gets from each server, on edges where weights decide.

    Source tasks are alike as far as the plan knows; theirs are given as a mean, under ``source``.
    """
    out: dict[str, dict[str, list[float]]] = {}
    for edge in topology.edges:
        senders = [(r.server, r.weights[edge.index]) for r in reports if edge.index in r.weights]
        if not senders:
            continue
        servers = sorted((s, w) for s, w in senders if s is not None)
        shares: dict[str, list[float]] = {str(s): list(map(float, w)) for s, w in servers}
        of_sources = [w for s, w in senders if s is None]
        if of_sources:
            shares["source"] = [round(sum(w) / len(of_sources), 3) for w in zip(*of_sources, strict=True)]
        out[f"{edge.source} → {edge.target}"] = shares
    return out
