"""One scaling in the simulator: run, measure, decide, go on, and see what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.elasticity.decision import Decision, Situation, Strategy
from weir.elasticity.graph import Machine, Placement
from weir.elasticity.rates import Meter, Sample
from weir_evaluation.simulate.dag import DeploymentPhase, SimulatedFlow, flow
from weir_evaluation.stela.rivals import restarts
from weir_evaluation.stela.topologies import Case

WINDOW = 10.0  # seconds that throughput is averaged over
# medians of ``weir bench stela --spark --operation out --batch-seconds 6``: seconds of work that are lost when a whole
# application is taken down and started again, and when servers come to one that goes on
RESTART, CHANGE = 1.3, 1.5
TIMEOUT = 30.0  # seconds after which a waiting message is given up
STEP = 0.5
JITTER = 0.2  # of an instance's speed within a step: some 2 % within a window


@dataclass(eq=False)
class Trial:
    """What a scaling did to the throughput (of all sinks, in windows of :data:`WINDOW` seconds).

    ``at`` is when it began; ``down`` counts windows without output after that; ``convergence`` is in seconds.
    """

    case: Case
    situation: Situation
    decision: Decision
    time: NDArray[np.float64]
    throughput: NDArray[np.float64]
    at: float

    @property
    def before(self) -> float:
        known = (self.time <= self.at) & (self.time > self.at / 2)
        return float(self.throughput[known].mean())

    @property
    def after(self) -> float:
        late = self.time > self.at + (self.time[-1] - self.at) / 2
        return float(self.throughput[late].mean())

    @property
    def convergence(self) -> float:
        """By the paper's criterion; the whole time after the scaling if the throughput never settles."""
        later = self.throughput[self.time > self.at]
        return (convergence(later, self.after) or len(later)) * WINDOW

    @property
    def down(self) -> int:
        return int((self.throughput[self.time > self.at] < 0.001 * self.before).sum())


def convergence(series: NDArray[np.float64], mean: float, within: float = 0.05) -> int | None:
    """Windows until a series has settled: it was twice above and twice below its mean, never far off.

    Counts from the beginning; starts anew whenever a window is further from the mean than ``within``. None if it
    never settles.

    Examples
    --------
    >>> convergence(np.array([0, 0, 99.0, 101, 99, 101, 101]), 100)
    6
    """
    above = below = 0
    last = 0
    for i, value in enumerate(series):
        if abs(value - mean) > within * mean:
            above = below = last = 0
            continue
        side = 1 if value > mean else -1
        if side != last:
            above, below, last = above + (side > 0), below + (side < 0), side
        if above >= 2 and below >= 2:
            return i + 1
    return None


def steady_from(series: NDArray[np.float64], mean: float, within: float = 0.05) -> int | None:
    """Windows before a series stays near its mean for good; None if the last one is far off.

    A series with little noise is steady long before it has crossed its mean four times, as :func:`convergence` asks.

    Examples
    --------
    >>> steady_from(np.array([0, 104.0, 80, 101, 101]), 100)
    3
    """
    off = np.flatnonzero(np.abs(series - mean) > within * mean)
    if not len(off):
        return 0
    return None if off[-1] == len(series) - 1 else int(off[-1]) + 1


def measured(case: Case, ran: SimulatedFlow, since: float, until: float) -> Situation:
    """The situation as a meter sees it that watched part of a run."""
    meter = Meter()
    here = case.placement()
    for begin in np.arange(since, until - WINDOW / 2, WINDOW):
        part = (ran.time > begin + 1e-9) & (ran.time <= begin + WINDOW + 1e-9)
        samples = {}
        for operator in case.operators:
            rows = float(ran.processed[operator.name][part].mean() * WINDOW)
            samples[operator.name] = Sample(
                rows_in=rows,
                rows_out=rows * operator.selectivity,
                busy=float(ran.busy[operator.name][part].mean() * WINDOW),
                parallelism=len(here.instances[operator.name]),
                # nothing arrives at a source: what it emits is what comes in
                arrived=float(ran.arriving[operator.name][part].mean() * WINDOW) or rows,
            )
        meter.observe(WINDOW, samples)
    return Situation(case.graph, meter.rates(), here)


def situation(case: Case, *, seconds: float = 120.0, seed: int = 0, jitter: float = JITTER) -> Situation:
    """What a meter sees of a case before it is scaled."""
    ran = flow(
        [DeploymentPhase(0, case.deployment(case.placement()))],
        seconds,
        step=STEP,
        timeout=TIMEOUT,
        jitter=jitter,
        seed=seed,
    )
    return measured(case, ran, seconds / 2, seconds)


def decide(case: Case, strategy: Strategy, now: Situation) -> Decision:
    """Scales as the case asks: out to machines with the next numbers, or in."""
    if case.then > case.machines:
        fresh: list[Machine] = list(range(case.machines, case.then))
        return strategy.scale_out(now, fresh)
    return strategy.scale_in(now, case.machines - case.then)


def trial(
    case: Case,
    strategy: Strategy | Callable[[Situation], Decision],
    *,
    at: float = 300.0,
    seconds: float = 900.0,
    seed: int = 0,
    restart: float = RESTART,
    change: float = CHANGE,
) -> Trial:
    """Runs a case, scales it at ``at`` and goes on until ``seconds``.

    Nothing is worked on for ``restart`` seconds with a strategy that takes the application down, and for ``change``
    seconds with any other, as far as that is known from real runs (:mod:`weir_evaluation.bench.stela_spark`).

    Examples
    --------
    >>> from weir.elasticity.stela import Stela
    >>> from weir_evaluation.stela.topologies import star
    >>> ran = trial(star(), Stela(), seconds=600)
    >>> round(ran.after / ran.before, 1), ran.down
    (1.7, 0)
    """
    first = case.deployment(case.placement())
    now = situation(case, seed=seed)
    decision = decide(case, strategy, now) if isinstance(strategy, Strategy) else strategy(now)
    pause = restart if restarts(decision) else change
    ran = flow(
        [DeploymentPhase(0, first), DeploymentPhase(at, case.deployment(decision.after), pause=pause)],
        seconds,
        step=STEP,
        timeout=TIMEOUT,
        jitter=JITTER,
        seed=seed + 1,
    )
    per = round(WINDOW / STEP)
    windows = ran.throughput().reshape(-1, per).mean(axis=1)
    return Trial(case, now, decision, ran.time[per - 1 :: per], windows, at)


def steady(case: Case, placement: Placement) -> float:
    """Throughput of a placement in the long run, without any jitter or interruption."""
    ran = flow([DeploymentPhase(0, case.deployment(placement))], 60.0, step=1.0, timeout=TIMEOUT)
    return float(ran.throughput()[-20:].mean())
