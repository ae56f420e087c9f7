"""The strategies by name, and Storm's default, which starts all over, to compare Stela with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from weir.elasticity.decision import Decision, Situation, Step, Strategy, joining, leaving
from weir.elasticity.gain import Gain
from weir.elasticity.graph import Machine, Placement
from weir.elasticity.stela import Stela
from weir.errors import EngineError


@dataclass(frozen=True)
class Default(Strategy):
    """Storm's own: places all instances anew, machine after machine, whatever the placement was.

    The machines that leave, if they are not named, are chosen at random.

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
    restarts: ClassVar[bool] = True

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
        fullest = max(sum(n not in now.everywhere for n in after.on(m)) for m in after.machines)
        if now.room is not None and fullest > now.room:
            raise EngineError(f"a machine would get {fullest} instances, but holds at most {now.room}")
        moves = [
            Step(name, after.instances[name][i], now.placement.instances[name][i], why="dealt out again")
            for name, i in now.placement.differs(after)
            if i < len(after.instances[name])
        ]
        return self.decide(now, operation, after, machines, steps + moves)


def chosen_at_random(
    now: Situation, count: int, machines: Sequence[Machine] | None, seed: int
) -> list[Machine]:
    """Return the machines that leave: the named ones, else some that the seed draws."""
    if machines is not None:
        return list(dict.fromkeys(machines))
    return random.Random(seed).sample(list(now.placement.machines), count)


# other distributions may add to it
STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (Stela, Gain, Default)}
