"""The network locator: which process, host and rack each server is in, kept up to date as servers move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from weir.network.distance import Place, distances
from weir.network.racks import Racks
from weir.network.tree import Tree


class Locator:
    """Where the servers of a query are, as far as anybody has said.

    Tasks say where they run. A server that moves to another host or executor is known to be there from then on.
    The process of a server is its own Python worker: what passes between two servers of one executor is packed and
    unpacked like anything else that leaves a process, so their distance is "node".

    Parameters
    ----------
    servers
        How many there are.
    racks
        The racks of hosts. Without them all hosts are in one rack.

    Examples
    --------
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

    def place(self, host: str, executor: str, who: object) -> Place:
        """The place of a server, or of anything else that runs tasks of its own."""
        return Place(f"{executor}/{who}", host, "" if self.racks is None else self.racks[host])

    def update(self, said: Mapping[int, tuple[str, str]]) -> list[int]:
        """Takes in (host, executor) of servers; returns those that are elsewhere than before."""
        if self.racks is not None:
            self.racks.find(host for host, _ in said.values())
        moved = []
        for server, (host, executor) in sorted(said.items()):
            self._places += [None] * (server + 1 - len(self._places))
            now = self.place(host, executor, server)
            if now != self._places[server]:
                self._places[server] = now
                moved.append(server)
        return moved

    def resize(self, servers: int) -> None:
        """Another number of servers; new ones are nowhere until they say so."""
        self._places = self._places[:servers] + [None] * (servers - len(self._places))

    @property
    def known(self) -> bool:
        """Whether every server has said where it is."""
        return all(p is not None for p in self._places)

    @property
    def places(self) -> list[Place]:
        """The place of each server; empty until all are known."""
        return [p for p in self._places if p is not None] if self.known else []

    def distances(self) -> NDArray[np.int8]:
        """The distance of any two servers."""
        return distances(self.places, self.places)


def tree_of(places: Sequence[Place]) -> Tree | None:
    """Racks of hosts of processes of servers, as nested lists; levels at which there is no choice are left out.

    None if there is only one kind of neighbour: then a hierarchy has nothing to say.

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
