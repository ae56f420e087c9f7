"""Fig. 8: PageLoad goes from eight machines to four. Stela's choice against every other choice there is.

python evaluation/papers/st_fig08.py [--quick]
"""

from __future__ import annotations

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from cg_common import Report
from st_common import COLOURS, add_spark, from_spark, mean, options, rows, runs, spark_timeline
from weir.elasticity.stela import Stela
from weir_evaluation.stela.rivals import Default, Random
from weir_evaluation.stela.topologies import Case, page_load_in
from weir_evaluation.stela.trial import situation, steady

SHARED = (
    "cores are shared fairly here, as on live servers, where two random choices lost 16 and 25 %; Storm's overloaded "
    "machines lost more than what was asked too much of them"
)


def in_the_long_run(case: Case, quick: bool) -> tuple[float, float, float, NDArray[np.float64]]:
    """Throughput before; what Stela keeps of it, what the default, and what each choice of four machines."""
    now, before = situation(case, jitter=0.0), steady(case, case.placement())
    groups = list(combinations(case.placement().machines, 4))[:: 7 if quick else 1]
    chance = np.array([steady(case, Random().scale_in(now, 4, machines=g).after) for g in groups])
    stela, default = (steady(case, s.scale_in(now, 4).after) / before for s in (Stela(), Default()))
    return before, stela, default, chance / before


def main() -> None:
    args = options(__doc__)
    report = Report("st_fig08", "Stela Fig. 8: PageLoad from 8 to 4 machines (simulated)", args)
    case = page_load_in()
    ran = runs(case, args, (Stela(), Default(), Random(1)))
    report.rows += rows(case, ran)
    before, chosen, dealt, kept = in_the_long_run(case, args.quick)
    report.rows += [
        {**report.rows[0], "strategy": f"{name}, in the long run", "before": before, "after": before * share}
        | {"over before": f"{share - 1:+.0%}", "over default": f"{share / dealt - 1:+.0%}"}
        | {"convergence s": None, "silent windows": None, "instances": ""}
        for name, share in (
            ("stela", chosen),
            ("default", dealt),
            ("random, mean", kept.mean()),
            ("random, worst", kept.min()),
        )
    ]
    found = from_spark(args, case.name, "in")
    figure, axes = plt.subplots(1, 3 if found else 2, figsize=(18 if found else 13, 4.2))
    for name, trials in ran.items():
        axes[0].plot(trials[0].time, trials[0].throughput, color=COLOURS[name], label=name, linewidth=1.3)
    axes[0].axvline(trials[0].at, color="black", linewidth=0.7, linestyle=":")
    axes[0].set(xlabel="seconds", ylabel="throughput (rows/s, 10 s windows)", ylim=(0, None))
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].hist(100 * kept, bins=20, color=COLOURS["random"], alpha=0.7, label=f"all {len(kept)} choices")
    axes[1].axvline(100 * chosen, color=COLOURS["stela"], label="stela's")
    axes[1].axvline(100 * dealt, color=COLOURS["default"], label="default: all dealt out anew")
    axes[1].set(xlabel="throughput kept (%)", ylabel="choices of four machines")
    axes[1].legend(frameon=False, fontsize=8)
    report.claim(
        "Stela keeps the throughput (within 10 %) with half of the machines", chosen >= 0.9, f"{chosen:.0%}"
    )
    report.claim(
        "a random choice loses 40 to 80 %",
        bool(np.median(kept) <= 0.6),
        f"median loss {1 - np.median(kept):.0%}, worst {1 - kept.min():.0%}",
        SHARED,
    )
    report.claim(
        "Stela's throughput is at least 2 × that of a random choice",
        chosen >= 2 * kept.mean(),
        f"{chosen / kept.mean():.2f} × the mean, {chosen / kept.min():.2f} × the worst; better than "
        f"{(kept <= chosen + 1e-6).mean():.0%} of all choices",
        SHARED,
    )
    report.claim(
        "(ours) Stela's scale-in is at least as good as dealing everything out anew, once that has restarted",
        chosen >= dealt - 0.01,
        f"{chosen:.0%} against {dealt:.0%}: an even mix of operators uses cores best, at the price of a stop",
    )
    down = {name: mean(trials, "down") for name, trials in ran.items()}
    report.claim(
        "Stela has at least 75 % less down time",
        down["stela"] <= 0.25 * min(down["default"], down["random"]) and down["default"] > 0,
        ", ".join(f"{name} {value:.1f}" for name, value in down.items()) + " windows of 10 s without output",
    )
    add_spark(report, case, found)
    if found:
        spark_timeline(axes[2], case, found)
        stayed = {name: [r["after"] / r["before"] for r in found if r["strategy"] == name] for name in ran}
        report.claim(
            "on Spark: Stela keeps the throughput (within 10 %), and more of it than a random choice",
            stayed["stela"][0] >= max(0.9, float(np.mean(stayed["random"]))),
            ", ".join(f"{name} {share:.0%}" for name, shares in stayed.items() for share in shares)
            + ": instances of one machine wait for its cores",
        )
    report.close(figure)


if __name__ == "__main__":
    main()
