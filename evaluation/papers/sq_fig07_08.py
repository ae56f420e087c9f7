"""Figs. 7 and 8: latency and throughput of wordcount and of the advertising pipeline."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report
from sq_common import COLOURS, from_spark, keys, measure, options, pick
from weir_evaluation.simulate.workloads import ADVERTISING, METHODS, WORDCOUNT, events

PAPER = {
    "wordcount": {"plain": (57_162, 1.91), "WG+DWC": (91_624, 1.03)},
    "advertising": {"plain": (76_173, 3.26), "WG+DWC": (127_209, 1.62)},
}


def main() -> None:
    args = options(__doc__)
    report = Report(
        "sq_fig07_08", "Squirrel Figs. 7, 8: wordcount and advertising, four machines (simulated)", args
    )
    for workload, stream in ((WORDCOUNT, keys(args)), (ADVERTISING, events(args.rows))):
        rows = measure(workload, stream, {})
        for row in rows:
            paper = PAPER[workload.name].get(row["method"], (float("nan"),) * 2)
            row["paper rows/s"], row["paper ms"] = paper
        report.rows += rows
        plain, ours = pick(rows, "plain"), pick(rows, "WG+DWC")
        (paper_plain, paper_ms), (paper_ours, ours_ms) = PAPER[workload.name].values()
        report.claim(
            f"{workload.name}: plain grouping {paper_plain:,} rows/s, {paper_ms} ms (fitted)",
            abs(plain["rows_per_s"] / paper_plain - 1) < 0.1
            and abs(plain["latency_ms"] / paper_ms - 1) < 0.1,
            f"{plain['rows_per_s']:,.0f} rows/s, {plain['latency_ms']:.2f} ms"
            + ("; its work per row is fitted to this throughput" if workload is ADVERTISING else ""),
        )
        report.claim(
            f"{workload.name}: Squirrel {paper_ours / paper_plain:.2f} × the throughput",
            ours["over plain"] >= paper_ours / paper_plain,
            f"{ours['over plain']:.2f} ×: {ours['rows_per_s']:,.0f} rows/s, {ours['near']:.0%} of hops near",
        )
        report.claim(
            f"{workload.name}: {1 - ours_ms / paper_ms:.0%} lower latency",
            ours["latency_ms"] / plain["latency_ms"] <= ours_ms / paper_ms,
            f"{ours['latency']}: {ours['latency_ms']:.2f} ms; rows in flight are the same for all methods here, so "
            "latency is their number over throughput",
        )
    measured = [
        *from_spark(args, ["workload"], workload="wordcount", skew="real", heterogeneity=1.0),
        *from_spark(args, ["workload"], workload="advertising", heterogeneity=1.0),
    ]
    for row in measured:
        report.rows.append(row | {"paper rows/s": float("nan"), "paper ms": float("nan")})

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, what, at in ((axes[0], "latency_ms", 1), (axes[1], "rows_per_s", 0)):
        for i, name in enumerate(PAPER):
            for j, method in enumerate(METHODS):
                row = pick(report.rows, method, workload=name)
                x = (len(METHODS) + 1) * i + j
                axis.bar(x, row[what], 0.8, color=COLOURS[method], label=method if i == 0 else None)
                if method in PAPER[name]:
                    axis.plot([x - 0.4, x + 0.4], [PAPER[name][method][at]] * 2, color="black", linewidth=2,
                              label="paper" if i == j == 0 else None)  # fmt: skip
        axis.set_xticks((len(METHODS) + 1) * np.arange(len(PAPER)) + 2, list(PAPER))
        axis.set_ylabel("ms" if at else "rows/s")
    axes[0].legend(fontsize=8)
    report.close(figure)


if __name__ == "__main__":
    main()
