"""What servers report about their load, for groupings that listen.

Every grouping makes of it what its routers should hear (:meth:`weir.routing.Grouping.feedback`). That is part of the
commit, and so of the next batch's plan: every source hears the same, and a replay hears it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weir.engine.documents import BatchPlan, TaskReport
from weir.engine.task.batch_context import Pace
from weir.graph.model import Node, Topology
from weir.routing.base import PERIODS, InstanceLoad


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
