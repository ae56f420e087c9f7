"""Fig. 6: throughput around a scale-out of PageLoad, Processing and Network monitoring.

python evaluation/papers/st_fig06.py [--quick]
"""

from __future__ import annotations

from cg_common import Report
from st_common import Runs, mean, options, scale_outs
from weir_evaluation.stela.topologies import Case


def claims(report: Report, case: Case, ran: Runs) -> None:
    name = case.name
    after = {strategy: mean(trials, "after") for strategy, trials in ran.items()}
    before = mean(ran["stela"], "before")
    over_before = {strategy: value / before - 1 for strategy, value in after.items()}
    over_default = after["stela"] / after["default"] - 1
    if name == "Network":
        report.claim(
            "Network: Stela improves throughput by 21 %",
            over_before["stela"] >= 0.21,
            f"{over_before['stela']:+.0%} (gain {over_before['gain']:+.0%})",
        )
        report.claim(
            "Network: the default does not improve it",
            over_before["default"] <= 0.03,
            f"{over_before['default']:+.1%}",
        )
        report.claim(
            "Network: least link load lowers it",
            over_before["least link load"] < -0.01,
            f"{over_before['least link load']:+.1%}",
        )
    else:
        report.claim(
            f"{name}: Stela improves throughput by 80 %",
            over_before["stela"] >= 0.80,
            f"{over_before['stela']:+.0%} (gain {over_before['gain']:+.0%})",
        )
        report.claim(
            f"{name}: least link load barely improves it",
            over_before["least link load"] <= 0.1,
            f"{over_before['least link load']:+.1%}",
        )
        report.claim(
            f"{name}: the default lowers it",
            over_before["default"] < -0.01,
            f"{over_before['default']:+.1%}: cores are shared fairly here, so that instances dealt out "
            "anew over one machine more hardly get in each other's way",
        )
        report.claim(
            f"{name}: Stela is 125 % above the default",
            over_default >= 1.25,
            f"{over_default:+.0%}: as much as it gains over before, because the default loses nothing",
        )


def main() -> None:
    args = options(__doc__)
    report = Report("st_fig06", "Stela Fig. 6: scale-out of PageLoad, Processing, Network (simulated)", args)
    scale_outs(report, ("PageLoad", "Processing", "Network"), claims, args)


if __name__ == "__main__":
    main()
