"""Other ways to scale, behind the same interface, to compare Stela with: ``query.scale_out(strategy=Gain())``.

The topology-aware orders *move* instances to the new machines instead of adding any, the most important operators
first, and differ in what they hold important; all of them were tried by Stela's authors (L. Xu, B. Peng, I. Gupta,
IEEE IC2E 2016, Section III-C), who found least link load (after Aniello, Baldoni, Querzoni: Adaptive online
scheduling in Storm, DEBS 2013) the best of them.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from weir.elasticity.decision import Decision, Situation, Step, Strategy, joining, leaving, slots
from weir.elasticity.graph import Graph, Machine, Placement, ranked
from weir.elasticity.stela import Stela, project, remove
from weir.errors import EngineError


@dataclass(frozen=True)
class Gain(Stela):
    """Stela, but by the projected gain in throughput instead of the present throughput behind an operator.

    ETP looks at what the sinks behind an operator do *now*. The rates that it is computed from can tell more:
    projected through the whole graph, they say what one more instance would add to the throughput. A slot goes to
    the operator that adds most; where a single instance adds nothing anywhere (two in a row are equally slow, or
    one child takes all its parents send), to the one that Stela would choose.

    Scaling in is Stela's.

    Both sinks are slow. ``a`` puts out more now, but one more instance of it helps less.

    >>> from weir.elasticity.rates import Rates
    >>> from weir.elasticity.graph import Graph
    >>> graph = Graph(("in", "a", "b"), (("in", "a"), ("in", "b")))
    >>> rates = {"in": Rates(900, 900, 900), "a": Rates(900, 600, 600, 6), "b": Rates(900, 300, 300, 1)}
    >>> here = Placement((0, 1), {"in": (0,), "a": (0,) * 3 + (1,) * 3, "b": (1,)})
    >>> now = Situation(graph, rates, here)
    >>> [step.operator for step in Stela().scale_out(now, [2]).steps]
    ['a', 'a', 'b', 'b']
    >>> [f"{step.operator} {step.why}" for step in Gain().scale_out(now, [2]).steps][:2]
    ['b brings out 300/s more', 'b brings out 300/s more']
    """

    name: ClassVar[str] = "gain"

    def _target(self, now: Situation, after: Placement, machine: Machine) -> tuple[str | None, str]:
        graph = now.graph
        free = {n for n in graph.operators if n not in now.everywhere and now.fits(after, n, machine)}
        comes_out = _throughput(now)
        more = {
            name: _throughput(replace(now, rates=project(graph, dict(now.rates), name))) - comes_out
            for name in free
        }
        best = max(more.values(), default=0.0)
        if best <= 1e-6 * comes_out:
            return super()._target(now, after, machine)
        equal = {name for name in free if more[name] >= best * (1 - 1e-9)}
        target = ranked(now.etp(), equal, graph)[0]
        return target, f"brings out {more[target]:,.0f}/s more"


def _throughput(now: Situation) -> float:
    return sum(now.rates[name].throughput for name in now.graph.sinks)


@dataclass(frozen=True)
class Default(Strategy):
    """Storm's own: places all instances anew, machine after machine, whatever the placement was.

    The machines that leave, if they are not named, are chosen at random. The whole application is taken down for it
    (:func:`restarts`).

    >>> from weir.elasticity.rates import Rates
    >>> from weir.elasticity.graph import Graph
    >>> graph = Graph(("a", "b"), (("a", "b"),))
    >>> here = Placement((0, 1), {"a": (0, 1), "b": (0, 1)})
    >>> now = Situation(graph, {"a": Rates(1, 1, 1, 2), "b": Rates(1, 1, 1, 2)}, here)
    >>> Default().scale_out(now, [2]).after.instances
    {'a': (0, 1), 'b': (2, 0)}
    """

    seed: int = 0
    name: ClassVar[str] = "default"

    def scale_out(self, now: Situation, machines: Sequence[Machine]) -> Decision:
        after, everywhere = joining(now, machines)
        return self._dealt(now, "out", after, machines, everywhere)

    def scale_in(
        self, now: Situation, count: int = 1, *, machines: Sequence[Machine] | None = None
    ) -> Decision:
        count = leaving(now, count, machines)
        gone = chosen_at_random(now, count, machines, self.seed)
        rest = tuple(machine for machine in now.placement.machines if machine not in gone)
        kept = {
            name: rest if name in now.everywhere else (rest[0],) * len(places)
            for name, places in now.placement.instances.items()
        }
        return self._dealt(now, "in", Placement(rest, kept), gone, [])

    def _dealt(
        self, now: Situation, operation: str, base: Placement, machines: Sequence[Machine], steps: list[Step]
    ) -> Decision:
        instances: dict[str, tuple[Machine, ...]] = {}
        turn = 0
        for name, places in base.instances.items():
            if name in now.everywhere:
                instances[name] = places
                continue
            k = len(places)
            if now.distinct and k > len(base.machines):
                raise EngineError(f"{k} instances of {name!r} do not fit on {len(base.machines)} machines")
            instances[name] = tuple(base.machines[(turn + i) % len(base.machines)] for i in range(k))
            turn += k
        after = Placement(base.machines, instances)
        moves = [
            Step(name, after.instances[name][i], now.placement.instances[name][i], why="dealt out again")
            for name, i in now.placement.differs(after)
            if i < len(after.instances[name])
        ]
        return self.decide(now, operation, after, machines, steps + moves)


def restarts(decision: Decision) -> bool:
    """Return whether a decision takes the whole application down."""
    return decision.strategy == Default.name


def chosen_at_random(
    now: Situation, count: int, machines: Sequence[Machine] | None, seed: int
) -> list[Machine]:
    """Return the machines that leave: the named ones, else some that the seed draws."""
    if machines is not None:
        return list(dict.fromkeys(machines))
    return random.Random(seed).sample(list(now.placement.machines), count)


@dataclass(frozen=True)
class _Rival(Strategy):
    """Removes machines chosen at random; their instances go to the others in turn."""

    seed: int = 0

    def scale_in(
        self, now: Situation, count: int = 1, *, machines: Sequence[Machine] | None = None
    ) -> Decision:
        count = leaving(now, count, machines)
        gone = chosen_at_random(now, count, machines, self.seed)
        after, steps = now.placement, list[Step]()
        rest = [machine for machine in after.machines if machine not in gone]
        for victim in gone:
            turn = len(steps) % len(rest)  # go on where the last machine's instances ended
            after, moves = remove(now, after, victim, rest[turn:] + rest[:turn])
            steps += moves
        return self.decide(now, "in", after, gone, steps)


@dataclass(frozen=True)
class Random(_Rival):
    """Adds as many instances as Stela, of operators chosen at random: the effect of adding alone."""

    name: ClassVar[str] = "random"

    def scale_out(self, now: Situation, machines: Sequence[Machine]) -> Decision:
        after, steps = joining(now, machines)
        dice = random.Random(self.seed)
        for slot in range(slots(now, len(machines))):
            machine = machines[slot % len(machines)]
            free = [n for n in now.graph.operators if n not in now.everywhere and now.fits(after, n, machine)]
            if free:
                target = dice.choice(free)
                after = after.plus(target, machine)
                steps.append(Step(target, machine, why="drawn at random"))
        return self.decide(now, "out", after, machines, steps)


class _Order(_Rival):
    """Moves instances to the new machines until these hold their share, the most important operators first."""

    @abstractmethod
    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        """Return the rank of an operator, the greatest first; ``moved`` are the operators that have moved so far."""

    def scale_out(self, now: Situation, machines: Sequence[Machine]) -> Decision:
        after, steps = joining(now, machines)
        old = set(now.placement.machines)
        wanted = slots(now, 1) * len(now.placement.machines) // len(after.machines) or 1
        moved: list[str] = []
        for slot in range(wanted * len(machines)):
            machine = machines[slot % len(machines)]
            free = [
                name
                for name in now.graph.order
                if name not in now.everywhere
                and now.fits(after, name, machine)
                and any(place in old for place in after.instances[name])
            ]
            if not free:
                break
            target = max(free, key=lambda name: self.importance(now, name, moved))
            after, step = self._move(after, target, machine, old)
            steps.append(step)
            moved.append(target)
        return self.decide(now, "out", after, machines, steps)

    def _move(
        self, after: Placement, name: str, machine: Machine, old: set[Machine]
    ) -> tuple[Placement, Step]:
        places = after.instances[name]
        stays = [i for i, place in enumerate(places) if place in old]
        i = max(stays, key=lambda i: len(after.on(places[i])))  # off the fullest machine
        new = (*places[:i], machine, *places[i + 1 :])
        step = Step(name, machine, source=places[i], why=self.name)
        return Placement(after.machines, {**after.instances, name: new}), step


def link_load(now: Situation, operator: str) -> float:
    """Return the rows per second on all links of an operator."""
    sent = now.rates[operator].emit * len(now.graph.children[operator])
    return sent + sum(now.rates[parent].emit for parent in now.graph.parents[operator])


@dataclass(frozen=True)
class LeastLinkLoad(_Order):
    """Operators with quiet links first, and next to each other as far as possible."""

    name: ClassVar[str] = "least link load"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        graph = now.graph
        near = sum(other in graph.children[operator] + graph.parents[operator] for other in moved)
        quiet = 1 - link_load(now, operator) / (1 + max(link_load(now, name) for name in graph.operators))
        return near + quiet  # quiet is below 1: nearness counts first


@dataclass(frozen=True)
class MostLinkLoad(_Order):
    """Operators with busy links first."""

    name: ClassVar[str] = "most link load"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        return link_load(now, operator)


@dataclass(frozen=True)
class FromSource(_Order):
    """Operators near the sources first: all the rest depends on them."""

    name: ClassVar[str] = "distance from source"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        return -now.graph.depth[operator]


@dataclass(frozen=True)
class ToSink(_Order):
    """Operators near the sinks first: what they process is the output."""

    name: ClassVar[str] = "distance to sink"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        return -Graph(now.graph.operators, tuple((b, a) for a, b in now.graph.edges)).depth[operator]


def descendants(graph: Graph, name: str) -> set[str]:
    """Return all operators that can be reached from one, without itself.

    >>> descendants(Graph(("in", "a", "out"), (("in", "a"), ("a", "out"))), "a")
    {'out'}
    """
    reached: set[str] = set()
    ahead = list(graph.children[name])
    while ahead:
        one = ahead.pop()
        if one not in reached:
            reached.add(one)
            ahead.extend(graph.children[one])
    return reached


@dataclass(frozen=True)
class Descendants(_Order):
    """Operators with many others behind them first."""

    name: ClassVar[str] = "descendants"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        return len(descendants(now.graph, operator))


@dataclass(frozen=True)
class Centrality(_Order):
    """Operators with many edges first."""

    name: ClassVar[str] = "centrality"

    def importance(self, now: Situation, operator: str, moved: Sequence[str]) -> float:
        return len(now.graph.children[operator]) + len(now.graph.parents[operator])


RIVALS: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (LeastLinkLoad, MostLinkLoad, FromSource, ToSink, Descendants, Centrality, Random)
}
STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (Stela, Gain, Default)} | RIVALS
