"""Rows and bytes by distance: every server counts what comes to it, by how far away the sender ran.

Distances are those between the hosts where the two tasks really ran; racks are those that the plan names, and a host
that it does not name is in none of them. Rows that stay on their server are handed on in memory: they are ``process``
and weigh no bytes. What goes to another server of the same host is packed, written and read again, within one executor
too: that is ``node``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weir.engine.documents import Network, TaskReport
from weir.engine.exchange.wire import sender_of
from weir.engine.progress import Traffic
from weir.graph.model import Topology
from weir.network.distance import Distance, Place
from weir.network.locator import Locator, Tree, tree_of
from weir.network.racks import Racks

NAMES = [d.name.lower() for d in Distance]


def nothing() -> Traffic:
    """No rows and no bytes at any distance."""
    return {name: {"rows": 0, "bytes": 0} for name in NAMES}


class Distances:
    """How far senders are from one server that runs on ``host``; ``places`` are those of the plan.

    >>> distances = Distances([Place("1", "a", "/x"), Place("2", "b", "/y")], 0, "a")
    >>> [distances.of(sender).name for sender in ("0@a", "7@a", "1@b", "@c")]
    ['PROCESS', 'NODE', 'ANY', 'ANY']
    """

    def __init__(self, places: Sequence[Place], server: int | None, host: str) -> None:
        self._racks = {p.host: p.rack for p in places}
        self._server, self.host = server, host
        self._rack = self._racks.get(host, "")
        self._known: dict[str, Distance] = {}

    def of(self, sender: str) -> Distance:
        """Return how far a sender is, given as :func:`~weir.engine.exchange.wire.sender_name` spells it."""
        if sender not in self._known:
            self._known[sender] = self._distance(*sender_of(sender))
        return self._known[sender]

    def count(self, counts: dict[int, tuple[int, int]], sender: str, rows: int, size: int) -> None:
        """Count rows from a sender (not if it has no name); what a server sends to itself weighs nothing."""
        if not sender:
            return
        far = int(self.of(sender))
        before = counts.get(far, (0, 0))
        counts[far] = before[0] + rows, before[1] + (size if far else 0)

    def _distance(self, server: int | None, host: str) -> Distance:
        if server is not None and server == self._server:
            return Distance.PROCESS
        if host == self.host:
            return Distance.NODE
        return Distance.RACK if self._racks.get(host, "") == self._rack else Distance.ANY


def by_distance(topology: Topology, reports: Iterable[TaskReport]) -> tuple[dict[int, Traffic], Traffic]:
    """Return what crossed each edge, by distance, and the same for partial states on their way home."""
    traffic = {index: nothing() for index in (-1, *(edge.index for edge in topology.edges))}
    by_number = {index: [counts[name] for name in NAMES] for index, counts in traffic.items()}
    at_home = int(Distance.PROCESS)
    for report in reports:
        for index, count in report.edges.items():
            counts = by_number[index]
            counts[at_home]["rows"] += count.local
            for far, (rows, size) in count.arrived.items():
                if far != at_home:  # these waited on their server for a later step, and are counted above
                    counts[far]["rows"] += rows
                    counts[far]["bytes"] += size
        for far, (rows, size) in report.partials.items():
            by_number[-1][far]["rows"] += rows
            by_number[-1][far]["bytes"] += size
    partials = traffic.pop(-1)
    return traffic, partials


def server_locations(reports: Iterable[TaskReport]) -> dict[int, tuple[str, str]]:
    """Return where each server ran its last step: host and executor."""
    steps = sorted((r for r in reports if r.step > 0), key=lambda r: r.step)
    return {r.server: (r.host, r.process) for r in steps if r.server is not None}


class ServerLocations:
    """The driver's side of the network locator.

    A batch routes by the places that its plan names, which are those where servers were last seen: where a task
    happens to run is never asked when a row is routed, so a task that runs again elsewhere routes as before.
    """

    def __init__(self, topology: Topology, racks: Racks | None = None, wants_places: bool = False) -> None:
        self.locator = Locator(topology.servers, racks)
        self.moved: list[int] = []
        self.wants_places = wants_places or any(e.grouping.uses_distances for e in topology.edges)

    def start(self, said: dict[int, tuple[str, str]]) -> None:
        """Take in where servers say they are before the first batch."""
        self.locator.update(said)

    def observe(self, servers: int, reports: list[TaskReport]) -> None:
        """Take in where the servers ran their tasks."""
        self.locator.resize(servers)
        before = self.locator.complete
        moved = self.locator.update(server_locations(reports))
        self.moved = moved if before else []

    def network(self, servers: int) -> Network | None:
        """Return what a plan for so many servers says about the network; None before all their places are known."""
        places = self.locator.places if len(self.locator.places) == servers else []
        return Network([(p.process, p.host, p.rack) for p in places]) if places else None

    def tree(self, servers: int) -> Tree | None:
        """So many servers by rack and host, if all are known and there is anything to choose between."""
        return tree_of(self.locator.places) if len(self.locator.places) == servers else None


def places_of(network: Network | None) -> list[Place]:
    """Return the places that a plan names, per server; empty if it names none."""
    return [] if network is None else [Place(*p) for p in network.places]
