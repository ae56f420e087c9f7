"""Input and output of scaling strategies, as plain data: the situation and the decision, and that in plain text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import ClassVar

from weir.elasticity.graph import Graph, Machine, Placement, etp
from weir.elasticity.rates import CONGESTED, Rates, congested
from weir.errors import EngineError


@dataclass(frozen=True)
class Situation:
    """The application as it runs now."""

    graph: Graph
    rates: Mapping[str, Rates]
    placement: Placement
    congestion: float = CONGESTED  # input over processing rate above which an operator is congested
    distinct: bool = False  # whether an operator may have at most one instance on a machine
    # operators that live on every machine: theirs come and go with the machines and take no slot
    everywhere: frozenset[str] = frozenset()
    # of machines that are slower or faster than usual
    speeds: Mapping[Machine, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, given in (("rates", self.rates), ("instances", self.placement.instances)):
            missing = [name for name in self.graph.operators if name not in given]
            if missing:
                raise EngineError(
                    f"no {what} for operator {missing[0]!r}: feed a batch first, also after a restart or a fault"
                )

    def congested(self) -> set[str]:
        return congested(self.rates, self.congestion)

    def etp(self) -> dict[str, float]:
        """Return the effective throughput percentage of every operator by the present rates."""
        sinks = {name: self.rates[name].throughput for name in self.graph.sinks}
        return etp(self.graph, sinks, self.congested())

    def by_host(self, hosts: Sequence[str]) -> Situation:
        """Return the same with hosts as machines: to choose among hosts.

        ``hosts`` has the host of each machine.

        >>> graph = Graph(("a",), ())
        >>> here = Placement((0, 1, 2), {"a": (0, 1, 2)})
        >>> Situation(graph, {"a": Rates(1, 1, 1, 3)}, here).by_host(["x", "y", "x"]).placement.instances
        {'a': ('x', 'y', 'x')}
        """
        host = dict(zip(self.placement.machines, hosts, strict=True))
        instances = {
            name: tuple(host[m] for m in places) for name, places in self.placement.instances.items()
        }
        merged = Placement(tuple(dict.fromkeys(hosts)), instances)
        speeds: dict[Machine, float] = {
            h: mean(self.speeds.get(m, 1.0) for m, on in host.items() if on == h) for h in merged.machines
        }
        return replace(self, placement=merged, distinct=False, speeds=speeds)

    def fits(self, placement: Placement, operator: str, machine: Machine) -> bool:
        """Return whether one more instance of an operator may live on a machine."""
        return not (self.distinct and machine in placement.instances[operator])


@dataclass(frozen=True)
class Step:
    """One instance that appears or moves: what, where to, from where (``None``: it is new), and why."""

    operator: str
    target: Machine
    source: Machine | None = None
    etp: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the explanation; ``chosen`` counts instances that appear or move."""

    operator: str
    input: float
    processing: float
    congested: bool
    etp: float
    chosen: int


@dataclass(frozen=True)
class Decision:
    """A new placement and how it came about. Nothing has happened yet."""

    strategy: str  # whose decision it is
    operation: str  # "out" or "in"
    # instance i of an operator before is instance i after, unless it was dropped (only
    # operators that live everywhere lose instances, from the machines that leave)
    before: Placement
    after: Placement
    machines: tuple[Machine, ...]  # the machines that join or leave
    steps: tuple[Step, ...]  # every instance that appears or moves, in the order of decision
    rows: tuple[Row, ...]  # congestion and ETP of all operators as measured, and how often each was chosen
    # sum of ETP over the instances of each machine before (scale-in)
    machine_etp: Mapping[Machine, float] = field(default_factory=dict)

    def moved(self) -> list[tuple[str, int]]:
        """Return the instances (operator, number) that existed before and live elsewhere, or nowhere, after."""
        return self.before.differs(self.after)

    def added(self) -> dict[str, int]:
        """Return how many instances each operator has gained."""
        was, now = self.before.parallelism(), self.after.parallelism()
        return {name: now[name] - was[name] for name in now if now[name] > was[name]}


class Strategy(ABC):
    """Decides which instances new machines get, and which machines leave. Strategies are pure functions.

    Either a whole decision comes back or an error is raised; the situation is never touched.
    """

    name: ClassVar[str]

    @abstractmethod
    def scale_out(self, now: Situation, machines: Sequence[Machine]) -> Decision:
        """Return what to place on machines that join."""

    @abstractmethod
    def scale_in(
        self, now: Situation, count: int = 1, *, machines: Sequence[Machine] | None = None
    ) -> Decision:
        """Return which ``count`` machines leave, or the named ``machines``, and where their instances go."""

    def decide(
        self,
        now: Situation,
        operation: str,
        after: Placement,
        machines: Sequence[Machine],
        steps: Sequence[Step],
        machine_etp: Mapping[Machine, float] | None = None,
    ) -> Decision:
        """Return a decision with its explanation."""
        share, slow, chosen = now.etp(), now.congested(), Counter(step.operator for step in steps)
        rates = {name: (now.rates[name].input, now.rates[name].processing) for name in now.graph.operators}
        rows = tuple(Row(name, *r, name in slow, share[name], chosen[name]) for name, r in rates.items())
        moves = tuple(machines), tuple(steps)
        return Decision(self.name, operation, now.placement, after, *moves, rows, machine_etp or {})


def joining(now: Situation, machines: Sequence[Machine]) -> tuple[Placement, list[Step]]:
    """Return the placement with machines added, and with instances there of operators that live everywhere."""
    if not machines:
        raise EngineError("scaling out needs at least one new machine")
    present = set(now.placement.machines)
    again = [m for i, m in enumerate(machines) if m in present or m in machines[:i]]
    if again:
        raise EngineError(f"machine {again[0]!r} is in use already; name machines that are new")
    after, steps = now.placement.joined(machines), []
    for machine in machines:
        for name in now.graph.operators:
            if name in now.everywhere:
                after = after.plus(name, machine)
                steps.append(Step(name, machine, why="lives everywhere"))
    return after, steps


def slots(now: Situation, machines: int) -> int:
    """Return how many instances new machines get: as many each as the old ones have on average.

    The average is rounded down once for all new machines together, but never to none.
    """
    counted = sum(k for name, k in now.placement.parallelism().items() if name not in now.everywhere)
    if counted == 0:
        return 0
    return max(machines, machines * counted // len(now.placement.machines))


def leaving(now: Situation, count: int, machines: Sequence[Machine] | None) -> int:
    """Check a request to scale in and return how many machines leave."""
    have = now.placement.machines
    if machines is not None:
        for machine in machines:
            if machine not in have:
                names = ", ".join(map(repr, have))
                raise EngineError(f"no machine is called {machine!r}; known: {names}")
        count = len(set(machines))
    if count < 1:
        raise EngineError(f"scaling in removes at least one machine, got {count}")
    if count >= len(have):
        raise EngineError(
            f"{count} of {len(have)} machines cannot go: at least one must remain; stop the query to let all go"
        )
    return count


def text(decision: Decision, now: Situation) -> str:
    """Return tables of operators, steps and (for scale-in) machines, then a drawing of the graph.

    >>> from weir.elasticity.stela import Stela
    >>> graph = Graph(("source", "slow", "sink"), (("source", "slow"), ("slow", "sink")))
    >>> rates = {"source": Rates(9, 9, 9, 2), "slow": Rates(9, 3, 3, 2), "sink": Rates(3, 9, 3, 2)}
    >>> now = Situation(graph, rates, Placement((0, 1), {name: (0, 1) for name in graph.operators}))
    >>> first, steps, drawn = text(Stela().scale_out(now, [2]), now).split("\\n\\n")
    >>> print(first)
    stela, scale out
    operator  input/s  processing/s  congested    ETP  instances  chosen
    source          9             9               0 %          2
    slow            9             3  yes        100 %          2       3
    sink            3             9             100 %          2
    >>> print(drawn.strip())
    source ×2
      └▶ slow ×2 ! (+3)
           └▶ sink ×2
    """
    operators = [
        (
            row.operator,
            f"{row.input:,.0f}",
            f"{row.processing:,.0f}",
            "yes" if row.congested else "",
            f"{100 * row.etp:.0f} %",
            str(len(decision.before.instances[row.operator])),
            str(row.chosen or ""),
        )
        for row in decision.rows
    ]
    steps = [
        (step.operator, "" if step.source is None else str(step.source), str(step.target), step.why)
        for step in decision.steps
    ]
    parts = [
        f"{decision.strategy}, scale {decision.operation}\n"
        + aligned(
            ("operator", "input/s", "processing/s", "congested", "ETP", "instances", "chosen"),
            operators,
            "lrrlrrr",
        ),
        "what happens\n" + aligned(("instance of", "from", "to", "why"), steps, "llll"),
    ]
    if decision.machine_etp:
        machines = [
            (str(machine), f"{total:.2f}", "yes" if machine in decision.machines else "")
            for machine, total in sorted(decision.machine_etp.items(), key=lambda item: item[1])
        ]
        parts.append("machines\n" + aligned(("machine", "sum of ETP", "leaves"), machines, "lrl"))
    parts.append(drawing(now.graph, decision))
    return "\n\n".join(parts) + "\n"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """Return a table in columns of equal width; ``sides`` says ``l`` or ``r`` for each.

    >>> print(aligned(("key", "rows"), [("a", "7"), ("bc", "12")], "lr"))
    key  rows
    a       7
    bc     12
    """
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    marks = [f"{'>' if side == 'r' else '<'}{width}" for side, width in zip(sides, widths, strict=True)]
    lines = [[format(cell, mark) for cell, mark in zip(row, marks, strict=True)] for row in [head, *rows]]
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def drawing(graph: Graph, decision: Decision) -> str:
    """Return the graph in a few lines of text; ``!`` marks congested operators, ``+`` new instances."""
    rows = {row.operator: row for row in decision.rows}
    new = decision.added()
    lines: list[str] = []
    drawn: set[str] = set()

    def draw(name: str, indent: str, arrow: str) -> None:
        again = name in drawn and bool(graph.children[name])
        drawn.add(name)
        label = f"{name} ×{len(decision.before.instances[name])}"
        label += " !" if rows[name].congested else ""
        label += f" (+{new[name]})" if name in new else ""
        lines.append(indent + arrow + label + (" …" if again else ""))
        if not again:
            for child in graph.children[name]:
                draw(child, indent + ("     " if arrow else "  "), "└▶ ")

    for source in graph.sources:
        draw(source, "", "")
    return "\n".join(lines)
