"""What scaling decides by: operators, their edges, the machines of their instances, and what each is worth (ETP)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from weir.errors import TopologyError, did_you_mean

Machine = int | str


@dataclass(frozen=True)
class Graph:
    """Operators and the edges between them.

    >>> graph = Graph(("in", "a", "b", "out"), (("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")))
    >>> graph.sources, graph.sinks, graph.children["in"]
    (('in',), ('out',), ('a', 'b'))
    """

    operators: tuple[str, ...]  # names, in the order in which tables list them
    edges: tuple[tuple[str, str], ...]  # pairs (parent, child). A child gets all that its parent emits

    def __post_init__(self) -> None:
        for name in (end for edge in self.edges for end in edge):
            if name not in self.operators:
                raise TopologyError(f"no operator is called {name!r}; {did_you_mean(name, self.operators)}")
        try:
            TopologicalSorter(self.parents).prepare()
        except CycleError as error:
            raise TopologyError(f"the operators form a cycle: {' → '.join(error.args[1])}") from None

    @cached_property
    def parents(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(a for a, b in self.edges if b == name) for name in self.operators}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(b for a, b in self.edges if a == name) for name in self.operators}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for name in self.operators if not self.parents[name])

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        return tuple(name for name in self.operators if not self.children[name])

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Return the operators, parents before children; among equals as given."""
        depth = self.depth
        return tuple(sorted(self.operators, key=lambda name: depth[name]))

    @cached_property
    def depth(self) -> dict[str, int]:
        """Return the number of edges on the longest path from a source to each operator."""
        depth: dict[str, int] = {}
        for name in TopologicalSorter(self.parents).static_order():
            depth[name] = max((depth[p] + 1 for p in self.parents[name]), default=0)
        return depth


@dataclass(frozen=True)
class Placement:
    """The machine of every instance of every operator.

    >>> here = Placement((0, 1), {"a": (0, 1), "b": (1,)})
    >>> here.total, here.on(1)
    (3, ['a', 'b'])
    >>> here.plus("b", 0).instances["b"]
    (1, 0)
    """

    machines: tuple[Machine, ...]  # all machines, also those that host nothing yet
    # for each operator the machine of each instance: its length is the parallelism
    instances: Mapping[str, tuple[Machine, ...]]

    def __post_init__(self) -> None:
        for name, places in self.instances.items():
            if not places:
                raise TopologyError(f"operator {name!r} has no instance; every operator needs at least one")
            for machine in places:
                if machine not in self.machines:
                    raise TopologyError(
                        f"operator {name!r} is placed on {machine!r}, which is not a machine; "
                        f"known: {', '.join(map(repr, self.machines))}"
                    )

    @property
    def total(self) -> int:
        """Return the number of all instances."""
        return sum(len(places) for places in self.instances.values())

    def parallelism(self) -> dict[str, int]:
        return {name: len(places) for name, places in self.instances.items()}

    def on(self, machine: Machine) -> list[str]:
        """Return the operators of the instances on a machine, one entry per instance."""
        return [name for name, places in self.instances.items() for place in places if place == machine]

    def joined(self, machines: Iterable[Machine]) -> Placement:
        """Return the placement with empty machines added."""
        return Placement((*self.machines, *machines), self.instances)

    def plus(self, operator: str, machine: Machine) -> Placement:
        """Return the placement with one more instance."""
        places = (*self.instances[operator], machine)
        return Placement(self.machines, {**self.instances, operator: places})

    def differs(self, other: Placement) -> list[tuple[str, int]]:
        """Return the instances (operator, number) of this placement that ``other`` has elsewhere or not at all."""
        return [
            (name, i)
            for name, places in self.instances.items()
            for i, machine in enumerate(places)
            if i >= len(other.instances[name]) or other.instances[name][i] != machine
        ]


def effective_sinks(graph: Graph, congested: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the sinks that each operator reaches without passing another congested operator.

    >>> graph = Graph(("a", "b", "c", "d"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
    >>> sorted(effective_sinks(graph, {"b"})["a"])  # still reached, past c
    ['d']
    >>> sorted(effective_sinks(graph, {"b", "c"})["a"])
    []
    """
    reached: dict[str, frozenset[str]] = {}
    # children come after parents in the order, so backwards is a depth-first walk's post-order
    for name in reversed(graph.order):
        if not graph.children[name]:
            reached[name] = frozenset([name])
        else:
            reached[name] = frozenset().union(
                *(reached[child] for child in graph.children[name] if child not in congested)
            )
    return reached


def etp(graph: Graph, throughput: Mapping[str, float], congested: Collection[str]) -> dict[str, float]:
    """Return the effective throughput percentage of every operator.

    The share of the application's throughput (what all its sinks process) that belongs to sinks which an
    operator reaches over at least one path without a congested operator on it. To speed up an operator whose
    rows then queue before a congested child is in vain, so that child hides all that lies behind it.

    ``throughput`` is the rows per second that each *sink* processes.

    Returns
    -------
    dict
        Operator → share in [0, 1]. A sink that is reached over several paths counts once. Never falls when
        congestion goes away. All 0 when nothing comes out.

    References
    ----------
    L. Xu, B. Peng, I. Gupta: Stela: Enabling Stream Processing Systems to Scale-in and Scale-out On-demand.
    IEEE IC2E 2016, Algorithm 1 (whose recursion would count such a sink once per path).

    Examples
    --------
    The paper's example: 4, 7, 8, 9 and 10 are sinks, 4500 rows/s come out, 1, 3, 4 and 6 are congested.

    >>> edges = ["1 2", "1 3", "2 4", "3 5", "3 6", "5 7", "5 8", "6 9", "6 10"]
    >>> graph = Graph(tuple("1 2 3 4 5 6 7 8 9 10".split()), tuple(tuple(e.split()) for e in edges))
    >>> out = {"4": 2000, "7": 1000, "8": 1000, "9": 250, "10": 250}
    >>> share = etp(graph, out, {"1", "3", "4", "6"})
    >>> {name: f"{share[name]:.0%}" for name in ("3", "4", "6", "1")}
    {'3': '44%', '4': '44%', '6': '11%', '1': '0%'}
    >>> ranked(share, {"1", "3", "4", "6"}, graph)
    ['3', '4', '6', '1']
    """
    total = sum(throughput[name] for name in graph.sinks)
    if total <= 0:
        return dict.fromkeys(graph.operators, 0.0)
    reached = effective_sinks(graph, congested)
    # in one fixed order and of at most 1: shares that are equal must compare equal
    return {
        name: min(1.0, sum(throughput[sink] for sink in graph.sinks if sink in reached[name]) / total)
        for name in graph.operators
    }


def ranked(share: Mapping[str, float], among: Collection[str], graph: Graph) -> list[str]:
    """Return operators by falling ETP; among equals the one nearer to the sources comes first, then as given."""
    place = {name: i for i, name in enumerate(graph.order)}
    return sorted(among, key=lambda name: (-share[name], place[name]))
