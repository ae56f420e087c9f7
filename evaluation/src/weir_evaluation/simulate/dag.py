"""Rates through a whole graph of operators: who is congested, and what comes out at the end.

A fluid model: messages are amounts, not individuals. It answers questions about operators, parallelism and
machines (where is the bottleneck, what does one more instance gain, what does a stop cost); for keys and
their skew see :mod:`weir_evaluation.simulate.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from weir.errors import TopologyError, did_you_mean

Series = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedOperator:
    """One operator.

    Parameters
    ----------
    name
        Its name in the graph.
    rate
        Messages per second that one instance processes with a core of its own; what it emits, for a source.
    selectivity
        Messages emitted per message processed, on every outgoing edge.
    cpu
        Share of a core that an instance needs while it works; the rest of the time it waits for others
        (a database, a disk), which does not hinder its neighbours.
    """

    name: str
    rate: float
    selectivity: float = 1.0
    cpu: float = 1.0


@dataclass(frozen=True)
class Deployment:
    """Operators, edges, and the machine of every instance.

    Parameters
    ----------
    operators
        The nodes; those without incoming edge are sources, those without outgoing edge sinks.
    edges
        Pairs of names. Every child gets all that its parent emits, spread evenly over its instances.
    placement
        For each operator the machine of each of its instances: its length is the parallelism.
    cores
        Cores per machine. An instance uses at most one; where instances want more than there is, all get
        the same and those with less to do leave their rest to the others.
    """

    operators: tuple[SimulatedOperator, ...]
    edges: tuple[tuple[str, str], ...]
    placement: Mapping[str, Sequence[int]]
    cores: Sequence[float]

    def __post_init__(self) -> None:
        names = [operator.name for operator in self.operators]
        for name in [end for edge in self.edges for end in edge] + list(self.placement):
            if name not in names:
                raise TopologyError(f"no operator is called {name!r}; {did_you_mean(name, names)}")
        for name in names:
            places = self.placement.get(name, ())
            if not places or not 0 <= min(places) <= max(places) < len(self.cores):
                raise TopologyError(
                    f"operator {name!r} needs instances on machines 0 … {len(self.cores) - 1}"
                )
        try:
            TopologicalSorter({name: self.parents(name) for name in names}).prepare()
        except CycleError as error:
            raise TopologyError(f"the operators form a cycle: {' → '.join(error.args[1])}") from None

    def parents(self, name: str) -> list[str]:
        return [a for a, b in self.edges if b == name]

    def sources(self) -> list[str]:
        return [operator.name for operator in self.operators if not self.parents(operator.name)]

    def sinks(self) -> list[str]:
        return [o.name for o in self.operators if all(a != o.name for a, _ in self.edges)]


@dataclass(frozen=True)
class DeploymentPhase:
    """From ``at`` on this deployment holds; nothing runs for the first ``pause`` seconds."""

    at: float
    deployment: Deployment
    pause: float = 0.0


@dataclass(eq=False)
class SimulatedFlow:
    """Rates (per second), queues and busy instances of every operator over time.

    An instance is busy while it works or waits for a core; with nothing to do it is not.
    """

    time: Series
    arriving: dict[str, Series] = field(default_factory=dict)
    processed: dict[str, Series] = field(default_factory=dict)
    queue: dict[str, Series] = field(default_factory=dict)
    busy: dict[str, Series] = field(default_factory=dict)
    sinks: list[str] = field(default_factory=list)

    def throughput(self) -> Series:
        """What all sinks process together."""
        return np.sum([self.processed[name] for name in self.sinks], axis=0)


def flow(
    stages: Sequence[DeploymentPhase],
    seconds: float,
    *,
    step: float = 0.1,
    pending: float | None = None,
    timeout: float | None = None,
    jitter: float = 0.0,
    seed: int = 0,
) -> SimulatedFlow:
    """Runs the graph through one or several deployments of the same operators.

    Parameters
    ----------
    stages
        What is deployed from when on; the first starts at 0. Queues are carried over, spread evenly.
    seconds
        Length of the run.
    step
        Length of a step; a message needs at least one per hop.
    pending
        Sources hold back while more than this many messages are queued in all.
    timeout
        A queue holds what its instance can process alone in so many seconds; what arrives beyond that is
        given up, as an engine does with messages that wait too long.
    jitter
        Standard deviation of an instance's speed from step to step, as a share of it.
    seed
        Of the jitter.

    Examples
    --------
    The second operator is the bottleneck; a second instance on another machine doubles what comes out.

    >>> nodes = (SimulatedOperator("in", 900), SimulatedOperator("slow", 300), SimulatedOperator("out", 2000))
    >>> edges = (("in", "slow"), ("slow", "out"))
    >>> before = Deployment(nodes, edges, {"in": [0], "slow": [0], "out": [0]}, [4])
    >>> after = Deployment(nodes, edges, {"in": [0], "slow": [0, 1], "out": [0]}, [4, 4])
    >>> ran = flow([DeploymentPhase(0, before), DeploymentPhase(30, after)], 60, pending=500)
    >>> ran.throughput()[[250, 550]].round().tolist()
    [300.0, 600.0]
    """
    if not stages or stages[0].at != 0:
        raise ValueError("the first stage must start at 0")
    steps = round(seconds / step)
    names = [operator.name for operator in stages[0].deployment.operators]
    ran = SimulatedFlow(np.arange(1, steps + 1, dtype=np.float64) * step, sinks=stages[0].deployment.sinks())
    for what in (ran.arriving, ran.processed, ran.queue, ran.busy):
        what.update({name: np.zeros(steps) for name in names})
    number = {name: i for i, name in enumerate(names)}
    waiting: Series = np.zeros(len(names))
    dice = np.random.default_rng(seed)
    for stage, until in zip(stages, [*(s.at for s in stages[1:]), seconds], strict=True):
        plan = _Plan(stage.deployment, number)
        queue = waiting[plan.of] / plan.parallel
        for k in range(round(stage.at / step), min(steps, round(until / step))):
            arriving, processed, busy = np.zeros((3, len(queue)))
            if k * step >= stage.at + stage.pause - 1e-9:
                held = pending is not None and queue[~plan.source].sum() > pending
                rate = plan.rate
                if jitter:
                    rate = rate * np.maximum(0.1, 1 + jitter * dice.standard_normal(len(rate)))
                want = np.where(plan.source, 0.0 if held else rate * step, queue)
                processed, busy = plan.share(want, rate * step)
                arriving = plan.wires @ processed
                queue = np.where(plan.source, 0.0, queue - processed + arriving)
                if timeout is not None:
                    queue = np.minimum(queue, timeout * plan.rate)
            for what, amount in (
                (ran.arriving, arriving / step),
                (ran.processed, processed / step),
                (ran.queue, queue),
                (ran.busy, busy),
            ):
                total = np.bincount(plan.of, amount, minlength=len(names))
                for name, i in number.items():
                    what[name][k] = total[i]
        waiting = np.bincount(plan.of, queue, minlength=len(names)).astype(np.float64)
    return ran


class _Plan:
    """A deployment as arrays over all instances."""

    def __init__(self, deployment: Deployment, number: dict[str, int]) -> None:
        if {operator.name for operator in deployment.operators} != set(number):
            raise TopologyError("all stages must have the same operators")
        instances = [(o, m) for o in deployment.operators for m in deployment.placement[o.name]]
        sources = deployment.sources()
        self.of = np.array([number[o.name] for o, _ in instances])
        self.machine = np.array([m for _, m in instances])
        self.rate = np.array([o.rate for o, _ in instances], dtype=np.float64)
        self.cpu = np.array([o.cpu for o, _ in instances], dtype=np.float64)
        self.source = np.array([o.name in sources for o, _ in instances])
        self.parallel = np.bincount(self.of, minlength=len(number))[self.of].astype(np.float64)
        self.cores = np.asarray(deployment.cores, dtype=np.float64)
        edges = {(number[a], number[b]) for a, b in deployment.edges}
        emits = np.array([o.selectivity for o, _ in instances])
        # wires[j, i]: what instance j receives of each message that instance i has processed
        linked = np.array(
            [[(i, j) in edges for i in self.of.tolist()] for j in self.of.tolist()], dtype=np.float64
        )
        self.wires = linked * emits[None, :] / self.parallel[:, None]

    def share(self, want: Series, most: Series) -> tuple[Series, Series]:
        """What each instance processes of what it wants to, and the share of its time that this takes.

        ``most`` is what it could process alone. Cores are shared max-min fairly between the instances of a
        machine.
        """
        busy = np.minimum(1.0, want / most)
        cores = busy * self.cpu  # wanted
        got = cores.copy()
        asked = np.bincount(self.machine, cores, minlength=len(self.cores)) / self.cores
        for machine in np.flatnonzero(asked > 1):
            here = np.flatnonzero(self.machine == machine)
            left = self.cores[machine]
            for rank, i in enumerate(here[np.argsort(cores[here], kind="stable")]):
                got[i] = min(cores[i], left / (len(here) - rank))
                left -= got[i]
        processed = np.minimum(want, got / self.cpu * most)
        # who gets less than it wants works or waits for a core all the time
        return processed, np.where(got < cores * (1 - 1e-9), 1.0, busy)
