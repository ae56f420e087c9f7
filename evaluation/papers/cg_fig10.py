"""Fig. 10: unequal workers: 3 of 10 are five times as strong, and nobody tells the sources.

python evaluation/papers/cg_fig10.py [--quick] [--words PATH]
"""

from __future__ import annotations

import numpy as np

from cg_common import (
    COLOURS,
    EPSILON,
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
from weir_evaluation.simulate import SimulatedCluster

OTHERS = [(1, 2), (1, 10), (3, 2), (5, 5), (7, 5), (9, 2), (9, 10)]


def main() -> None:
    args = options(__doc__)
    report = Report(
        "cg_fig10", "CG Fig. 10: 3 of 10 workers are 5 × as strong, 80 % load, 10 virtual workers", args
    )
    data = streams(args)
    figure = None
    for stream in data:
        cluster = SimulatedCluster.mixed(10, capacity_for(stream), 3, 5)
        runs = {g.name: a_day(stream, g, cluster) for g in (Hash(), Shuffle(), Consistent.of_the_paper(10))}
        runs["CG, ours"] = a_day(stream, Consistent(EPSILON), cluster)
        for name, run in runs.items():
            report.rows.append(_row(stream.name, 3, 5, name, run))
        if figure is None:
            figure, axes = three_series(runs, COLOURS)
            axes[0].set_title(stream.name, fontsize=10)
        cg = runs["CG"]
        for name in ("KG", "SG"):
            gap = runs[name].spread("queue")
            report.claim(
                f"{stream.name}: queue length and latency grow with {name}",
                gap[-2] > 2 * gap[len(gap) // 3],
                f"queue gap {gap[len(gap) // 3]:,.0f} after a third of the day, {gap[-2]:,.0f} at its end",
            )
        best = min(runs[name].mean_latency() for name in ("KG", "SG"))
        report.claim(
            f"{stream.name}: CG has the lowest queues and latency",
            cg.mean_latency() < best and cg.queue[-2].max() < runs["SG"].queue[-2].max(),
            f"mean latency {cg.mean_latency():,.1f} s against {best:,.0f} s for the better of KG and SG; "
            f"longest queue at the end {cg.queue[-2].max():,.0f} against {runs['SG'].queue[-2].max():,.0f} (SG)",
        )
        gaps = {n: over_a_day(r)["utilisation_gap"] for n, r in runs.items()}
        report.claim(
            f"{stream.name}: CG keeps the imbalance close to zero, KG and SG do not (a tenth of SG's)",
            gaps["CG"] < 0.1 * gaps["SG"],
            ", ".join(f"{n} {g:.2f}" for n, g in gaps.items()) + " (mean utilisation gap after 6 h)",
            "one of ten virtual workers is 0.18 of what a weak worker can do; with fifty it holds (next)",
        )
        ours = runs["CG, ours"]
        report.claim(
            f"{stream.name}: (ours) 50 virtual workers, moves that adapt: a tenth of SG's imbalance, no slower",
            gaps["CG, ours"] < 0.1 * gaps["SG"] and ours.mean_latency() <= 1.1 * cg.mean_latency(),
            f"utilisation gap {gaps['CG, ours']:.3f} instead of {gaps['CG']:.3f}, mean latency "
            f"{ours.mean_latency():.1f} s instead of {cg.mean_latency():.1f} s, memory "
            f"{ours.memory[-1] / cg.memory[-1]:.2f} × the paper's",
        )

    stream = data[0]
    better: list[float] = []
    mine: list[float] = []
    for strong, times in OTHERS:
        cluster = SimulatedCluster.mixed(10, capacity_for(stream), strong, times)
        runs = {g.name: a_day(stream, g, cluster) for g in (Hash(), Shuffle(), Consistent.of_the_paper(10))}
        runs["CG, ours"] = a_day(stream, Consistent(EPSILON), cluster)
        report.rows += [_row(stream.name, strong, times, name, run) for name, run in runs.items()]
        better.append(runs["SG"].mean_latency() / runs["CG"].mean_latency())
        mine.append(runs["SG"].mean_latency() / runs["CG, ours"].mean_latency())
    report.claim(
        f"{stream.name}: all mixtures of y strong machines, z times as strong, behave alike (CG beats SG)",
        min(better) > 1,
        "SG's mean latency over CG's: "
        + ", ".join(f"{b:.3g} × at y={y}, z={z}" for (y, z), b in zip(OTHERS, better, strict=True)),
        "with y = 1, z = 2 a shuffle overloads nobody (88 % of what the weak can do), so that there is nothing to win",
    )
    report.claim(
        f"{stream.name}: (ours) the same with our defaults, wherever SG overloads somebody",
        all(w > 1 for w, at in zip(mine, OTHERS, strict=True) if at != (1, 2)),
        "SG's mean latency over CG's: "
        + ", ".join(f"{b:.3g} × at y={y}, z={z}" for (y, z), b in zip(OTHERS, mine, strict=True)),
    )
    assert figure is not None
    report.close(figure)


def _row(stream: str, strong: int, times: int, name: str, run) -> dict:  # type: ignore[no-untyped-def]
    head = {"stream": stream, "y": strong, "z": times, "grouping": name}
    return head | over_a_day(run) | {"longest_queue_end": float(np.max(run.queue[-2]))}


if __name__ == "__main__":
    main()
