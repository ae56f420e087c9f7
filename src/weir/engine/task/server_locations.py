"""Where the servers of a running query are, from batch to batch."""

from __future__ import annotations

from weir.engine.documents import Network, TaskReport
from weir.engine.metrics.traffic import server_locations
from weir.graph.model import Topology
from weir.network.distance import Place
from weir.network.locator import Locator, Tree, tree_of
from weir.network.racks import Racks


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
