"""Fig. 4: throughput around a scale-out of the micro-benchmarks Star, Linear and Diamond.

python papers/st_fig04.py [--quick]
"""

from __future__ import annotations

import matplotlib.pyplot as plt

from cg_common import Report
from st_common import add_draws, boxes, mean, options, redrawn, rows, runs, timeline, typical
from weir.elasticity.topologies import CASES


def main() -> None:
    args = options(__doc__)
    report = Report("st_fig04", "Stela Fig. 4: scale-out of Star, Linear, Diamond (simulated)", args)
    figure, axes = plt.subplots(2, 3, figsize=(14, 7.5))
    for column, name in enumerate(("Star", "Linear", "Diamond")):
        case = CASES[name]
        ran = runs(case, args)
        timeline(axes[0, column], case, ran)
        report.rows += rows(case, ran)
        after = {strategy: mean(trials, "after") for strategy, trials in ran.items()}
        before = mean(ran["default"], "before")
        paper = case.paper["over_default"]
        report.claim(
            f"{name}: Stela's throughput after scaling is {paper:.0%} above the default's",
            after["stela"] >= (1 + paper) * after["default"],
            f"{after['stela'] / after['default'] - 1:+.0%} (least link load "
            f"{after['least link load'] / after['default'] - 1:+.0%}, gain "
            f"{after['gain'] / after['default'] - 1:+.0%})",
        )
        if name != "Star":
            report.claim(
                f"{name}: the default does not improve throughput",
                after["default"] <= 1.03 * before,
                f"{after['default'] / before - 1:+.1%}",
            )
        gains = redrawn(case, args)
        boxes(axes[1, column], gains)
        add_draws(report, case, gains)
        typical(report, case, gains)
    report.close(figure)


if __name__ == "__main__":
    main()
