"""Rows and bytes by distance: who sent how much to whom is in the reports, and where everybody ran.

Distances are those between the places where the two tasks really ran. Rows that stay on their server are handed on
in memory: they are ``process`` and weigh no bytes. What goes to another server of the same host is packed, written and
read again, within one executor too: that is ``node``. Rows that the JVM routes on their way from a source come from
readers that nobody can place; they are counted apart, as ``source``.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.engine.documents import TaskReport
from weir.engine.metrics.progress import Traffic
from weir.graph.model import Topology
from weir.network.distance import Distance, Place, distance
from weir.network.locator import Locator

SOURCE = "source"
NAMES = [*(d.name.lower() for d in Distance), SOURCE]


def nothing() -> Traffic:
    """No rows and no bytes at any distance."""
    return {name: {"rows": 0, "bytes": 0} for name in NAMES}


def added(parts: Iterable[Traffic]) -> Traffic:
    """Return the sum of several counts."""
    out = nothing()
    for part in parts:
        for name, counts in part.items():
            out[name]["rows"] += counts["rows"]
            out[name]["bytes"] += counts["bytes"]
    return out


def by_distance(
    topology: Topology, reports: list[TaskReport], locator: Locator
) -> tuple[dict[int, Traffic], Traffic]:
    """Return what crossed each edge, by distance, and the same for partial states on their way home."""
    at: dict[tuple[int, int], Place] = {}
    for r in reports:
        if r.server >= 0 and r.step > 0:
            at[r.server, r.step] = locator.place(r.host, r.process, r.server)
    known: dict[tuple[Place, Place], str] = {}

    def name(report: TaskReport, to: int) -> str:
        who = report.server if report.server >= 0 else SOURCE
        here, there = locator.place(report.host, report.process, who), at[to, report.step + 1]
        if (here, there) not in known:
            known[here, there] = NAMES[distance(here, there)]
        return known[here, there]

    edges = {edge.index: nothing() for edge in topology.edges}
    partials = nothing()
    for report in reports:
        for index, count in report.edges.items():
            traffic = edges[index]
            traffic[NAMES[Distance.PROCESS]]["rows"] += count.local
            _add(traffic, SOURCE, *count.entered)
            for to, sent in count.sent.items():
                _add(traffic, name(report, to), *sent)
        for to, sent in report.partials.items():
            if to == report.server:
                partials[NAMES[Distance.PROCESS]]["rows"] += sent[0]
            else:
                _add(partials, name(report, to), *sent)
    return edges, partials


def _add(traffic: Traffic, name: str, rows: int, size: int) -> None:
    traffic[name]["rows"] += rows
    traffic[name]["bytes"] += size


def whereabouts(reports: Iterable[TaskReport]) -> dict[int, tuple[str, str]]:
    """Return where each server ran its last step: host and executor."""
    steps = sorted((r for r in reports if r.server >= 0 and r.step > 0), key=lambda r: r.step)
    return {r.server: (r.host, r.process) for r in steps}
