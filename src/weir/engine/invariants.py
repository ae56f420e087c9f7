"""What must hold in every batch, checked before its commit: a violation stops the batch, and nothing has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weir.engine.documents import TaskReport
from weir.engine.exchange import wire
from weir.errors import EngineError
from weir.graph.model import Topology

WHAT = {wire.DATA: "rows", wire.PARTIAL: "partial states", wire.STATE: "states that move"}


def check(topology: Topology, reports: Sequence[TaskReport]) -> None:
    """Raise an EngineError unless every server has reported every step, once, and received what was sent to it."""
    _check_reports(topology, reports)
    _check_exchanges(topology, reports)


def _check_reports(topology: Topology, reports: Sequence[TaskReport]) -> None:
    servers, steps = topology.servers, topology.steps
    seen = sorted((r.server, r.step) for r in reports if r.server >= 0 and r.step > 0)
    if seen != [(i, s) for i in range(servers) for s in range(1, steps + 1)]:
        raise EngineError(
            f"the batch's reports are not one per server and step (got {seen} for {servers} servers and "
            f"{steps} steps). Nothing was committed. Please report this with the Spark version."
        )


def _check_exchanges(topology: Topology, reports: Sequence[TaskReport]) -> None:
    """Rows sent to a server on an edge in one step are the rows it receives in the next; so are states."""
    sent: Counter[tuple[int, int, int, int]] = Counter()  # step, kind, edge, server → rows
    received: Counter[tuple[int, int, int, int]] = Counter()
    for report in reports:
        for kind, edge, server, rows in report.posted:
            sent[report.step + 1, kind, edge, server] += rows
        for kind, edge, rows in report.received:
            received[report.step, kind, edge, report.server] += rows
    for where in sorted(sent.keys() | received.keys()):
        if sent[where] != received[where]:
            step, kind, edge, server = where
            about = (
                f"edge {topology.edges[edge].source} → {topology.edges[edge].target}"
                if kind == wire.DATA
                else f"operator {topology.nodes[edge].name!r}"
            )
            raise EngineError(
                f"{about}: {sent[where]} {WHAT[kind]} were sent to server {server} for step {step}, but it has got "
                f"{received[where]}. Nothing was committed, and the batch can run again. Please report this."
            )
