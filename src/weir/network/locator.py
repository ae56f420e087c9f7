"""Where servers are: their processes, hosts and racks as servers move, and these as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from weir.errors import ParameterError
from weir.network.distance import Place, distances
from weir.network.racks import Racks

Tree = int | Sequence["Tree"]  # racks, hosts and servers as nested lists: [[[0, 1], [2]], [[3]]]


class Locator:
    """The places of the servers of a query, as far as tasks have reported them.

    Tasks report where they run; a server that moves to another host or executor is there from the next report on.
    The process of a server is its own Python worker: what passes between two servers of one executor is packed and
    unpacked like anything else that leaves a process, so their distance is "node". Without ``racks`` all hosts are
    in one rack.

    >>> locator = Locator(2, Racks.of({"b": "/far"}))
    >>> locator.update({0: ("a", "a:1"), 1: ("a", "a:2")})
    [0, 1]
    >>> locator.distances().tolist()
    [[0, 1], [1, 0]]
    >>> locator.update({1: ("b", "b:7")})
    [1]
    >>> locator.distances().tolist()
    [[0, 3], [3, 0]]
    """

    def __init__(self, servers: int, racks: Racks | None = None) -> None:
        self.racks = racks
        self._places: list[Place | None] = [None] * servers

    def place(self, host: str, executor: str, owner: object) -> Place:
        """Return the place of a server, or of anything else that runs tasks of its own."""
        return Place(f"{executor}/{owner}", host, "" if self.racks is None else self.racks[host])

    def update(self, reported: Mapping[int, tuple[str, str]]) -> list[int]:
        """Take in (host, executor) of servers; return the servers that have moved."""
        if self.racks is not None:
            self.racks.find(host for host, _ in reported.values())
        moved = []
        for server, (host, executor) in sorted(reported.items()):
            self._places += [None] * (server + 1 - len(self._places))
            now = self.place(host, executor, server)
            if now != self._places[server]:
                self._places[server] = now
                moved.append(server)
        return moved

    def resize(self, servers: int) -> None:
        """Change the number of servers; the places of new ones are unknown until tasks report them."""
        self._places = self._places[:servers] + [None] * (servers - len(self._places))

    @property
    def complete(self) -> bool:
        """Return whether the places of all servers are known."""
        return all(p is not None for p in self._places)

    @property
    def places(self) -> list[Place]:
        """Return the place of each server; empty until all are known."""
        return [p for p in self._places if p is not None] if self.complete else []

    def distances(self) -> NDArray[np.int8]:
        """Return the distance of any two servers."""
        return distances(self.places, self.places)


def tree_of(places: Sequence[Place]) -> Tree | None:
    """Return racks of hosts of processes of servers as nested lists, without levels that have a single branch.

    None if all servers are equally far from each other: then there is no hierarchy.

    >>> spots = [Place("1", "a", "r"), Place("2", "a", "r"), Place("3", "b", "r"), Place("4", "c", "s")]
    >>> tree_of(spots)
    [[[0, 1], 2], 3]
    >>> tree_of([Place("1", "a"), Place("2", "b")]) is None
    True
    """
    ordered = sorted(range(len(places)), key=lambda i: (places[i].rack, places[i].host, places[i].process, i))
    tree = _nest(ordered, places, ("rack", "host", "process"))
    return None if isinstance(tree, int) or all(isinstance(branch, int) for branch in tree) else tree


def _nest(servers: list[int], places: Sequence[Place], levels: tuple[str, ...]) -> Tree:
    if len(servers) == 1:
        return servers[0]
    if not levels:
        return servers
    groups = [list(g) for _, g in groupby(servers, key=lambda i: getattr(places[i], levels[0]))]
    branches = [_nest(g, places, levels[1:]) for g in groups]
    return branches[0] if len(branches) == 1 else branches


def servers_of(tree: Tree) -> list[int]:
    """Return the servers below a node of the tree.

    >>> servers_of([[[0, 1], [2]], [[3]]])
    [0, 1, 2, 3]
    """
    return [tree] if isinstance(tree, int) else [s for branch in tree for s in servers_of(branch)]


def depth_of(tree: Tree) -> int:
    """Return the number of levels between the root and the deepest server."""
    return 0 if isinstance(tree, int) else 1 + max((depth_of(branch) for branch in tree), default=0)


def closeness(tree: Tree, n: int) -> NDArray[np.float64]:
    """Return, for any two servers, the number of levels (rack, host …) that they share below the root.

    >>> closeness([[0, 1], [2, 3]], 4)[0].tolist()
    [2.0, 1.0, 0.0, 0.0]
    """
    shared = np.zeros((n, n))

    def descend(place: Tree) -> None:
        below = servers_of(place)
        shared[np.ix_(below, below)] += 1
        for branch in [] if isinstance(place, int) else place:
            descend(branch)

    descend(tree)
    return shared - 1


def check_tree(tree: Tree, n: int) -> None:
    """Raise unless a tree names each of the n servers once."""
    if sorted(servers_of(tree)) != list(range(n)):
        raise ParameterError(f"racks must name each server 0 … {n - 1} once, got {servers_of(tree)}")
