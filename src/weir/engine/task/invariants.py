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

from weir.engine.documents import Counts, Manifest, TaskReport, by_server
from weir.engine.exchange import wire
from weir.errors import EngineError
from weir.graph.model import Topology

WHAT = {wire.DATA: "rows", wire.PARTIAL: "partial states"}

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
    seen = sorted((r.server, step) for r in reports if r.server is not None for step in r.steps)
    if seen != [(i, s) for i in range(servers) for s in range(1, steps + 1)]:
        raise EngineError(
            f"the batch's reports are not one per server and step (got {seen} for {servers} servers and "
            f"{steps} steps). Nothing was committed. Please report this with the Spark version."
        )


def _check_exchanges(topology: Topology, reports: Sequence[TaskReport]) -> None:
    """Rows sent to a server on an edge are the rows it receives; so are states."""
    sent: wire.Tallies = {}  # kind, edge → tally
    received: wire.Tallies = {}
    for report in reports:
        for kind, edge, rows, place, mark in report.posted:
            total = sent.get((kind, edge), (0, 0, 0))
            sent[kind, edge] = total[0] + rows, total[1] + place, (total[2] + mark) % wire.PRIME
        if report.server is not None:
            for kind, edge, rows in report.received:
                wire.add_tally(received, (kind, edge), report.server, rows)
    for where in sorted(sent.keys() | received.keys()):
        one, two = sent.get(where, (0, 0, 0)), received.get(where, (0, 0, 0))
        if one != two:
            raise EngineError(_difference(topology, reports, where, one, two))


def _difference(
    topology: Topology,
    reports: Sequence[TaskReport],
    where: tuple[int, ...],
    sent: wire.Tally,
    got: wire.Tally,
) -> str:
    kind, edge = where
    about = f"operator {topology.nodes[edge].name!r}"
    if kind == wire.DATA:
        about = f"edge {topology.edges[edge].source} → {topology.edges[edge].target}"
    rows, place = sent[0] - got[0], sent[1] - got[1]
    server = place // rows if rows and place % rows == 0 else -1
    whom, to, arrived = "the servers", "they have", got[0]
    if 0 <= server < topology.servers and (got[2] + wire.factor(server) * rows) % wire.PRIME == sent[2]:
        whom, to = f"server {server}", "it has"
        mine = [r for r in reports if r.server == server]
        arrived = sum(n for r in mine for k, e, n in r.received if (k, e) == where)
    return (
        f"{about}: {arrived + rows} {WHAT[kind]} were sent to {whom}, but {to} got {arrived}"
        f"{'' if rows else ', and not as they were addressed'}. Nothing was committed, and the batch can run again. "
        "Please report this."
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
    of_server = by_server(reports, topology.servers)
    for node in topology.stateful:
        before = counts.get(node.name) or [None] * topology.servers
        after[node.name] = [
            _keys_on(node.name, server, of_server[server], manifest, before[server])
            for server in range(topology.servers)
        ]
    return after


def _keys_on(
    name: str, server: int, reports: Sequence[TaskReport], manifest: Manifest, before: int | None
) -> int | None:
    """Return the keys of an operator on a server after the batch; None if nobody knows how many there were."""
    said = sum(r.operators[name].keys_delta for r in reports if name in r.operators)
    added, gone = (sum(r.entries.get(name, (0, 0))[i] for r in reports) for i in (0, 1))
    where = f"operator {name!r} on server {server}"
    if said != added - gone:
        raise EngineError(
            f"{where}: says that its keys change by {said}, but its files add {added} and end {gone}. Nothing was "
            "committed. Please report this; for an operator of your own, see keys_delta of weir.operators.Instance."
        )
    for written in (written for r in reports for written in r.segments if written.replaces is not None):
        if written.operator == name and written.replaces == (0, len(manifest[name][server])):
            merged = 0 if written.ref is None else written.ref.rows
            if before is not None and merged != before:
                raise EngineError(
                    f"{where}: had {before} keys by count, but {merged} when its files were merged. Nothing was "
                    "committed, and the files before are still there. Please report this with the checkpoint."
                )
            before = merged
    if before is None:
        return None
    if before + added - gone < 0:
        raise EngineError(
            f"{where}: {gone} keys went, but there were {before} and {added} came. Nothing was committed."
        )
    return before + added - gone
