"""How many instances every operator should have: the rules of DS2 and of Flink's autoscaler.

Stela gives a known number of new slots to the operators that matter most. These two rules turn it round: the sources
say how many rows come, and each operator gets as many instances as that needs, all in one decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from weir.elasticity.graph import Graph
from weir.elasticity.rates import Rates
from weir.errors import ParameterError

Instances = dict[str, int]


def targets(graph: Graph, rates: Mapping[str, Rates], offered: Mapping[str, float]) -> dict[str, float]:
    """Return the rows per second that reach each operator once nobody before it is too slow."""
    comes: dict[str, float] = {}
    for name in graph.order:
        parents = graph.parents[name]
        comes[name] = offered.get(name, 0.0) + sum(comes[p] * rates[p].selectivity for p in parents)
    return comes


def ds2(graph: Graph, rates: Mapping[str, Rates], offered: Mapping[str, float]) -> Instances:
    """Return the instances of each operator by DS2: what should reach it, over what one instance can process.

    What an instance *can* process is rows per second of useful time ("true rate"), so waiting does not blur it. Where
    rates grow linearly with the instances, one decision is right. Where they grow by less, the next decision starts
    from the new rates.

    Parameters
    ----------
    graph, rates
        The application, and what was measured (:class:`~weir.elasticity.rates.Meter` counts useful time).
    offered
        Rows per second that reach operators from outside.

    **Guarantee.** With rates that do not depend on the number of instances, the result is the least with which every
    operator keeps up, whatever the instances are now.

    References
    ----------
    V. Kalavri, J. Liagouris, M. Hoffmann, D. Dimitrova, M. Forshaw, T. Roscoe: Three steps is all you need: fast,
    accurate, automatic scaling decisions for distributed streaming dataflows. OSDI 2018.

    Examples
    --------
    ``split`` emits two rows per row. It keeps up with 1,000 rows/s only with four instances, ``count`` with five.

    >>> graph = Graph(("split", "count"), (("split", "count"),))
    >>> seen = {"split": Rates(1000, 250, 500, parallelism=1), "count": Rates(500, 400, 400, parallelism=1)}
    >>> ds2(graph, seen, {"split": 1000})
    {'split': 4, 'count': 5}
    """
    comes = targets(graph, rates, offered)
    return {name: _enough(comes[name], rates[name]) for name in graph.operators}


def _enough(rows: float, now: Rates) -> int:
    if now.processing <= 0:
        return now.parallelism  # it has not worked yet, so nothing is known
    return max(1, math.ceil(rows / (now.processing / now.parallelism) - 1e-9))


@dataclass(frozen=True)
class FlinkAutoscaler:
    """Flink's autoscaler rule: DS2 with head-room, time to catch up, and a band in which nothing happens.

    Parameters
    ----------
    utilization
        Share of their time that instances should be busy.
    utilization_min, utilization_max
        Inside these bounds an operator is left alone.
    catch_up
        Seconds in which a backlog should be worked off.
    restart
        Seconds for which nothing is processed while the application is rescaled.
    scale_down_max_factor
        Largest part of an operator's instances that one decision takes away.

    Notes
    -----
    Defaults are those of Flink's Kubernetes operator 1.10 (``job.autoscaler.*``). Its time windows, its rounding to
    divisors of the number of key groups, and its memory of decisions that did not help are not part of the rule here.

    References
    ----------
    FLIP-271: Autoscaling. Apache Flink, 2022; documentation of the Flink Kubernetes operator, "Autoscaler".

    Examples
    --------
    >>> graph = Graph(("split", "count"), (("split", "count"),))
    >>> seen = {"split": Rates(1000, 250, 500, parallelism=1), "count": Rates(500, 400, 400, parallelism=1)}
    >>> FlinkAutoscaler().decide(graph, seen, {"split": 1000})
    {'split': 7, 'count': 8}
    >>> FlinkAutoscaler().decide(graph, seen, {"split": 1000}, backlog={"split": 900_000})
    {'split': 9, 'count': 11}
    """

    utilization: float = 0.7
    utilization_min: float = 0.4
    utilization_max: float = 1.0
    catch_up: float = 1800.0
    restart: float = 300.0
    scale_down_max_factor: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.utilization_min <= self.utilization <= self.utilization_max:
            raise ParameterError(f"utilization lies between its bounds, got {self}")
        if self.catch_up <= 0 or self.restart < 0 or not 0 < self.scale_down_max_factor <= 1:
            raise ParameterError(
                f"catch_up is positive, restart not negative, scale_down_max_factor at most 1; got {self}"
            )

    def decide(
        self,
        graph: Graph,
        rates: Mapping[str, Rates],
        offered: Mapping[str, float],
        backlog: Mapping[str, float] | None = None,
    ) -> Instances:
        """Return the instances of each operator; ``backlog`` has the rows that wait at the sources."""
        comes = targets(graph, rates, offered)
        late = targets(graph, rates, {n: rows / self.catch_up for n, rows in (backlog or {}).items()})
        out: Instances = {}
        for name in graph.operators:
            now = rates[name]
            missed = comes[name] * self.restart / self.catch_up  # what piles up while it is rescaled
            least, most = (comes[name] / u + late[name] for u in (self.utilization_max, self.utilization_min))
            if least <= now.processing <= most + missed:
                out[name] = now.parallelism
                continue
            wanted = _enough(comes[name] / self.utilization + late[name] + missed, now)
            kept = math.ceil(now.parallelism * (1 - self.scale_down_max_factor) - 1e-9)
            out[name] = max(kept, wanted)
        return out
