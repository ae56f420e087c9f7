"""Fig. 4: throughput around a scale-out of the micro-benchmarks Star, Linear and Diamond.

python evaluation/papers/st_fig04.py [--quick]
"""

from __future__ import annotations

from cg_common import Report
from st_common import Runs, mean, options, scale_outs
from weir_evaluation.stela.topologies import Case


def claims(report: Report, case: Case, ran: Runs) -> None:
    name = case.name
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


def main() -> None:
    args = options(__doc__)
    report = Report("st_fig04", "Stela Fig. 4: scale-out of Star, Linear, Diamond (simulated)", args)
    scale_outs(report, ("Star", "Linear", "Diamond"), claims, args)


if __name__ == "__main__":
    main()
