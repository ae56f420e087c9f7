"""Figs. 7 and 8: schemes by cluster size, over virtual workers (7) and over workers (8).

python evaluation/papers/cg_fig07_08.py [--quick] [--words PATH]
"""

from __future__ import annotations

import matplotlib.pyplot as plt

from cg_common import EPSILON, Report, a_day, capacity_for, line, log_axes, options, spread_out, streams
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir_evaluation.routing import RandomChoices
from weir_evaluation.routing.bounded_ring import BoundedRing
from weir_evaluation.routing.two_choices import TwoChoices
from weir_evaluation.simulate import SimulatedCluster, SimulatedStream

WORKERS = (5, 10, 50, 100)
VIRTUAL = 10


def over_bins(stream: SimulatedStream) -> list[dict]:
    """Fig. 7: the bins are the virtual workers."""
    schemes = [
        Hash(),
        PartialKey(),
        TwoChoices(),
        BoundedRing(EPSILON, 1),
        RandomChoices(EPSILON, 1),
        Shuffle(),
    ]
    return [
        {"fig": "7", "workers": n} | spread_out(stream, scheme, VIRTUAL * n)
        for n in WORKERS
        for scheme in schemes
    ]


def over_workers(stream: SimulatedStream) -> list[dict]:
    """Fig. 8: the bins are the workers, and CG runs with its signals."""
    rows = []
    for n in WORKERS:
        schemes = [Hash(), PartialKey(), TwoChoices(), BoundedRing(EPSILON, VIRTUAL), Shuffle()]
        rows += [{"fig": "8", "workers": n} | spread_out(stream, scheme, n) for scheme in schemes]
        run = a_day(stream, Consistent.of_the_paper(VIRTUAL), SimulatedCluster.equal(n, capacity_for(stream)))
        ours = a_day(stream, Consistent(EPSILON), SimulatedCluster.equal(n, capacity_for(stream)))
        rows += [
            {"fig": "8", "workers": n, "grouping": name, "stream": stream.name}
            | {"imbalance": r.imbalance(), "memory": int(r.memory[-1])}
            for name, r in (("CG", run), ("CG, ours", ours))
        ]
    return rows


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig07_08", "CG Figs. 7, 8: imbalance and memory by cluster size", args)
    data = streams(args)
    figure, axes = plt.subplots(2 * len(data), 2, figsize=(11, 6.4 * len(data)), squeeze=False)
    for at, stream in enumerate(data):
        rows = over_bins(stream) + over_workers(stream)
        report.rows += rows
        by = {(r["fig"], r["workers"], r["grouping"]): r for r in rows}
        for column, fig in enumerate("78"):
            names = dict.fromkeys(r["grouping"] for r in rows if r["fig"] == fig)
            for axis, what in zip(axes[2 * at : 2 * at + 2, column], ("imbalance", "memory"), strict=True):
                for name in names:
                    line(axis, WORKERS, [max(by[fig, n, name][what], 1e-7) for n in WORKERS], name)
                log_axes(axis, WORKERS)
                axis.set_ylabel(what if what == "imbalance" else "memory (pairs)")
                axis.set_xlabel("workers")
            over = "virtual workers" if fig == "7" else "workers"
            axes[2 * at, column].set_title(f"Fig. {fig}, {stream.name}: over {over}", fontsize=10)
            axes[2 * at + 1, column].legend(
                frameon=False,
                fontsize=7,
                ncol=6,
                columnspacing=0.8,
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
            )
        claims(report, stream, by)
    report.close(figure)


def claims(report: Report, stream: SimulatedStream, by: dict) -> None:
    def imb(fig: str, n: int, name: str) -> float:
        return by[fig, n, name]["imbalance"]

    def mem(fig: str, n: int, name: str) -> int:
        return by[fig, n, name]["memory"]

    for name in ("KG", "PKG"):
        # The fullest bin over the average is 1 + imbalance: linear means ten times that for ten times the bins.
        grown = (1 + imb("7", 100, name)) / (1 + imb("7", 10, name))
        report.claim(
            f"{stream.name}: the imbalance of {name} grows linearly with the number of workers",
            9 <= grown <= 11,
            f"fullest over average grows {grown:.2f} × from 10 to 100 workers "
            f"(imbalance {imb('7', 10, name):.2f} → {imb('7', 100, name):.1f})",
            "the fullest bin holds other keys beside the heaviest, and among few bins these weigh more",
        )
    for name in ("CH", "PoRC"):
        worst = max(imb("7", n, name) for n in WORKERS)
        report.claim(
            f"{stream.name}: {name} holds the imbalance near ε at any size",
            worst <= EPSILON + 1000 / len(stream),
            f"worst {worst:.4f}, ε = {EPSILON}",
        )
    for name in ("PoTC", "SG"):
        worst = max(imb("7", n, name) for n in WORKERS)
        report.claim(
            f"{stream.name}: {name} is nearly perfectly balanced", worst < 0.002, f"worst {worst:.5f}"
        )
    ratios = [mem("7", n, "PoRC") / mem("7", n, "PKG") for n in WORKERS]
    report.claim(
        f"{stream.name}: PoRC needs as little memory as PKG (within 10 %)",
        max(ratios) <= 1.1,
        "PoRC / PKG = " + ", ".join(f"{r:.2f}" for r in ratios) + " at 5, 10, 50, 100 workers",
        "a key leaves a copy whenever it meets a full bin, and a word comes far more often than a page",
    )
    ratios = [mem("7", n, "PoRC") / mem("7", n, "KG") for n in WORKERS]
    report.claim(
        f"{stream.name}: PoRC's memory is nearly perfect, close to KG (within 50 %)",
        max(ratios) <= 1.5,
        "PoRC / KG = " + ", ".join(f"{r:.2f}" for r in ratios),
        "as above; with light keys that stay, CG needs less (last claim)",
    )
    small, large = max(imb("8", n, "PKG") for n in (5, 10)), imb("8", 100, "PKG")
    report.claim(
        f"{stream.name}: PKG is nearly perfect on 5 and 10 workers, and worse on more",
        small < 0.01 < large,
        f"at most {small:.1e} on 5 and 10; {imb('8', 50, 'PKG'):.2f} on 50, {large:.2f} on 100",
    )
    worst = max(imb("8", n, "CG") for n in WORKERS)
    report.claim(
        f"{stream.name}: CG's imbalance is bounded (by 2 ε, signals included)",
        worst <= 2 * EPSILON,
        ", ".join(f"{imb('8', n, 'CG'):.4f}" for n in WORKERS) + " at 5, 10, 50, 100 workers",
        "signals follow the load of a slot, and words come in bursts; ε alone bounds what lies on virtual workers",
    )
    ratios = [mem("8", n, "CG") / mem("8", n, "CH") for n in WORKERS]
    report.claim(
        f"{stream.name}: memory CG < CH < SG ≈ PoTC at every size",
        max(ratios) < 1 and all(mem("8", n, "CH") < mem("8", n, "SG") for n in WORKERS),
        "CG / CH = " + ", ".join(f"{r:.2f}" for r in ratios),
    )
    ratios = [mem("8", n, "CG, ours") / mem("8", n, "KG") for n in WORKERS]
    report.claim(
        f"{stream.name}: (ours) where light keys stay, CG's memory is within 20 % of KG's, its imbalance within 5 ε",
        max(ratios) <= 1.2 and max(imb("8", n, "CG, ours") for n in WORKERS) <= 5 * EPSILON,
        "CG / KG = "
        + ", ".join(f"{r:.2f}" for r in ratios)
        + "; imbalance "
        + ", ".join(f"{imb('8', n, 'CG, ours'):.4f}" for n in WORKERS),
        "as many virtual workers as 100 · 50 are small: many keys are heavy for one",
    )


if __name__ == "__main__":
    main()
