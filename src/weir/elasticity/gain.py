"""A strategy beyond Stela: each slot goes to the operator whose new instance adds most to the throughput."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weir.elasticity.decision import Situation
from weir.elasticity.etp import ranked
from weir.elasticity.graph import Machine, Placement
from weir.elasticity.stela import Stela, project


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
