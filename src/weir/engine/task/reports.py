"""What the tasks of a batch report, and what that amounts to.

The reports of one server's steps are put together on their way: the driver reads one per server, not one per task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np

from weir.engine.documents import BatchPlan, TaskReport, added, decode_report, encode_report
from weir.engine.exchange import wire
from weir.engine.task.batch_context import Pace
from weir.errors import EngineError, revived
from weir.graph.model import Node, Topology
from weir.routing.base import PERIODS, InstanceLoad


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


def answers(report: TaskReport, stats: bytes | None) -> wire.Answers:
    """Return what a task tells the driver: its report, and what it counted of keys."""
    counted = [] if stats is None else [(wire.STATISTICS, stats)]
    return [(wire.CONTROL, encode_report(report)), *counted]


def condensed(reports: Sequence[TaskReport], server: int | None) -> list[TaskReport]:
    """Return reports with those of a server's steps put together; those of source tasks stay apart."""
    mine = [r for r in reports if r.server == server and r.step > 0]
    others = [r for r in reports if r.server != server or r.step == 0]
    # without steps, all is done where the source is read
    return [*others, together(mine)] if mine else others


def together(reports: Sequence[TaskReport]) -> TaskReport:
    """Return one report of a server's steps 1, 2 …, by the rules on its fields.

    >>> from weir.operators.instance import OperatorReport
    >>> one = TaskReport(server=3, step=1, steps=[1], rows=5, busy=1.0, operators={"a": OperatorReport(rows_in=5)})
    >>> two = TaskReport(server=3, step=2, steps=[2], rows=4, busy=0.5, operators={"a": OperatorReport(rows_in=2)})
    >>> whole = together([two, one])
    >>> whole.steps, whole.rows, whole.busy, whole.operators["a"].rows_in
    ([1, 2], 5, 1.5, 7)
    """
    parts = sorted(reports, key=lambda r: r.step)
    return TaskReport(
        **{name: merge([getattr(part, name) for part in parts]) for name, merge in _rules().items()}
    )


@functools.cache
def _rules() -> dict[str, Callable[[Sequence[Any]], Any]]:
    """Return how the values of each field of a report become one."""
    hints = get_type_hints(TaskReport, include_extras=True)
    rules = {name: getattr(hint, "__metadata__", None) for name, hint in hints.items()}
    return {name: added if rule is None else rule[0].extra["merge"] for name, rule in rules.items()}


def feedback(topology: Topology, plan: BatchPlan, reports: list[TaskReport], warm: bool) -> dict[str, Any]:
    """Return what the routers in front of each operator should hear; ``warm``: not the first batch of a run."""
    heard = {}
    for node in topology.nodes:
        answer = topology.grouping_of(node).feedback(instance_load(node, topology, plan, reports, warm))
        if answer is not None:
            heard[node.name] = answer
    return heard


def pace(nodes: Iterable[Node], topology: Topology, plan: BatchPlan, reports: list[TaskReport]) -> Pace:
    """Return how fast some operators were in a batch."""
    seconds = {}
    for node in nodes:
        load = instance_load(node, topology, plan, reports)
        seconds[node.name] = np.where(load.rows > 0, load.busy / np.maximum(1, load.rows), np.nan).tolist()
    return Pace(max(1, sum(report.server is None for report in reports)), seconds)


def instance_load(
    node: Node, topology: Topology, plan: BatchPlan, reports: list[TaskReport], warm: bool = True
) -> InstanceLoad:
    """Return the load of an operator's instances in a batch, without the steps that only merge."""
    rows, busy, waited = ([0.0] * topology.servers for _ in range(3))
    for report in reports:
        if report.server is not None and node.name in report.operators:
            done = report.operators[node.name]
            rows[report.server] += done.rows_in
            busy[report.server] += done.busy - done.merging
            waited[report.server] += done.waited
    at = np.asarray(node.placement)
    return InstanceLoad(
        (plan.batch + 1) * PERIODS - 1, np.array(rows)[at], np.array(busy)[at], np.array(waited)[at], warm
    )
