"""Shared by the scripts for the figures of Stela: trials in the simulator, timelines, other speeds.

Every script prints a table, states each claim of the paper with what was measured beside it, and writes a
plot and a JSON file to ``evaluation/papers/out/``. It is simulated: rates through a graph of operators on
machines whose cores are shared (``weir_evaluation.simulate.dag``), decided by the very code that the engine
calls. ``--spark FILE`` adds what was measured on real Spark: a JSON list of records as
``weir bench stela --spark --json`` prints them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from cg_common import OUT
from weir.elasticity.decision import Strategy
from weir.elasticity.stela import Stela
from weir_evaluation.stela.rivals import Default, Gain, LeastLinkLoad, Random
from weir_evaluation.stela.topologies import CASES, Case
from weir_evaluation.stela.trial import CHANGE, RESTART, Trial, decide, situation, steady, trial

SEEDS = 9
DRAWS = 200
COMPARED: tuple[Strategy, ...] = (Stela(), Default(), LeastLinkLoad(), Gain())
COLOURS = {
    "stela": "#2471a3",
    "default": "#c0392b",
    "least link load": "#e67e22",
    "gain": "#1abc9c",
    "random": "#7f8c8d",
}

Runs = dict[str, list[Trial]]


def options(description: str) -> argparse.Namespace:
    """The options that all figures share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="two runs and ten draws of speeds only")
    parser.add_argument("--spark", type=Path, metavar="FILE", help="records from real Spark, to show beside")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    return parser.parse_args()


def runs(case: Case, args: argparse.Namespace, strategies: Sequence[Strategy] = COMPARED) -> Runs:
    """Every strategy several times."""
    seeds = range(2 if args.quick else SEEDS)
    restart, change, _ = interruptions(args, case.name)
    return {
        one.name: [trial(case, one, seed=1000 * seed, restart=restart, change=change) for seed in seeds]
        for one in strategies
    }


def interruptions(args: argparse.Namespace, topology: str = "") -> tuple[float, float, str]:
    """Return how long a restart and a change without one interrupt the work, and where that is known from.

    Those of a topology in ``--spark``; the medians of all in it, or those that the simulator keeps, where it has none.
    """
    records = [] if args.spark is None else json.loads(args.spark.read_text())
    for kept in ([r for r in records if r["topology"] == topology], records):
        known: dict[bool, list[float]] = {True: [], False: []}
        for r in kept:
            if r.get("interruption_s") is not None and r["operation"] == "out":
                known[r["strategy"] == Default.name].append(r["interruption_s"])
        if known[True] and known[False]:
            return float(np.median(known[True])), float(np.median(known[False])), "measured on Spark"
    return RESTART, CHANGE, "measured on Spark before"


def mean(trials: Sequence[Trial], what: str) -> float:
    return float(np.mean([getattr(one, what) for one in trials]))


def rows(case: Case, ran: Runs) -> list[dict[str, Any]]:
    """One row per strategy: the mean over the runs."""
    base = mean(ran["default"], "after")
    out = []
    for name, trials in ran.items():
        before, after = mean(trials, "before"), mean(trials, "after")
        out.append(
            {
                "topology": case.name,
                "machines": f"{case.machines} → {case.then}",
                "strategy": name,
                "before": before,
                "after": after,
                "over before": f"{after / before - 1:+.0%}",
                "over default": f"{after / base - 1:+.0%}",
                "convergence s": mean(trials, "convergence"),
                "silent windows": mean(trials, "down"),
                "instances": " ".join(f"+{k} {n}" for n, k in trials[0].decision.added().items())
                or f"{len(trials[0].decision.moved())} moved",
            }
        )
    return out


def from_spark(args: argparse.Namespace, name: str, operation: str = "out") -> list[dict[str, Any]]:
    """Records from real Spark for one topology."""
    if args.spark is None:
        return []
    every = json.loads(args.spark.read_text())
    return [r for r in every if (r["topology"], r["operation"]) == (name, operation)]


def add_spark(report: Any, case: Case, found: Sequence[dict[str, Any]]) -> None:
    """Rows of the table from real Spark."""
    after = {r["strategy"]: r["after"] for r in found}
    for r in found:
        start = case.parallelism
        more = {n: k - start for n, k in r["instances"].items() if k > start and case.then > case.machines}
        report.rows.append(
            {
                "topology": case.name,
                "machines": f"{case.machines} → {case.then}",
                "strategy": f"{r['strategy']}, on Spark",
                "before": r["before"],
                "after": r["after"],
                "over before": f"{r['after'] / r['before'] - 1:+.0%}",
                "over default": f"{r['after'] / after['default'] - 1:+.0%}",
                "convergence s": r["convergence_s"],
                "silent windows": r["silent_batches"],
                "instances": " ".join(f"+{k} {n}" for n, k in more.items()),
            }
        )


def spark_gain(report: Any, case: Case, found: Sequence[dict[str, Any]]) -> None:
    """What real Spark says about the paper's gain."""
    after = {r["strategy"]: r["after"] for r in found}
    wanted, got = case.paper["over_default"], after["stela"] / after["default"] - 1
    report.claim(
        f"{case.name}, on Spark: {wanted:.0%} above the default",
        got >= wanted,
        f"{got:+.0%}: the steps of a batch follow each other, so every operator's time counts, not only the slowest's",
    )


def spark_timeline(axis: plt.Axes, case: Case, found: Sequence[dict[str, Any]]) -> None:
    """Batches on real Spark around the scaling."""
    for r in found:
        when, pace = zip(*r["timeline"], strict=True)
        style = "--" if r["strategy"] == "gain" else "-"
        axis.step(when, pace, style, where="pre", color=COLOURS[r["strategy"]], label=r["strategy"])
    axis.axvline(0, color="black", linewidth=0.7, linestyle=":")
    axis.set(
        title=f"{case.name}, on Spark", xlabel="seconds from the scaling", ylabel="rows/s", ylim=(0, None)
    )
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def timeline(axis: plt.Axes, case: Case, ran: Runs) -> None:
    """Throughput over time of the first run of every strategy, with the scaling marked."""
    for name, trials in ran.items():
        one = trials[0]
        style = "--" if name == "gain" else "-"
        axis.plot(one.time, one.throughput, style, color=COLOURS[name], label=name, linewidth=1.3)
    axis.axvline(one.at, color="black", linewidth=0.7, linestyle=":")
    axis.set_ylim(0, 1.08 * max(one.throughput.max() for trials in ran.values() for one in trials[:1]))
    axis.annotate("scaling ", (one.at, axis.get_ylim()[1] * 0.02), fontsize=7, ha="right")
    axis.set_title(f"{case.name}, {case.machines} → {case.then} machines", fontsize=10)
    axis.set_xlabel("seconds")
    axis.set_ylabel("throughput (rows/s, 10 s windows)")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def redrawn(case: Case, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Gain over before of every strategy with many other speeds of the same operators, in the long run."""
    found: dict[str, list[float]] = {one.name: [] for one in (*COMPARED, Random())}
    for seed in range(10 if args.quick else DRAWS):
        other = case.redrawn(seed)
        now = situation(other, jitter=0.0)
        before = steady(other, other.placement())
        for one in (*COMPARED, Random(seed)):
            found[one.name].append(steady(other, decide(other, one, now).after) / before - 1)
    return {name: np.array(gains) for name, gains in found.items()}


def boxes(axis: plt.Axes, gains: dict[str, np.ndarray]) -> None:
    """The gains of :func:`redrawn` side by side."""
    drawn = axis.boxplot(
        [100 * gains[name] for name in gains], whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6
    )
    for box, name in zip(drawn["boxes"], gains, strict=True):
        box.set_facecolor(COLOURS[name])
        box.set_alpha(0.6)
    axis.set_xticks(range(1, len(gains) + 1), [name.replace(" ", "\n", 1) for name in gains], fontsize=8)
    axis.set_ylabel("gain over before (%)")
    axis.set_title("with other speeds (5–95 %)", fontsize=10)
    axis.grid(alpha=0.25, axis="y")


def spread(gains: dict[str, np.ndarray]) -> str:
    """Medians of :func:`redrawn` in words."""
    return "median gain " + ", ".join(f"{name} {np.median(g):+.0%}" for name, g in gains.items())


def add_draws(report: Any, case: Case, gains: dict[str, np.ndarray]) -> None:
    """Claims about other speeds, which are ours to make."""
    stela, gain, default = gains["stela"], gains["gain"], gains["default"]
    report.claim(
        f"{case.name}: (ours) with any speeds Stela is no worse than the default",
        bool((stela >= default - 0.01).all()),
        f"{(stela >= default - 0.01).mean():.0%} of {len(stela)} draws; {spread(gains)}",
    )
    report.claim(
        f"{case.name}: (ours) projected gain chooses no worse than ETP",
        bool((gain >= stela - 0.01).mean() >= 0.95),
        f"{(gain >= stela - 0.01).mean():.0%} of the draws; mean {gain.mean():+.0%} against {stela.mean():+.0%}",
    )


def typical(report: Any, case: Case, gains: dict[str, np.ndarray]) -> None:
    """The speeds of a case were chosen near the paper's gain: is that gain typical of its graph?"""
    over = (1 + gains["stela"]) / (1 + gains["default"]) - 1
    wanted = case.paper["over_default"]
    report.claim(
        f"{case.name}: (ours) {wanted:.0%} over the default is typical, not owed to the speeds chosen here",
        bool(np.median(over) >= wanted),
        f"median {np.median(over):+.0%}, a tenth of the draws above {np.quantile(over, 0.9):+.0%}; "
        f"{(over >= wanted).mean():.0%} reach it",
    )


def scale_outs(
    report: Any,
    names: Sequence[str],
    claims: Callable[[Any, Case, Runs], None],
    args: argparse.Namespace,
) -> None:
    """A figure with one column per topology: throughput around its scale-out, and gains at other speeds."""
    deep = 2 if args.spark is None else 3
    figure, axes = plt.subplots(deep, len(names), figsize=(14, 3.75 * deep))
    for column, name in enumerate(names):
        case = CASES[name]
        ran = runs(case, args)
        timeline(axes[0, column], case, ran)
        report.rows += rows(case, ran)
        claims(report, case, ran)
        gains = redrawn(case, args)
        boxes(axes[1, column], gains)
        add_draws(report, case, gains)
        typical(report, case, gains)
        found = from_spark(args, name)
        add_spark(report, case, found)
        if found:
            spark_gain(report, case, found)
            spark_timeline(axes[2, column], case, found)
    report.close(figure)
