"""How much nearness should count: the defaults of weir.Weighted, over situations that pull in different directions.

Not a figure of the paper, which leaves initial weights to the developer's experience. Strong weights win where
sources are spread evenly, weak ones where they are not. The best default is the one that is nowhere far from the best.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report
from sq_common import KEYS, options
from weir.network.profile import PAPER
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle
from weir.routing.weighted import Weighted
from weir_evaluation.routing import DynamicWeights
from weir_evaluation.simulate import PipelineStage, saturate, zipf
from weir_evaluation.simulate.workloads import CLUSTER, WORDCOUNT, graded

SITUATIONS: dict[str, dict[str, Any]] = {
    "alike": {},
    "2 × graded": {"speeds": graded(2)},
    "8 × graded": {"speeds": graded(8)},
    "one at ¼": {"speeds": [1, 1, 1, 0.25]},
    "sources on 2": {"sources": [0, 1]},
    "source on 1": {"sources": [0]},
}
CHOICES = [(near, scale) for scale in (32, 64, 128) for near in (0.5, 1.0, 1.5, 2.0)]


def main() -> None:
    args = options(__doc__, rows=500_000)
    report = Report("sq_weights", "Initial weights: throughput over the best choice (simulated)", args)
    stream = zipf(args.rows, KEYS, 1.0)
    rates: dict[tuple[float, int], list[float]] = {}
    for near, scale in CHOICES:
        control = DynamicWeights(delta=scale // 16, ceiling=4 * scale)
        kinds = [Weighted(d, control=control, near=near, scale=scale) for d in (Shuffle(), Hash())]
        stages = [PipelineStage(kind, PAPER.handling_s) for kind in kinds]
        rates[near, scale] = [
            saturate(stream, stages, CLUSTER, window=WORDCOUNT.window, **case).rows_per_s
            for case in SITUATIONS.values()
        ]
    best = np.max(list(rates.values()), axis=0)
    for (near, scale), rate in rates.items():
        share = np.array(rate) / best
        row = {"near": near, "scale": scale} | dict(zip(SITUATIONS, share.round(3).tolist(), strict=True))
        report.rows.append(row | {"worst": float(share.min()), "mean": float(share.mean())})
    default = Weighted()
    mine = next(r for r in report.rows if (r["near"], r["scale"]) == (default.near, default.scale))
    worst, mean = (max(r[k] for r in report.rows) for k in ("worst", "mean"))
    report.claim(
        "(ours) the default is within 5 % of the best choice, in its worst situation and on average",
        mine["worst"] >= worst - 0.05 and mine["mean"] >= mean - 0.05,
        f"worst {mine['worst']:.2f} (best choice {worst:.2f}), mean {mine['mean']:.2f} ({mean:.2f})",
    )
    figure, axis = plt.subplots(figsize=(8, 4))
    for scale in (32, 64, 128):
        rows = [r for r in report.rows if r["scale"] == scale]
        for what, style in (("worst", "-"), ("mean", ":")):
            label = f"scale {scale}, {what}"
            axis.plot([r["near"] for r in rows], [r[what] for r in rows], style, marker="o", label=label)
    axis.set_xlabel("near")
    axis.set_ylabel("throughput over the best choice")
    axis.legend(fontsize=7)
    report.close(figure)


if __name__ == "__main__":
    main()
