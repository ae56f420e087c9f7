"""What must hold in every batch, checked before its commit: a violation stops the batch, and nothing has happened.

* Every server has reported every step, once.
* What was sent to a server in one step is what it received in the next: rows per edge, states per operator.
* Keys that leave a server because they move arrive on others: as many as left.
* The keys of an operator on a server are those before, plus those that came into being, minus those that went. Each
  operator says so itself; whoever writes its entries looks what they change in the state that is there; and when all
  segments of a server are merged into one, it has an entry for each of them.

``enabled`` is there to measure what that costs (``weir bench invariants``), and for nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weir.engine.documents import Counts, Manifest, TaskReport
from weir.engine.exchange import wire
from weir.errors import EngineError
from weir.graph.model import Topology

WHAT = {wire.DATA: "rows", wire.PARTIAL: "partial states", wire.STATE: "states that move"}

enabled = True


def check(topology: Topology, reports: Sequence[TaskReport], manifest: Manifest, counts: Counts) -> Counts:
    """Raise an EngineError unless all of the above holds; return the keys of each operator on each server.

    ``manifest`` and ``counts`` are the state before the batch, by the servers' numbers in it.
    """
    _check_reports(topology, reports)
    if not enabled:
        return {}
    _check_exchanges(topology, reports)
    _check_moves(reports)
    return _check_keys(topology, reports, manifest, counts)


def _check_reports(topology: Topology, reports: Sequence[TaskReport]) -> None:
    servers, steps = topology.servers, topology.steps
    seen = sorted((r.server, r.step) for r in reports if r.server >= 0 and r.step > 0)
    if seen != [(i, s) for i in range(servers) for s in range(1, steps + 1)]:
        raise EngineError(
            f"the batch's reports are not one per server and step (got {seen} for {servers} servers and "
            f"{steps} steps). Nothing was committed. Please report this with the Spark version."
        )


def _check_exchanges(topology: Topology, reports: Sequence[TaskReport]) -> None:
    """Rows sent to a server on an edge are the rows it receives; so are states."""
    sent: Counter[tuple[int, int, int]] = Counter()  # kind, edge, server → rows
    received: Counter[tuple[int, int, int]] = Counter()
    for report in reports:
        for kind, edge, server, rows in report.posted:
            sent[kind, edge, server] += rows
        for kind, edge, rows in report.received:
            received[kind, edge, report.server] += rows
    for where in sorted(sent.keys() | received.keys()):
        if sent[where] != received[where]:
            kind, edge, server = where
            about = (
                f"edge {topology.edges[edge].source} → {topology.edges[edge].target}"
                if kind == wire.DATA
                else f"operator {topology.nodes[edge].name!r}"
            )
            raise EngineError(
                f"{about}: {sent[where]} {WHAT[kind]} were sent to server {server}, but it has got "
                f"{received[where]}. Nothing was committed, and the batch can run again. Please report this."
            )


def _check_moves(reports: Sequence[TaskReport]) -> None:
    """Keys that the plan moves arrive as often as they leave."""
    arrived: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for report in reports:
        for name, (came, went) in report.moved.items():
            arrived[name] += came
            left[name] += went
    for name in sorted(arrived.keys() | left.keys()):
        if arrived[name] != left[name]:
            who = {r.server: r.moved[name] for r in reports if name in r.moved}
            raise EngineError(
                f"operator {name!r}: the states of {left[name]} keys left their servers, but {arrived[name]} arrived "
                f"(server: arrived, left: {who}). Nothing was committed. Please report this."
            )


def _check_keys(
    topology: Topology, reports: Sequence[TaskReport], manifest: Manifest, counts: Counts
) -> Counts:
    after: Counts = {}
    for node in topology.stateful:
        before = counts.get(node.name) or [None] * topology.servers
        after[node.name] = [
            _keys_on(node.name, server, [r for r in reports if r.server == server], manifest, before[server])
            for server in range(topology.servers)
        ]
    return after


def _keys_on(
    name: str, server: int, reports: Sequence[TaskReport], manifest: Manifest, before: int | None
) -> int | None:
    """Return the keys of an operator on a server after the batch; None if nobody knows how many there were."""
    said = sum(r.operators[name].keys_delta for r in reports if name in r.operators)
    born, gone = (sum(r.entries.get(name, (0, 0))[i] for r in reports) for i in (0, 1))
    where = f"operator {name!r} on server {server}"
    if said != born - gone:
        raise EngineError(
            f"{where}: says that its keys change by {said}, but its files add {born} and end {gone}. Nothing was "
            "committed. Please report this; for an operator of your own, see keys_delta of weir.operators.Instance."
        )
    for made in (made for r in reports for made in r.segments):
        if made.operator == name and made.replaces == (0, len(manifest[name][server])):
            merged = 0 if made.ref is None else made.ref.rows
            if before is not None and merged != before:
                raise EngineError(
                    f"{where}: had {before} keys by count, but {merged} when its files were merged. Nothing was "
                    "committed, and the files before are still there. Please report this with the checkpoint."
                )
            before = merged
    if before is None:
        return None
    if before + born - gone < 0:
        raise EngineError(
            f"{where}: {gone} keys went, but there were {before} and {born} came. Nothing was committed."
        )
    return before + born - gone
