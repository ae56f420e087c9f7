"""Scale-out and scale-in of the six applications of Stela's evaluation, strategy by strategy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from weir.elasticity.decision import Strategy, text
from weir.elasticity.stela import Stela
from weir_evaluation.stela.machines import WORK
from weir_evaluation.stela.rivals import STRATEGIES, Default, Gain, LeastLinkLoad, Random
from weir_evaluation.stela.topologies import CASES, Case, page_load_in
from weir_evaluation.stela.trial import Trial, trial

HELP = "throughput after scaling out and in, per strategy (in the simulator)"

EMULATED = 0.9  # part of the operators' time below which a run says more about the host than about a strategy

Measured = list[dict[str, Any]]

# What Stela's throughput after scaling must be, over that of another strategy.
TARGETS = {
    ("Linear", "out"): ("default", 1.45),
    ("Star", "out"): ("default", 1.65),
    ("Diamond", "out"): ("default", 2.20),
    ("PageLoad", "in"): ("random", 2.0),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``weir bench stela``."""
    parser.add_argument("--topology", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--runs", type=int, default=5, help="runs per strategy, with other random numbers")
    parser.add_argument("--quick", action="store_true", help="one run each")
    parser.add_argument(
        "--spark",
        action="store_true",
        help="on real Spark instead, with the work of operators emulated",
    )
    parser.add_argument("--operation", choices=("out", "in"), help="on Spark: only scale out, or in")
    parser.add_argument("--strategy", nargs="*", help="only these strategies, by name")
    parser.add_argument("--work", choices=WORK, default="sleep", help="on Spark: sleep, or use up CPU time")
    parser.add_argument(
        "--execution",
        choices=("jobs", "live", "threads"),
        default="live",
        help="with --spark, how batches run: as step jobs, on live servers, or on live servers that are threads of "
        "this process, without Spark",
    )
    parser.add_argument(
        "--batch-seconds", type=float, default=12.0, help="on Spark: of the slowest operator, at the start"
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=250.0,
        help="on Spark: rows per second that all operators together process at most at the start; what this host can "
        "hand on with little of its CPU",
    )
    parser.add_argument("--explain", action="store_true", help="print every decision, and why it was made")


def run(args: argparse.Namespace, console: Console) -> Measured:
    """Measures; one record per topology, operation and strategy, the mean over the runs.

    ``before`` and ``after`` are rows per second of all sinks. ``convergence_s`` is the time until the throughput
    has been twice above and twice below its new mean and within 5 % of it. ``silent_batches`` counts windows of
    10 s without any output after the scaling began. ``random`` scales in another set of machines in each run.

    On Spark there is one record per run, ``silent_batches`` are batches, and ``convergence_s`` is null if the run
    ended before that. ``expected`` is ``after`` over ``before`` as the new numbers of instances allow it, by
    arithmetic; ``of_bound`` is what part of the throughput that these numbers allow there was, before and after, and
    ``emulated`` what part of the operators' time was emulated work. ``steady_s`` is the time until the throughput
    stayed within 5 % of its new mean, and ``interruption_s`` what the change cost
    (:func:`weir_evaluation.bench.stela_spark.measure`).
    """
    if args.spark:
        return _on_spark(args, console)
    runs = 1 if args.quick else args.runs
    measured: Measured = []
    # the other rivals have no way of their own to scale in
    inwards = {kind.name: kind for kind in (Stela, Default, Random)}
    for name in args.topology:
        console.print(f"{name}: scaling out", style="dim")
        for kind in _wanted(args, STRATEGIES):
            measured.append(measure(CASES[name], "out", kind, runs, console if args.explain else None))
    if "PageLoad" in args.topology:
        console.print("PageLoad: scaling in", style="dim")
        for kind in _wanted(args, inwards):
            measured.append(measure(page_load_in(), "in", kind, 4 * runs, console if args.explain else None))
    return measured


def _wanted(args: argparse.Namespace, kinds: Mapping[str, type[Strategy]]) -> list[type[Strategy]]:
    return [kind for name, kind in kinds.items() if not args.strategy or name in args.strategy]


def _on_spark(args: argparse.Namespace, console: Console) -> Measured:
    from weir_evaluation.bench import stela_spark

    settings = stela_spark.Settings(args.work, args.execution, args.batch_seconds, args.explain, args.pace)
    outwards = {kind.name: kind for kind in (Stela, Gain, Default, LeastLinkLoad)}
    jobs = [(CASES[name], kind()) for name in args.topology for kind in _wanted(args, outwards)]
    if "PageLoad" in args.topology:
        inwards = (Stela(), Default(), Random(1), Random(2))
        jobs += [(page_load_in(), s) for s in inwards if not args.strategy or s.name in args.strategy]
    if args.operation:
        jobs = [(case, s) for case, s in jobs if (case.then > case.machines) == (args.operation == "out")]
    return [stela_spark.measure(case, strategy, console, settings) for case, strategy in jobs]


def measure(
    case: Case, operation: str, kind: type[Strategy], runs: int, explain: Console | None = None
) -> dict[str, Any]:
    """Return one record; where ``explain`` is given, the first run's decision is printed there."""
    done = [trial(case, _strategy(kind, seed), seed=1000 * seed) for seed in range(runs)]
    if explain is not None:
        explain.print(text(done[0].decision, done[0].situation), highlight=False)

    def mean(what: str) -> float:
        return round(float(np.mean([_value(one, what) for one in done])), 2)

    return {
        "topology": case.name,
        "operation": operation,
        "strategy": kind.name,
        "before": mean("before"),
        "after": mean("after"),
        "convergence_s": mean("convergence"),
        "silent_batches": mean("down"),
    }


def show(result: Measured, console: Console) -> None:
    """One table per topology and operation, and which targets are met."""
    for topology, operation in dict.fromkeys((r["topology"], r["operation"]) for r in result):
        rows = [r for r in result if (r["topology"], r["operation"]) == (topology, operation)]
        names = dict.fromkeys(r["strategy"] for r in rows)
        after = {n: float(np.mean([r["after"] for r in rows if r["strategy"] == n])) for n in names}
        how = "simulated"
        if "where" in rows[0]:
            how = f"on Spark, {rows[0]['execution']}, {rows[0]['work']}"
        table = Table(title=f"{topology}, scaling {operation} ({how})", title_justify="left")
        table.add_column("strategy")
        for column in (
            "before",
            "after",
            "over before",
            "expected",
            "over default",
            "convergence s",
            "silent batches",
            "interruption s",
        ):
            table.add_column(column, justify="right")
        for r in rows:
            table.add_row(
                r["strategy"],
                f"{r['before']:,.0f}",
                f"{r['after']:,.0f}",
                f"{r['after'] / r['before'] - 1:+.0%}",
                f"{r['expected'] - 1:+.0%}" if "expected" in r else "",
                f"{r['after'] / after['default'] - 1:+.0%}" if "default" in after else "",
                "never" if r["convergence_s"] is None else f"{r['convergence_s']:.0f}",
                f"{r['silent_batches']:g}",
                "" if r.get("interruption_s") is None else f"{r['interruption_s']:.1f}",
            )
        console.print(table)
        rival, least = TARGETS.get((topology, operation), ("", 0.0))
        if rival in after and "stela" in after:
            got = after["stela"] / after[rival]
            verdict = "[green]met[/]" if got >= least else "[red]missed[/]"
            console.print(f"target: {least:.2f} × {rival}; {got:.2f} ×, {verdict}")
    if any(r.get("execution") == "jobs" for r in result):
        console.print(
            "batches run their steps one after the other: every operator's share counts, not only the slowest's",
            style="dim",
        )
    if any("where" in r for r in result):
        least = min(r.get("emulated", 1.0) for r in result)
        if least < EMULATED:
            console.print(
                f"of the operators' time, only {least:.0%} was emulated work: the host's CPU limits what was measured; "
                "a lower --pace asks less of it",
                style="yellow",
            )
        return
    console.print(
        "simulated, with speeds of operators chosen near the paper's gains (papers/st_fig04.py and st_fig06.py show "
        "other speeds), and a cost of overload fitted to what random choices lost there (papers/st_fig08.py: without)",
        style="dim",
    )


def _strategy(kind: type[Strategy], seed: int) -> Strategy:
    return kind(seed=seed) if kind in (Random, Default) else kind()  # type: ignore[call-arg]


def _value(one: Trial, what: str) -> float:
    return float(getattr(one, what))
