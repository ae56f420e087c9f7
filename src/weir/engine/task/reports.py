"""What the tasks of a batch report, and what that amounts to.

The reports of one server's steps are put together on their way: the driver reads one per server, not one per task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weir.engine.documents import EdgeReport, TaskReport, decode_report
from weir.engine.exchange import wire
from weir.engine.metrics.latency import merged as merged_ages
from weir.errors import EngineError, revived
from weir.graph.model import Topology
from weir.operators.instance import OperatorReport

_ADDED = ("busy", "left_bytes", "read_rows", "read_bytes", "spilled_bytes")
_ADDED_BY_OPERATOR = tuple(set(OperatorReport.__struct_fields__) - {"ages", "merging"})


@dataclass(frozen=True)
class BatchResult:
    """What the tasks of a batch reported and counted. Nothing has happened until it is committed."""

    reports: list[TaskReport]
    stats: list[bytes]  # as they came: BatchStats.decode adds them up
    ran_again: str | None = None  # why the batch had to run twice, if it did
    execution: str = "jobs"  # or "live"


def result_of(answers: Iterable[tuple[int, bytes]], execution: str = "jobs") -> BatchResult:
    """Return what tasks' answers, kind and payload, amount to; raise what a user's function raised."""
    reports, stats = [], []
    for kind, payload in answers:
        if kind == wire.CONTROL:
            report = decode_report(payload)
            if report.error is not None:
                raise revived(*report.error) or EngineError(report.error[1])
            reports.append(report)
        elif kind == wire.STATISTICS:
            stats.append(payload)
    return BatchResult(reports, stats, execution=execution)


def condensed(reports: Sequence[TaskReport], server: int, topology: Topology) -> list[TaskReport]:
    """Return reports with those of a server's steps put together; source tasks and servers that move stay apart."""
    mine = [r for r in reports if r.server == server and r.step > 0]
    others = [r for r in reports if r.server != server or r.step == 0]
    if not mine:  # an application without steps: all is done where the source is read
        return others
    return [*others, together(mine, {node.name: node.level for node in topology.nodes})]


def together(reports: Sequence[TaskReport], levels: Mapping[str, int]) -> TaskReport:
    """Return one report of a server's steps 1, 2 …; where it ran, it says of the last one.

    Rows and bytes that came in are those of the first step: the others' came from servers. ``levels`` are the last
    steps in which rows reach operators: what they do later is merging.

    >>> one = TaskReport(server=3, step=1, rows=5, busy=1.0, operators={"a": OperatorReport(rows_in=5)})
    >>> two = TaskReport(server=3, step=2, rows=4, busy=0.5, operators={"a": OperatorReport(rows_in=2)})
    >>> whole = together([two, one], {"a": 2})
    >>> whole.steps, whole.rows, whole.busy, whole.operators["a"].rows_in
    ([1, 2], 5, 1.5, 7)
    """
    parts = sorted(reports, key=lambda r: r.step)
    first, last = parts[0], parts[-1]
    return TaskReport(
        server=last.server,
        step=last.step,
        steps=[r.step for r in parts],
        host=last.host,
        process=last.process,
        rows=first.rows,
        bytes=first.bytes,
        **{name: sum(getattr(r, name) for r in parts) for name in _ADDED},
        operators={
            name: _operator({r.step: r.operators[name] for r in parts if name in r.operators}, levels[name])
            for name in _all(parts, "operators")
        },
        edges={
            edge: _edge([r.edges[edge] for r in parts if edge in r.edges]) for edge in _all(parts, "edges")
        },
        segments=[segment for r in parts for segment in r.segments],
        outputs={
            sink: [f for r in parts for f in r.outputs.get(sink, [])] for sink in _all(parts, "outputs")
        },
        counters={name: ref for r in parts for name, ref in r.counters.items()},
        partials=_added([r.partials for r in parts]),
        sink_ages={
            sink: merged_ages(r.sink_ages[sink] for r in parts if sink in r.sink_ages)
            for sink in _all(parts, "sink_ages")
        },
        weights={edge: weights for r in parts for edge, weights in r.weights.items()},
        posted=[row for r in parts for row in r.posted],
        received=[row for r in parts for row in r.received],
        entries=_added([r.entries for r in parts]),
        moved=_added([r.moved for r in parts]),
        event_times=_latest([r.event_times for r in parts]),
    )


def _all(reports: Sequence[TaskReport], field: str) -> list[Any]:
    return list(dict.fromkeys(name for r in reports for name in getattr(r, field)))


def _operator(by_step: Mapping[int, OperatorReport], level: int) -> OperatorReport:
    parts = by_step.values()
    return OperatorReport(
        **{name: sum(getattr(p, name) for p in parts) for name in _ADDED_BY_OPERATOR},
        ages=merged_ages(p.ages for p in parts),
        merging=sum(p.busy for step, p in by_step.items() if step > level),
    )


def _edge(parts: Sequence[EdgeReport]) -> EdgeReport:
    return EdgeReport(
        local=sum(p.local for p in parts),
        remote=sum(p.remote for p in parts),
        bytes=sum(p.bytes for p in parts),
        arrived=_added([p.arrived for p in parts]),
    )


def _added(parts: Sequence[dict[Any, tuple[int, int]]]) -> dict[Any, tuple[int, int]]:
    out: dict[Any, tuple[int, int]] = {}
    for part in parts:
        for name, (one, two) in part.items():
            before = out.get(name, (0, 0))
            out[name] = before[0] + one, before[1] + two
    return out


def _latest(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for part in parts:
        for name, when in part.items():
            out[name] = max(when, out.get(name, when))
    return out
