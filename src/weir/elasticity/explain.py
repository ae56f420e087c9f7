"""A decision, for people: who is congested, what hangs on whom, who was chosen and why."""

from __future__ import annotations

from rich.table import Table

from weir.elasticity.decision import Decision
from weir.elasticity.graph import Graph


def tables(decision: Decision) -> list[Table]:
    """Operators with their rates and ETP; what goes where; for scale-in the machines with their sums of ETP.

    Examples
    --------
    >>> from rich.console import Console
    >>> from weir.elasticity.scale import Stela
    >>> from weir.elasticity.topologies import star
    >>> from weir.elasticity.trial import situation
    >>> decision = Stela().scale_out(situation(star(), jitter=0.0), [4])
    >>> Console(width=90, no_color=True).print(tables(decision)[0])  # doctest: +NORMALIZE_WHITESPACE
    stela, scale out
    ┏━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━┓
    ┃ operator ┃ input/s ┃ processing/s ┃ congested ┃   ETP ┃ instances ┃ chosen ┃
    ┡━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━┩
    │ source 1 │     240 │          240 │           │   0 % │         2 │      1 │
    │ source 2 │     240 │          240 │           │   0 % │         2 │        │
    │ hub      │     480 │          200 │ yes       │ 100 % │         2 │      2 │
    │ sink 1   │     200 │          340 │           │  33 % │         2 │        │
    │ sink 2   │     200 │          340 │           │  33 % │         2 │        │
    │ sink 3   │     200 │          340 │           │  33 % │         2 │        │
    └──────────┴─────────┴──────────────┴───────────┴───────┴───────────┴────────┘
    """
    title = f"{decision.strategy}, scale {decision.operation}"
    operators = Table(title=title, title_justify="left")
    operators.add_column("operator")
    for column in ("input/s", "processing/s"):
        operators.add_column(column, justify="right")
    operators.add_column("congested")
    for column in ("ETP", "instances", "chosen"):
        operators.add_column(column, justify="right")
    for row in decision.rows:
        operators.add_row(
            row.operator,
            f"{row.input:,.0f}",
            f"{row.processing:,.0f}",
            "yes" if row.congested else "",
            f"{100 * row.etp:.0f} %",
            str(len(decision.before.instances[row.operator])),
            str(row.chosen or ""),
            style="bold" if row.chosen else None,
        )
    steps = Table(title="what happens", title_justify="left")
    for column in ("instance of", "from", "to", "why"):
        steps.add_column(column)
    for step in decision.steps:
        steps.add_row(
            step.operator, "" if step.source is None else str(step.source), str(step.target), step.why
        )
    made = [operators, steps]
    if decision.machine_etp:
        machines = Table(title="machines", title_justify="left")
        machines.add_column("machine")
        machines.add_column("sum of ETP", justify="right")
        machines.add_column("leaves")
        for machine, total in sorted(decision.machine_etp.items(), key=lambda item: item[1]):
            machines.add_row(str(machine), f"{total:.2f}", "yes" if machine in decision.machines else "")
        made.append(machines)
    return made


def drawing(graph: Graph, decision: Decision) -> str:
    """The graph in a few lines of text; ``!`` marks congested operators, ``+`` new instances.

    >>> from weir.elasticity.scale import Stela
    >>> from weir.elasticity.topologies import linear
    >>> from weir.elasticity.trial import situation
    >>> print(drawing(linear().graph, Stela().scale_out(situation(linear(), jitter=0.0), [6])))
    source ×6 (+1)
      └▶ first ×6
           └▶ second ×6 ! (+4)
                └▶ third ×6
                     └▶ sink ×6
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
