"""The operators, their edges, and the machines of their instances: the input of every scaling decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
