"""Explanation of a scaling decision in plain text: which operators are congested, which were chosen, and why."""

from __future__ import annotations

from collections.abc import Sequence

from weir.elasticity.decision import Decision, Situation
from weir.elasticity.graph import Graph


def text(decision: Decision, now: Situation) -> str:
    """Return tables of operators, steps and (for scale-in) machines, then a drawing of the graph.

    >>> from weir.elasticity.graph import Placement
    >>> from weir.elasticity.rates import Rates
    >>> from weir.elasticity.stela import Stela
    >>> graph = Graph(("source", "slow", "sink"), (("source", "slow"), ("slow", "sink")))
    >>> rates = {"source": Rates(9, 9, 9, 2), "slow": Rates(9, 3, 3, 2), "sink": Rates(3, 9, 3, 2)}
    >>> now = Situation(graph, rates, Placement((0, 1), {name: (0, 1) for name in graph.operators}))
    >>> print(text(Stela().scale_out(now, [2]), now).split("\\n\\n")[0])
    stela, scale out
    operator  input/s  processing/s  congested    ETP  instances  chosen
    source          9             9               0 %          2
    slow            9             3  yes        100 %          2       3
    sink            3             9             100 %          2
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
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def drawing(graph: Graph, decision: Decision) -> str:
    """Return the graph in a few lines of text; ``!`` marks congested operators, ``+`` new instances.

    >>> from weir.elasticity.graph import Placement
    >>> from weir.elasticity.rates import Rates
    >>> from weir.elasticity.stela import Stela
    >>> graph = Graph(("source", "slow", "sink"), (("source", "slow"), ("slow", "sink")))
    >>> rates = {"source": Rates(9, 9, 9, 2), "slow": Rates(9, 5, 5, 2), "sink": Rates(5, 9, 5, 2)}
    >>> now = Situation(graph, rates, Placement((0, 1), {name: (0, 1) for name in graph.operators}))
    >>> print(drawing(graph, Stela().scale_out(now, [2])))
    source ×2 (+1)
      └▶ slow ×2 ! (+2)
           └▶ sink ×2
    """
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
