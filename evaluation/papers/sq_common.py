"""Shared by the scripts for the figures of Squirrel: options, runs, points from real Spark, plots.

Every script prints a table, states each claim of the paper with what was measured beside it, and writes a plot
and a JSON file to ``evaluation/papers/out/``. What is simulated, and where its constants come from, says
``weir_evaluation.simulate.workloads``. ``--spark FILE`` adds what was measured on real Spark: a JSON list of records as
``weir bench squirrel --json`` prints them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from cg_common import OUT, Report, console
from weir_evaluation.simulate import SimulatedStream, words, zipf
from weir_evaluation.simulate.workloads import METHODS, Method, Workload

KEYS = 1_000_000
COLOURS = {"plain": "#c0392b", "WG": "#e67e22", "WG+DWC": "#2471a3", "WG+BW": "#1abc9c", "WG+A2": "#8e44ad"}
MARKS = {"plain": "o", "WG": "s", "WG+DWC": "P", "WG+BW": "*", "WG+A2": "v"}

Rows = list[dict[str, Any]]


def options(description: str, rows: int = 2_000_000) -> argparse.Namespace:
    """The options that all figures share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=rows, help="rows per run (the paper: 100 million)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--words", metavar="PATH", help="a Parquet file with a column 'word', for real keys")
    parser.add_argument("--spark", type=Path, metavar="FILE", help="records from real Spark, to show beside")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    args = parser.parse_args()
    if args.quick:
        args.rows //= 10
    return args


def keys(args: argparse.Namespace, rows: int | None = None) -> SimulatedStream:
    """The real words if they are given, else a Zipf law of about their skew."""
    wanted = args.rows if rows is None else rows
    if args.words:
        return words(args.words, limit=wanted)
    console.print("no --words PATH given: Zipf 0.9 over 300,000 keys stands in for real keys", style="yellow")
    return zipf(wanted, 300_000, 0.9)


def measure(workload: Workload, stream: SimulatedStream, case: dict[str, Any], **more: Any) -> Rows:
    """All methods on one stream: a row of the figure each."""
    rows = []
    for method in METHODS:
        out = workload.run(method, stream, **more)
        near = out.hops[:, 0].sum() / out.hops.sum()
        rows.append(
            {"workload": workload.name}
            | case
            | {
                "method": method,
                "where": "simulator",
                "rows_per_s": out.rows_per_s,
                "latency_ms": 1000 * out.latency_s,
                "p99_ms": 1000 * out.latency_p99_s,
                "seconds": out.seconds,
                "near": float(near),
            }
        )
        base = rows[0]
        rows[-1]["over plain"] = rows[-1]["rows_per_s"] / base["rows_per_s"]
        rows[-1]["latency"] = f"{rows[-1]['latency_ms'] / base['latency_ms'] - 1:+.0%}"
    return rows


def from_spark(args: argparse.Namespace, keep: Sequence[str], **wanted: Any) -> Rows:
    """Records from real Spark that belong into this figure, with the columns of its table."""
    if args.spark is None:
        return []
    found = [r for r in json.loads(args.spark.read_text()) if all(r.get(k) == v for k, v in wanted.items())]
    plain = {tuple(r.get(k) for k in keep): r for r in found if r["method"] == "plain"}
    rows = []
    for r in found:
        base = plain.get(tuple(r.get(k) for k in keep))
        if base is None:
            console.print(f"--spark: {r} has no plain grouping to compare with; left out", style="yellow")
            continue
        rows.append(
            {"workload": r["workload"]}
            | {k: r.get(k) for k in keep}
            | {"method": r["method"], "where": "Spark"}
            | {k: float(r[k]) for k in ("rows_per_s", "latency_ms")}
            | {"p99_ms": float("nan"), "seconds": float(r.get("seconds", "nan")), "near": float("nan")}
            | {"over plain": r["rows_per_s"] / base["rows_per_s"]}
            | {"latency": f"{r['latency_ms'] / base['latency_ms'] - 1:+.0%}"}
        )
    return rows


def pick(rows: Rows, method: Method, where: str = "simulator", **case: Any) -> dict[str, Any]:
    """The one row of a case."""
    return next(r for r in rows if r["method"] == method and r["where"] == where and _is(r, case))


def _is(row: dict[str, Any], case: dict[str, Any]) -> bool:
    return all(row[k] == v for k, v in case.items())


def curves(report: Report, x: str, label: str, ticks: dict[Any, str]) -> plt.Figure:
    """Latency, throughput, and throughput over plain, where points from Spark find their place as well."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.9))
    at = {value: i for i, value in enumerate(ticks)}
    for axis, what, unit in zip(
        axes, ("latency_ms", "rows_per_s", "over plain"), ("ms", "rows/s", "× plain"), strict=True
    ):
        for method in METHODS:
            for where, style in (
                ("simulator", {"linewidth": 1.4}),
                ("Spark", {"linewidth": 0, "mfc": "none"}),
            ):
                rows = [r for r in report.rows if r["method"] == method and r["where"] == where]
                rows = [r for r in rows if r[x] in at and (where == "simulator" or what == "over plain")]
                if rows:
                    name = method if where == "simulator" else f"{method}, Spark"
                    xs, ys = [at[r[x]] for r in rows], [r[what] for r in rows]
                    axis.plot(xs, ys, color=COLOURS[method], marker=MARKS[method], label=name, **style)
        axis.set_xticks(list(at.values()), list(ticks.values()))
        axis.set_xlabel(label)
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.set_title({"latency_ms": "latency", "rows_per_s": "throughput"}.get(what, what), fontsize=10)
        axis.grid(alpha=0.25)
    axes[-1].legend(fontsize=8)
    return figure
