"""Weights in micro-batches, as the engine runs them: how soon they follow, and what a slow host still costs.

Not a figure of the paper, whose control acts every few milliseconds. A batch lasts as long as its busiest server; both
controls hear of it once, before the next. Four hosts of a rack, 0.5 ms of work per row, 2 % of noise, keys by hash.

python evaluation/papers/sq_batches.py [--quick]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report
from sq_common import COLOURS, options
from weir.network.profile import PAPER
from weir.routing.hash import Hash
from weir_evaluation.simulate import SimulatedNetwork, zipf
from weir_evaluation.simulate.batches import in_batches
from weir_evaluation.simulate.workloads import CLUSTER, METHODS, graded, grouping

SPEEDS = {
    "alike": np.ones(4),
    "slowest at ¼": graded(4),
    "slowest at ⅛": graded(8),
    "one of four at ¼": np.array([1, 1, 1, 0.25]),
}
BATCHES, SEEDS = 24, 3


def main() -> None:
    args = options(__doc__, rows=BATCHES * 4 * 4000)
    report = Report(
        "sq_batches", "Weights in micro-batches: length of a batch against plain hashing (simulated)", args
    )
    net = SimulatedNetwork.between(CLUSTER, CLUSTER, row_bytes=PAPER.row_bytes, profile=PAPER)
    streams = [zipf(args.rows, 100_000, 0.0, seed=seed) for seed in range(SEEDS)]
    figure, axes = plt.subplots(1, len(SPEEDS), figsize=(14, 3.6), sharey=True)
    saved: dict[str, dict[str, float]] = {}
    for axis, (case, speeds) in zip(axes, SPEEDS.items(), strict=True):
        lengths = {}
        for method in METHODS:
            runs = [
                in_batches(
                    stream,
                    grouping(method, Hash()),
                    speeds,
                    batches=BATCHES,
                    work=5e-4,
                    noise=0.02,
                    network=net,
                    seed=seed,
                ).seconds
                for seed, stream in enumerate(streams)
            ]
            lengths[method] = np.mean(runs, axis=0)
        plain = lengths["plain"].mean()
        saved[case] = {}
        for method, seconds in lengths.items():
            axis.plot(np.arange(1, BATCHES + 1), seconds / plain, color=COLOURS[method], label=method)
            late = seconds[BATCHES // 2 :].mean() / plain
            near = int(np.argmax(seconds / plain <= 1.1 * late)) + 1
            saved[case][method] = 1 - late
            report.rows.append(
                {"speeds": case, "method": method, "batch_s": float(seconds[BATCHES // 2 :].mean())}
                | {"against plain": f"{late - 1:+.0%}", "batches until within 10 %": near}
            )
        axis.set(title=case, xlabel="batch", ylim=(0, None))
    axes[0].set_ylabel("length, × plain")
    axes[0].legend(frameon=False, fontsize=8)
    slow = [case for case in SPEEDS if case != "alike"]
    report.claim(
        "(ours) with a slow host, weights by busy times shorten a batch by half and more",
        all(saved[case]["WG+BW"] >= 0.5 for case in slow),
        ", ".join(f"{case}: −{saved[case]['WG+BW']:.0%} (DWC −{saved[case]['WG+DWC']:.0%})" for case in slow),
    )
    report.claim(
        "(ours) where all hosts are alike they cost nothing",
        saved["alike"]["WG+BW"] >= saved["alike"]["WG"] - 0.02,
        f"−{saved['alike']['WG+BW']:.0%}, fixed weights −{saved['alike']['WG']:.0%}",
    )
    report.close(figure)


if __name__ == "__main__":
    main()
