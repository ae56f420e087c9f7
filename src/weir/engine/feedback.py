"""What servers say about their load: one bit per time slot, for groupings that listen.

Consistent Grouping needs no capacities. In each time slot a worker says whether it is idle or busy; here a batch
is cut into slots, and a server is busy in a slot as long as it still has work left from the batch. The signals
are part of the commit, and so of the next batch's plan: every source hears the same, and a replay hears it again.
"""

from __future__ import annotations

import numpy as np

from weir.engine.plan import BatchPlan, TaskReport
from weir.grouping.consistent import Consistent
from weir.topology import Topology

SLOTS = 4  # time slots per batch


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
