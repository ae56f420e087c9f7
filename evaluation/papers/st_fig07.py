"""Fig. 7: convergence time after a scale-out, and the Network topology's timeline.

python evaluation/papers/st_fig07.py [--quick] [--spark FILE]

With ``--spark`` each topology has the interruptions that were measured on it, and the figure says how they compare.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report
from st_common import COLOURS, add_spark, from_spark, interruptions, mean, options, rows, runs, timeline
from weir_evaluation.stela.topologies import CASES

PAPER = {"Diamond": 0.92, "PageLoad": 0.88, "Processing": 0.75}


def main() -> None:
    args = options(__doc__)
    restart, change, known = interruptions(args)
    report = Report(
        "st_fig07",
        f"Stela Fig. 7: convergence time (simulated: a restart interrupts for {restart:.1f} s, other changes for "
        f"{change:.1f} s, {known})",
        args,
    )
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(2, 1))
    settled: dict[str, dict[str, float]] = {}
    for case in CASES.values():
        ran = runs(case, args)
        report.rows += rows(case, ran)
        settled[case.name] = {name: mean(trials, "convergence") for name, trials in ran.items()}
        down = {name: mean(trials, "down") for name, trials in ran.items()}
        report.claim(
            f"{case.name}: (ours) Stela leaves no window without output",
            down["stela"] == 0,
            ", ".join(f"{name} {value:.1f}" for name, value in down.items()) + " silent windows of 10 s",
        )
        found = from_spark(args, case.name)
        add_spark(report, case, found)
        if found:
            steady = ", ".join(
                f"{r['strategy']} {'not within the run' if r['steady_s'] is None else str(r['steady_s']) + ' s'}"
                for r in found
            )
            report.claim(
                f"{case.name}, on Spark: (ours) no batch without output",
                not any(r["silent_batches"] for r in found),
                f"within 5 % of the new throughput for good after: {steady}",
            )
            lost = {r["strategy"]: r["interruption_s"] for r in found}
            report.claim(
                f"{case.name}, on Spark: (ours) Stela interrupts for no longer than the default",
                lost["stela"] <= lost["default"],
                ", ".join(f"{name} {seconds:.1f} s" for name, seconds in lost.items()),
            )
        if case.name == "Network":
            timeline(axes[1], case, ran)
    names = list(settled)
    width = 0.2
    for at, strategy in enumerate(settled["Star"]):
        axes[0].bar(
            np.arange(len(names)) + (at - 1.5) * width,
            [settled[name][strategy] for name in names],
            width,
            color=COLOURS[strategy],
            label=strategy,
        )
    axes[0].set_xticks(range(len(names)), names)
    axes[0].set_ylabel("convergence time (s)")
    axes[0].grid(alpha=0.25, axis="y")
    axes[0].legend(frameon=False, fontsize=8)
    for name, less in PAPER.items():
        mine = 1 - settled[name]["stela"] / settled[name]["default"]
        report.claim(
            f"{name}: Stela converges in {less:.0%} less time than the default",
            mine >= less,
            f"{mine:.0%} less: {settled[name]['stela']:.0f} s against {settled[name]['default']:.0f} s; to be "
            "twice above and twice below the mean takes at least 40 s of 10 s windows, about 80 s by chance",
        )
        report.claim(f"{name}: Stela converges sooner than the default", mine > 0.05, f"{mine:.0%} less time")
    for name in ("Star", "Network"):
        ratio = settled[name]["stela"] / settled[name]["default"]
        report.claim(
            f"{name}: Stela takes longer to converge than the default",
            ratio > 1.05,
            f"{ratio:.2f} × the default's time",
        )
    ratio = settled["Linear"]["stela"] / settled["Linear"]["default"]
    report.claim(
        "Linear: Stela converges in about the default's time (within a fifth)",
        0.8 <= ratio <= 1.25,
        f"{ratio:.2f} × the default's time",
    )
    report.close(figure)


if __name__ == "__main__":
    main()
