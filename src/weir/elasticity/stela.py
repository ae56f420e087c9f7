"""Stela: new machines get instances of the operators that limit the output most; the least important leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from weir.elasticity.decision import Decision, Situation, Step, Strategy, joining, leaving, slots
from weir.elasticity.graph import Graph, Machine, Placement, ranked
from weir.elasticity.rates import Rates, outside, propagate
from weir.errors import EngineError


@dataclass(frozen=True)
class Stela(Strategy):
    """Scaling by effective throughput percentage.

    **Out**: each slot of the new machines, filled in turn, gets an instance of the congested operator with the
    highest ETP; if none is congested, of a source. The next slot is decided on projected rates: with k + 1
    instead of k instances an operator is (k + 1)/k times as fast, and what it emits more reaches its children
    and, as far as these keep up, theirs. What runs on the old machines is left alone.

    **In**: the machine whose instances have the lowest sum of ETP, times its speed, goes first; its instances are dealt
    out to the others, from the lowest sum upwards; then again, until as many have gone as asked. Named machines go
    in the order given.

    Guarantees: scaling out changes no existing instance; scaling in keeps the parallelism of every operator
    (but for those that live everywhere) or is refused.

    References
    ----------
    L. Xu, B. Peng, I. Gupta: Stela: Enabling Stream Processing Systems to Scale-in and Scale-out On-demand.
    IEEE IC2E 2016, Algorithms 2 and 3. There a projection ends at the children.

    Examples
    --------
    The middle one cannot keep up; once it has three instances, it can.

    >>> graph = Graph(("in", "mid", "out"), (("in", "mid"), ("mid", "out")))
    >>> rates = {"in": Rates(600, 600, 600), "mid": Rates(600, 200, 200), "out": Rates(200, 900, 200)}
    >>> now = Situation(graph, rates, Placement((0,), {"in": (0,), "mid": (0,), "out": (0,)}))
    >>> decision = Stela().scale_out(now, [1])
    >>> decision.after.instances
    {'in': (0, 1), 'mid': (0, 1, 1), 'out': (0,)}
    >>> [f"{step.operator}: {step.why}" for step in decision.steps]
    ['mid: congested, ETP 100 %', 'mid: congested, ETP 100 %', 'in: a source, nothing is congested']

    What comes before a congested operator matters least, so its machine goes first:

    >>> apart = Placement((0, 1, 2), {"in": (1,), "mid": (0,), "out": (2,)})
    >>> decision = Stela().scale_in(replace(now, placement=apart))
    >>> decision.machines, decision.machine_etp, decision.after.instances["in"]
    ((1,), {0: 1.0, 1: 0.0, 2: 1.0}, (0,))
    """

    name: ClassVar[str] = "stela"

    def scale_out(self, now: Situation, machines: Sequence[Machine]) -> Decision:
        after, steps = joining(now, machines)
        seen = dict(now.rates)
        for slot in range(slots(now, len(machines))):
            machine = machines[slot % len(machines)]
            ahead = replace(now, rates=seen)
            target, why = self._target(ahead, after, machine)
            if target is None:
                continue
            steps.append(Step(target, machine, etp=ahead.etp()[target], why=why))
            after = after.plus(target, machine)
            seen = project(now.graph, seen, target)
        return self.decide(now, "out", after, machines, steps)

    def _target(self, now: Situation, after: Placement, machine: Machine) -> tuple[str | None, str]:
        share = now.etp()

        def first(among: set[str]) -> str | None:
            free = {n for n in among if n not in now.everywhere and now.fits(after, n, machine)}
            return next(iter(ranked(share, free, now.graph)), None)

        congested = now.congested()
        target = first(congested)
        if target is not None:
            return target, f"congested, ETP {share[target]:.0%}".replace("%", " %")
        why = "a source, " + ("what is congested is here already" if congested else "nothing is congested")
        return first(set(now.graph.sources)), why

    def scale_in(
        self, now: Situation, count: int = 1, *, machines: Sequence[Machine] | None = None
    ) -> Decision:
        count = leaving(now, count, machines)
        share = now.etp()
        named = list(dict.fromkeys(machines)) if machines is not None else None
        after, steps = now.placement, list[Step]()
        gone: list[Machine] = []
        for _ in range(count):
            sums = machine_etp(after, share, now.speeds)
            rising = sorted(after.machines, key=lambda machine: sums[machine])
            victim = named[len(gone)] if named else rising[0]
            others = [machine for machine in rising if machine != victim and machine not in (named or ())]
            after, moves = remove(now, after, victim, others)
            steps += [replace(step, etp=share[step.operator]) for step in moves]
            gone.append(victim)
        return self.decide(now, "in", after, gone, steps, machine_etp(now.placement, share, now.speeds))


def project(graph: Graph, rates: dict[str, Rates], operator: str) -> dict[str, Rates]:
    """Return the rates as they would be with one more instance of an operator.

    >>> graph = Graph(("a", "b"), (("a", "b"),))
    >>> ahead = project(graph, {"a": Rates(300, 100, 100, 2), "b": Rates(100, 200, 100)}, "a")
    >>> ahead["a"].processing, ahead["b"].input
    (150.0, 150.0)
    """
    k = rates[operator].parallelism
    entering = outside(graph, rates)
    if not graph.parents[operator] and rates[operator].input <= rates[operator].processing:
        entering[operator] *= (k + 1) / k  # a source that keeps up with its input brings more of it in
    faster = replace(rates[operator], processing=rates[operator].processing * (k + 1) / k, parallelism=k + 1)
    # the selectivity is what was measured: emit has to grow along when the throughput does
    more = min(faster.input, faster.processing)
    faster = replace(faster, emit=more * rates[operator].selectivity)
    return propagate(graph, {**rates, operator: faster}, entering)


def machine_etp(
    placement: Placement, share: dict[str, float], speeds: Mapping[Machine, float] | None = None
) -> dict[Machine, float]:
    """Return the sum of ETP over the instances of each machine; a slow one counts for what it still does.

    >>> machine_etp(Placement((0, 1), {"a": (0, 0), "b": (1,)}), {"a": 0.25, "b": 1.0})
    {0: 0.5, 1: 1.0}
    """
    speed = speeds or {}
    return {
        machine: sum(share[name] for name in placement.on(machine)) * speed.get(machine, 1.0)
        for machine in placement.machines
    }


def remove(
    now: Situation, placement: Placement, victim: Machine, others: Sequence[Machine]
) -> tuple[Placement, list[Step]]:
    """Remove one machine: its instances go to ``others`` in turn; those that live everywhere are dropped."""
    instances = dict(placement.instances)
    for name in now.everywhere:
        instances[name] = tuple(machine for machine in instances[name] if machine != victim)
    after, steps, turn = Placement(placement.machines, instances), [], 0
    for name, places in instances.items():
        for i, machine in enumerate(places):
            if machine != victim:
                continue
            ahead = range(turn, turn + len(others))
            at = next((k for k in ahead if now.fits(after, name, others[k % len(others)])), None)
            if at is None:
                raise EngineError(
                    f"machine {victim!r} cannot go: the {len(others)} that remain have no room for "
                    f"{len(places)} instances of {name!r}; lower its parallelism or let fewer machines go"
                )
            target = others[at % len(others)]
            moved = (*after.instances[name][:i], target, *after.instances[name][i + 1 :])
            after = Placement(after.machines, {**after.instances, name: moved})
            steps.append(Step(name, target, source=victim, why=f"{victim!r} leaves"))
            turn = at + 1
    rest = tuple(machine for machine in after.machines if machine != victim)
    return Placement(rest, after.instances), steps
