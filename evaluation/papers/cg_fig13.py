"""Fig. 13: the strength of the workers changes twice; 100 virtual workers per worker.

python evaluation/papers/cg_fig13.py [--quick] [--words PATH]
"""

from __future__ import annotations

import numpy as np

from cg_common import (
    COLOURS,
    EPSILON,
    LOAD,
    SWING,
    Report,
    a_day,
    capacity_for,
    options,
    over_a_day,
    streams,
    three_series,
)
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle
from weir_evaluation.simulate import Arrivals, Result, SimulatedCluster, SimulatedStream

PHASES = ((3, 5), (5, 4), (2, 10))
SWINGS = (0.0, 0.05, 0.1, 0.15)


def changing(stream: SimulatedStream, swing: float) -> SimulatedCluster:
    """{3, 5}, then {5, 4} and {2, 10} after 6/22 and 12/22 of the messages, with the same total."""
    times = np.arange(0, 86_400, 10.0)
    arrived = Arrivals.day(len(stream), swing).before(times)
    total = capacity_for(stream)
    cluster = SimulatedCluster.mixed(10, total, *PHASES[0])
    for at, phase in zip((6 / 22, 12 / 22), PHASES[1:], strict=True):
        when = float(times[np.searchsorted(arrived, at * len(stream))])
        cluster = cluster.then(when, SimulatedCluster.mixed(10, total, *phase))
    return cluster


def recovery(run: Result, change: float, until: float) -> tuple[float, float, float]:
    """Gap in utilisation just after a change and at the end of its phase; minutes until it is nearly there."""
    within = np.flatnonzero((run.time > change + (run.time[1] - run.time[0])) & (run.time <= until))[:-1]
    gap = run.spread("utilisation")[within]
    final = float(np.nanmean(gap[-len(gap) // 4 :]))
    near = np.flatnonzero(gap <= final + 0.1 * (gap[0] - final))
    return float(gap[0]), final, float((run.time[within[near[0]]] - change) / 60)


def sensitivity(report: Report, stream: SimulatedStream) -> None:
    """The day's swing decides how much of it lies above the idle threshold, and so the verdict on change 2."""
    for patience in (0, 5):
        ratios = {}
        for swing in SWINGS:
            cluster = changing(stream, swing)
            run = a_day(stream, Consistent.of_the_paper(100, patience=patience), cluster, swing=swing)
            name = f"CG, patience {patience}, swing {swing}"
            report.rows.append({"stream": stream.name, "grouping": name} | over_a_day(run))
            first, final, _ = recovery(run, cluster.starts[2], 86_400.0)
            ratios[swing] = final / first
        report.claim(
            f"{stream.name}: (ours) CG with{'' if patience else 'out'} probing adapts to change 2, whatever the swing",
            max(ratios.values()) <= 0.25,
            "final over first gap: "
            + ", ".join(f"{r:.2f} at {LOAD * (1 + s):.0%} peak load" for s, r in ratios.items()),
            "above the idle threshold nobody is idle, and nothing moves" if not patience else "",
        )


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig13", "CG Fig. 13: capacities change after 6/22 and 12/22 of the messages", args)
    figure = None
    for stream in streams(args):
        cluster = changing(stream, SWING)
        runs = {g.name: a_day(stream, g, cluster) for g in (Hash(), Shuffle(), Consistent.of_the_paper(100))}
        for name, run in runs.items():
            report.rows.append({"stream": stream.name, "grouping": name} | over_a_day(run))
        patient = a_day(stream, Consistent.of_the_paper(100, patience=5), cluster)
        ours = a_day(stream, Consistent(EPSILON), cluster)
        if figure is None:
            shown = runs | {"CG, probing": patient, "CG, ours": ours}
            figure, axes = three_series(shown, COLOURS | {"CG, probing": "#9b59b6"})
            axes[0].set_title(stream.name, fontsize=10)
            for axis in axes:
                for at in cluster.starts[1:]:
                    axis.axvline(at / 3600, color="black", linewidth=0.6, linestyle=":")
        ends = [*cluster.starts[1:], 86_400.0]
        for phase in (1, 2):
            first, final, minutes = recovery(runs["CG"], cluster.starts[phase], ends[phase])
            report.claim(
                f"{stream.name}: CG adapts to change {phase} (utilisation gap down to a quarter)",
                final <= 0.25 * first,
                f"gap {first:.2f} at once, {final:.3f} at the end of the phase, nearly there after "
                f"{minutes:.0f} minutes = {minutes * 60 / (runs['CG'].time[0]):.0f} slots",
            )
        report.rows.append({"stream": stream.name, "grouping": "CG, probing"} | over_a_day(patient))
        plain, better = (recovery(r, cluster.starts[2], ends[2]) for r in (runs["CG"], patient))
        report.claim(
            f"{stream.name}: (ours) probing of workers that have not complained (section VI-A) helps after change 2",
            better[1] < 0.5 * plain[1],
            f"gap at the end {better[1]:.3f} instead of {plain[1]:.3f}, longest queue "
            f"{patient.queue[-2].max():,.0f} instead of {runs['CG'].queue[-2].max():,.0f}, memory "
            f"{patient.memory[-1] / runs['CG'].memory[-1]:.2f} ×: at 84 % load the strong are above the idle "
            "threshold before they have taken their share",
        )
        report.rows.append({"stream": stream.name, "grouping": "CG, ours"} | over_a_day(ours))
        last = recovery(ours, cluster.starts[2], ends[2])
        report.claim(
            f"{stream.name}: (ours) our defaults adapt to change 2 sooner, and end as well balanced",
            last[1] <= better[1] + 0.03 and ours.mean_latency() < patient.mean_latency(),
            f"gap at the end {last[1]:.3f}, nearly there after {last[2]:.0f} minutes instead of {better[2]:.0f}; "
            f"mean latency {ours.mean_latency():,.0f} s instead of {patient.mean_latency():,.0f} s, memory "
            f"{ours.memory[-1] / patient.memory[-1]:.2f} ×",
        )
        sensitivity(report, stream)
        cg, sg, kg = (runs[name].mean_latency() for name in ("CG", "SG", "KG"))
        report.claim(
            f"{stream.name}: CG beats KG and SG all along",
            cg < min(sg, kg),
            f"mean latency CG {cg:,.0f} s, SG {sg:,.0f} s, KG {kg:,.0f} s",
        )
    assert figure is not None
    report.close(figure)


if __name__ == "__main__":
    main()
