"""Fig. 12: how many virtual workers? The cluster of Fig. 10 with 5 … 1000 of them per worker.

python evaluation/papers/cg_fig12.py [--quick] [--words PATH]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report, a_day, capacity_for, hours, options, over_a_day, streams, three_series
from weir.routing.consistent import Consistent
from weir_evaluation.simulate import Result, SimulatedCluster

VIRTUAL = (5, 10, 20, 50, 100, 1000)
TIMES = (0.25, 4.0)  # other lengths of the time slot t₀, which the paper leaves open: minutes, or an hour


def settled(run: Result) -> float:
    """Hours until the gap in utilisation has halved; infinite if it never does."""
    gap = run.spread("utilisation")[:-1]
    at = np.flatnonzero(gap <= 0.5 * gap[0])
    return float(run.time[at[0]] / 3600) if len(at) else float("inf")


def main() -> None:
    args = options(__doc__)
    report = Report(
        "cg_fig12", "CG Fig. 12: virtual workers per worker (3 of 10 workers 5 × as strong)", args
    )
    figure = None
    for stream in streams(args):
        cluster = SimulatedCluster.mixed(10, capacity_for(stream), 3, 5)
        runs = {v: a_day(stream, Consistent.of_the_paper(v), cluster) for v in VIRTUAL}
        rows = {}
        for v, run in runs.items():
            late = hours(run, 18)
            rows[v] = {
                "stream": stream.name,
                "virtual": v,
                "settled_h": settled(run),
                "queue_max_last_6h": float(run.queue[late].max()),
                "utilisation_gap_last_6h": float(np.nanmean(run.spread("utilisation")[late])),
            } | over_a_day(run)
            report.rows.append(rows[v])
        if figure is None:
            shades = dict(
                zip(VIRTUAL, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(VIRTUAL))), strict=True)
            )
            figure, axes = three_series(
                {str(v): r for v, r in runs.items()}, {str(v): shades[v] for v in VIRTUAL}
            )
            axes[0].set_title(stream.name, fontsize=10)
            axes[0].get_legend().set_title("virtual workers")
        gap = {v: row["utilisation_gap_last_6h"] for v, row in rows.items()}
        report.claim(
            f"{stream.name}: 5 are too few (a worse balance in the long run than 10 … 100)",
            gap[5] > max(gap[v] for v in (10, 20, 50, 100)),
            ", ".join(f"{v}: {g:.3f}" for v, g in gap.items()) + " (utilisation gap, last 6 h)",
        )
        slow = {v: row["settled_h"] for v, row in rows.items()}
        report.claim(
            f"{stream.name}: 1000 take the longest to converge",
            slow[1000] == max(slow.values()),
            ", ".join(f"{v}: {h:.1f} h" for v, h in slow.items()),
        )
        report.claim(
            f"{stream.name}: 10 and 20 are alike (mean latency within 2 ×)",
            0.5 <= rows[10]["latency_mean"] / rows[20]["latency_mean"] <= 2,
            f"{rows[10]['latency_mean']:.1f} s and {rows[20]['latency_mean']:.1f} s",
            "one virtual worker moves per pair and slot: twice as many take twice as long, and queues build up",
        )
        best = min(rows, key=lambda v: rows[v]["utilisation_gap_last_6h"])
        fastest = min(rows, key=lambda v: rows[v]["latency_mean"])
        report.claim(
            f"{stream.name}: 100 give the best results, in balance (last 6 h) and in latency",
            best == fastest == 100,
            f"smallest utilisation gap with {best} ({gap[best]:.3f}; with 100 {gap[100]:.3f}), lowest mean latency "
            f"with {fastest}: slow convergence costs more than coarse shares; mean latency "
            + ", ".join(f"{v}: {row['latency_mean']:.0f} s" for v, row in rows.items()),
            "as above. Moves that adapt do away with it:",
        )
        by_slot = {1.0: gap}
        for times in TIMES:
            by_slot[times] = {}
            for v in VIRTUAL[:-1]:
                run = a_day(stream, Consistent.of_the_paper(v), cluster, times=times)
                late = hours(run, 18)
                by_slot[times][v] = float(np.nanmean(run.spread("utilisation")[late]))
                report.rows.append(
                    {"stream": f"{stream.name}, t₀ × {times:g}", "virtual": v, "settled_h": settled(run)}
                    | {"queue_max_last_6h": float(run.queue[late].max())}
                    | {"utilisation_gap_last_6h": by_slot[times][v]}
                    | over_a_day(run)
                )
        report.claim(
            f"{stream.name}: (ours) the same number balances best (of 5 … 100, last 6 h) with time slots t₀ a quarter "
            "and four times as long",
            len({min(VIRTUAL[:-1], key=found.__getitem__) for found in by_slot.values()}) == 1,
            "; ".join(
                f"t₀ × {times:g}: " + ", ".join(f"{v}: {found[v]:.3f}" for v in VIRTUAL[:-1])
                for times, found in sorted(by_slot.items())
            ),
        )
        ours = {v: a_day(stream, Consistent(virtual=v), cluster) for v in (20, 50, 100)}
        for v, run in ours.items():
            late = hours(run, 18)
            gap_late = float(np.nanmean(run.spread("utilisation")[late]))
            report.rows.append(
                {"stream": f"{stream.name}, ours", "virtual": v, "settled_h": settled(run)}
                | {"queue_max_last_6h": float(run.queue[late].max()), "utilisation_gap_last_6h": gap_late}
                | over_a_day(run)
            )
        took = {v: run.mean_latency() for v, run in ours.items()}
        report.claim(
            f"{stream.name}: (ours) moves that adapt: 50 and 100 as fast as the paper's 10 (mean latency within 2 ×)",
            max(took[50], took[100]) <= 2 * rows[10]["latency_mean"],
            ", ".join(f"{v}: {s:.1f} s" for v, s in took.items())
            + f"; the paper's 10: {rows[10]['latency_mean']:.1f} s, "
            f"50: {rows[50]['latency_mean']:.1f} s, 100: {rows[100]['latency_mean']:.1f} s",
        )
    assert figure is not None
    report.close(figure)


if __name__ == "__main__":
    main()
