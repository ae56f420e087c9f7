"""Weight grouping against the plain grouping, under skew and on unequal machines (in the simulator)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weir.network.distance import Place
from weir_evaluation.bench import squirrel_spark
from weir_evaluation.simulate.streams import SimulatedStream, words, zipf
from weir_evaluation.simulate.workloads import ADVERTISING, CLUSTER, METHODS, WORDCOUNT, Workload, events

HELP = "plain grouping, WG, WG+DWC and WG+BW (ours) under skew and on unequal machines: throughput, latency (simulated)"

Measured = list[dict[str, Any]]
LEAST, LESS, LOSS = 1.67, 0.47, 0.03  # throughput over plain, latency below plain; loss where all is even
FLAT = "wordcount in one process"
OURS = "WG+BW"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``weir bench squirrel``."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per run (the paper: 100 million)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the synthetic streams")
    parser.add_argument("--zipf", type=float, nargs="*", default=[0.0, 0.5, 1.0, 1.5, 2.0])
    parser.add_argument("--heterogeneity", type=float, nargs="*", default=[2.0, 4.0, 8.0])
    parser.add_argument("--words", type=Path, help="Parquet file with a column 'word', for real keys")
    squirrel_spark.arguments(parser)


def run(args: argparse.Namespace, console: Console) -> Measured:
    """Measures; one record per workload, skew, heterogeneity and method.

    ``skew`` is the exponent of the Zipf law (0: uniform), or ``"real"`` for the words of a file; ``heterogeneity`` is
    the fastest machine's speed over the slowest's. ``rows_per_s`` is under full load, ``latency_ms`` the mean at
    that load, with as many rows in flight as in the paper's plain runs.
    """
    if args.spark:
        return squirrel_spark.run(args, console)
    inside = [Place("1", "host")] * len(CLUSTER)  # no distance to win anything by
    cases: list[tuple[str, Workload, float | str, float, SimulatedStream, dict[str, Any]]] = []
    for z in args.zipf:
        cases.append(("wordcount", WORDCOUNT, z, 1.0, zipf(args.rows, args.keys, z), {}))
    for ratio in args.heterogeneity:
        cases.append(("wordcount", WORDCOUNT, 0.0, ratio, zipf(args.rows, args.keys, 0.0), {}))
    if args.words is not None:
        cases.append(("wordcount", WORDCOUNT, "real", 1.0, words(args.words, limit=args.rows), {}))
    cases.append((FLAT, WORDCOUNT, 0.0, 1.0, zipf(args.rows, args.keys, 0.0), {"places": inside}))
    ads = events(args.rows)
    cases += [("advertising", ADVERTISING, 0.0, ratio, ads, {}) for ratio in [1.0, *args.heterogeneity]]
    measured: Measured = []
    for name, workload, skew, ratio, stream, more in cases:
        for method in METHODS:
            out = workload.run(method, stream, heterogeneity=ratio, **more)
            measured.append(
                {
                    "workload": name,
                    "skew": skew,
                    "heterogeneity": ratio,
                    "method": method,
                    "rows_per_s": round(out.rows_per_s),
                    "latency_ms": round(1000 * out.latency_s, 3),
                }
            )
        console.print(f"{name}, skew {skew}, heterogeneity {ratio:g}: done", style="dim", highlight=False)
    return measured


def judge(result: Measured) -> list[dict[str, Any]]:
    """Per case: throughput over plain, latency below plain, and whether the target is met."""
    cases: dict[tuple[str, Any, float], dict[str, dict[str, Any]]] = {}
    for row in result:
        case = (row["workload"], row["skew"], row["heterogeneity"])
        cases.setdefault(case, {})[row["method"]] = row
    judged = []
    for (workload, skew, ratio), by in cases.items():
        gain = by[OURS]["rows_per_s"] / by["plain"]["rows_per_s"]
        less = 1 - by[OURS]["latency_ms"] / by["plain"]["latency_ms"]
        uneven = skew != 0 or ratio != 1
        met = (gain >= LEAST and less >= LESS) if uneven else gain >= 1 - LOSS
        judged.append(
            {"workload": workload, "skew": skew, "heterogeneity": ratio, "gain": gain, "less": less}
            | {"target": f"{LEAST} ×, −{LESS:.0%}" if uneven else f"−{LOSS:.0%} at most", "met": met}
        )
    return judged


def show(result: Measured, console: Console) -> None:
    """A table of all cases, and which targets are met."""
    spark = "local" in result[0]
    title = (
        "servers that sleep per row, on Spark; ms of a whole micro-batch"
        if spark
        else "four machines of one rack under full load (simulated)"
    )
    table = Table(title=title, title_justify="left")
    for column in ("workload", "skew", "fastest/slowest"):
        table.add_column(column)
    for column in (
        "plain rows/s",
        *METHODS[1:],
        "plain ms",
        *METHODS[1:],
        "over plain",
        "latency",
        "target",
    ):
        table.add_column(column, justify="right")
    for case in judge(result):
        same = ("workload", "skew", "heterogeneity")
        rows = {r["method"]: r for r in result if all(r[k] == case[k] for k in same)}
        table.add_row(
            case["workload"],
            {0.0: "uniform", "real": "real words"}.get(case["skew"], f"Zipf {case['skew']}"),
            f"{case['heterogeneity']:g} ×",
            *(f"{rows[m]['rows_per_s']:,}" for m in METHODS),
            *(f"{rows[m]['latency_ms']:.2f}" for m in METHODS),
            f"{case['gain']:.2f} ×",
            f"{-case['less']:+.0%}",
            f"{case['target']} [{'green]met' if case['met'] else 'red]missed'}[/]",
        )
    console.print(table)
    if not spark:
        console.print(
            "simulated; every constant is from the paper's Table 1, Fig. 3 and plain runs, see "
            "weir_evaluation.simulate.workloads",
            style="dim",
        )
