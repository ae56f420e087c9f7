"""What servers say about their load, for groupings that listen: a bit per time slot, or the times of their rows.

Consistent Grouping needs no capacities. In each time slot a worker says whether it is idle or busy; here a batch
is cut into slots, and a server is busy in a slot as long as it still has work left from the batch. The signals
are part of the commit, and so of the next batch's plan: every source hears the same, and a replay hears it again.

Weight grouping hears how long a row took on each server: execution, and waiting from the moment when the server took
up its rows. Both go the same way.
"""

from __future__ import annotations

import numpy as np

from weir.engine.documents import BatchPlan, Seconds, TaskReport
from weir.graph.model import Topology
from weir.routing.base import Grouping
from weir.routing.consistent import Consistent
from weir.routing.locality_aware import LearntSplit
from weir.routing.weighted import Weighted

SLOTS = 4  # time slots per batch
NOISE = 0.005  # seconds; less is the scheduling of tasks and threads, not load


def capacity_signals(
    topology: Topology, plan: BatchPlan, reports: list[TaskReport]
) -> dict[str, list[tuple[int, list[int]]]]:
    """Idle (−1), content (0) or busy (+1) per instance and slot, from the time each was busy in the batch."""
    out: dict[str, list[tuple[int, list[int]]]] = {}
    for node in topology.nodes:
        grouping = topology.grouping_of(node)
        if not isinstance(grouping, Consistent):
            continue
        busy = np.zeros(topology.servers)
        for report in reports:
            if report.server >= 0 and report.step <= node.level and node.name in report.operators:
                busy[report.server] += report.operators[node.name].busy
        used = busy[np.asarray(node.placement)]
        longest = used.max()
        if longest <= 0:
            continue
        slots = []
        for slot in range(SLOTS):
            left = np.clip(used / longest * SLOTS - slot, 0, 1)
            signals = grouping.signals(left)
            slots.append((plan.batch * SLOTS + slot, [int(s) for s in signals]))
        out[node.name] = slots
    return out


def weighted_in(grouping: Grouping) -> Weighted | None:
    """The weight grouping that routes some or all rows of a grouping, if one does."""
    if isinstance(grouping, Weighted):
        return grouping
    if isinstance(grouping, LearntSplit) and isinstance(grouping.overflow, Weighted):
        return grouping.overflow
    return None


def service_times(
    topology: Topology, plan: BatchPlan, reports: list[TaskReport]
) -> dict[str, tuple[int, Seconds, Seconds]]:
    """Per operator behind weights: mean execution and waiting time of a row on each instance.

    To every waiting time a few milliseconds are added: differences below that say nothing about a server.
    """
    out: dict[str, tuple[int, Seconds, Seconds]] = {}
    for node in topology.nodes:
        if weighted_in(topology.grouping_of(node)) is None:
            continue
        rows, busy, waited = np.zeros((3, topology.servers))
        for report in reports:
            if report.server >= 0 and report.step <= node.level and node.name in report.operators:
                done = report.operators[node.name]
                rows[report.server] += done.rows_in
                busy[report.server] += done.busy
                waited[report.server] += done.waited
        if rows.any():
            mean = [(busy[s] / rows[s], waited[s] / rows[s]) if rows[s] else None for s in node.placement]
            out[node.name] = (
                plan.batch,
                [None if m is None else float(m[0]) for m in mean],
                [None if m is None else float(m[1]) + NOISE for m in mean],
            )
    return out
