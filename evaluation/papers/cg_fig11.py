"""Fig. 11: many sources, each with its own loads and its own map, hearing signals on acknowledgements.

python evaluation/papers/cg_fig11.py [--quick] [--words PATH]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import EPSILON, Report, a_day, capacity_for, log_axes, options, streams
from weir.routing.consistent import Consistent
from weir_evaluation.simulate import SimulatedCluster

SOURCES = (1, 10, 50, 100)
WORKERS = (5, 10, 50, 100)


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig11", "CG Fig. 11: imbalance and memory by number of sources", args)
    data = streams(args)
    figure, axes = plt.subplots(2, len(data), figsize=(5.5 * len(data), 6.4), squeeze=False)
    for column, stream in enumerate(data):
        by = {}
        for n in WORKERS:
            for s in SOURCES:
                run = a_day(
                    stream,
                    Consistent.of_the_paper(10),
                    SimulatedCluster.equal(n, capacity_for(stream)),
                    sources=s,
                )
                by[n, s] = row = {
                    "stream": stream.name,
                    "workers": n,
                    "sources": s,
                    "imbalance": run.imbalance(),
                    "memory": int(run.memory[-1]),
                    "moves_per_source": float(run.moves.sum()),
                }
                report.rows.append(row)
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(SOURCES)))
        for axis, what in zip(axes[:, column], ("imbalance", "memory"), strict=True):
            for s, shade in zip(SOURCES, shades, strict=True):
                values = [by[n, s][what] for n in WORKERS]
                axis.plot(
                    WORKERS,
                    values,
                    marker="o",
                    markersize=4,
                    color=shade,
                    label="1 source" if s == 1 else f"{s} sources",
                )
            log_axes(axis, WORKERS)
            axis.set_xlabel("workers")
            axis.set_ylabel(what if what == "imbalance" else "memory (pairs)")
        axes[0, column].set_title(stream.name, fontsize=10)
        axes[0, column].set_ylim(1e-4, 1)
        axes[1, column].set_ylim(stream.distinct(), 10 * stream.distinct())
        axes[1, column].legend(frameon=False, fontsize=8)

        worst = max(row["imbalance"] for row in by.values())
        report.claim(
            f"{stream.name}: the imbalance does not depend on the number of sources (at most 5 ε anywhere)",
            worst <= 5 * EPSILON,
            f"worst {worst:.4f}; on 100 workers "
            + ", ".join(f"{by[100, s]['imbalance']:.4f}" for s in SOURCES)
            + " with 1, 10, 50, 100 sources",
        )
        grown = {n: max(by[n, s]["memory"] for s in SOURCES) / by[n, 1]["memory"] for n in WORKERS}
        report.claim(
            f"{stream.name}: memory remains almost the same, seen on a log scale (within 2 ×)",
            max(grown.values()) <= 2,
            "most memory over that of one source: "
            + ", ".join(f"{g:.2f} × on {n} workers" for n, g in grown.items()),
        )
    report.close(figure)


if __name__ == "__main__":
    main()
