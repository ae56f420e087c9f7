"""Fig. 4: imbalance and memory of assignment schemes by skew, for 10, 100 and 1000 bins.

python evaluation/papers/cg_fig04.py [--quick] [--words PATH]
"""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt

from cg_common import EPSILON, Report, line, log_axes, options, spread_out
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir_evaluation.routing import RandomChoices
from weir_evaluation.routing.bounded_ring import BoundedRing
from weir_evaluation.routing.two_choices import TwoChoices
from weir_evaluation.simulate import words, zipf

SCHEMES = [Hash(), PartialKey(), TwoChoices(), BoundedRing(EPSILON, 1), RandomChoices(EPSILON, 1), Shuffle()]
BINS = (10, 100, 1000)


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig04", "CG Fig. 4: imbalance and memory by skew (Zipf, 100 k keys)", args)
    skews = [0.1, 0.8, 1.4, 2.0] if args.quick else [0.1, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
    messages = 1_000_000 if args.quick else args.messages or 10_000_000
    by = {}
    for z in skews:
        stream = zipf(messages, 100_000, z, seed=1)
        for bins in BINS:
            for scheme in SCHEMES:
                row = {"z": z, "bins": bins} | spread_out(stream, scheme, bins)
                by[z, bins, scheme.name] = row
                report.rows.append(row)
    if args.words:
        stream = words(args.words, limit=1_200_000 if args.quick else args.messages)
        for bins in BINS:
            report.rows += [{"z": 0.0, "bins": bins} | spread_out(stream, s, bins) for s in SCHEMES]

    figure, axes = plt.subplots(2, 3, figsize=(13, 7), sharex=True)
    for column, bins in enumerate(BINS):
        for scheme in SCHEMES:
            rows = [by[z, bins, scheme.name] for z in skews]
            line(axes[0, column], skews, [max(r["imbalance"], 1e-7) for r in rows], scheme.name)
            line(axes[1, column], skews, [r["memory"] for r in rows], scheme.name)
        axes[0, column].set_title(f"{bins} bins", fontsize=10)
        axes[0, column].axhline(EPSILON, color="black", linewidth=0.6, linestyle=":")
        axes[1, column].set_xlabel("Zipf exponent z")
        for axis in axes[:, column]:
            log_axes(axis)
    axes[0, 0].set_ylabel("imbalance (dotted: ε)")
    axes[1, 0].set_ylabel("memory (bin-key pairs)")
    axes[1, 0].legend(frameon=False, fontsize=8, ncol=2)

    def worst(name: str, what: str = "imbalance") -> float:
        return max(row[what] for (_, _, n), row in by.items() if n == name)

    for name in ("KG", "PKG"):
        tops = [by[2.0, bins, name]["imbalance"] for bins in BINS]
        low = by[skews[0], 1000, name]["imbalance"]
        report.claim(
            f"{name}'s imbalance is high and grows with skew and with the number of bins",
            tops[0] < tops[1] < tops[2] and low < tops[2] / 10,
            f"z = 2.0: {tops[0]:.2f}, {tops[1]:.1f}, {tops[2]:.0f} at 10, 100, 1000 bins; z = 0.1: {low:.3f}",
        )
    rounding = max(BINS) / messages
    for name in ("CH", "PoRC"):
        report.claim(
            f"{name} bounds the imbalance by ε",
            worst(name) <= EPSILON + rounding,
            f"worst {worst(name):.5f}, ε + rounding = {EPSILON + rounding:.5f}",
        )
    for name in ("PoTC", "SG"):
        report.claim(
            f"{name} is almost perfectly balanced at any skew",
            worst(name) < 5 * rounding,
            f"worst {worst(name):.6f}",
        )
    order = ["KG", "PKG", "PoRC", "CH", "PoTC"]
    broken = [
        (z, bins, a, b)
        for z in skews
        for bins in BINS
        for a, b in itertools.pairwise(order)
        if by[z, bins, a]["memory"] > by[z, bins, b]["memory"] * 1.001
    ]
    report.claim(
        "balance costs memory: KG ≤ PKG ≤ PoRC ≤ CH ≤ PoTC at every skew and number of bins",
        not broken,
        f"broken in {len(broken)} of {4 * len(skews) * len(BINS)} comparisons"
        + "".join(f"; {a} > {b} at z = {z}, {n} bins" for z, n, a, b in broken[:3]),
        "where keys hardly differ, PoRC seldom meets a full bin and keeps one copy of most keys; PKG deals all to two",
    )
    ratio = max(by[z, b, "PoRC"]["memory"] / by[z, b, "KG"]["memory"] for z in skews for b in BINS)
    saved = min(by[z, b, "PoRC"]["memory"] / by[z, b, "SG"]["memory"] for z in skews for b in BINS)
    report.claim(
        "PoRC's memory stays close to that of KG (within 2 ×)",
        ratio <= 2,
        f"at worst {ratio:.2f} × KG; at best {saved:.3f} × SG",
        "a key leaves a copy whenever it meets a full bin: the more rows a key has, the more bins, and the less skew "
        "among the heavy, the oftener",
    )
    report.close(figure)


if __name__ == "__main__":
    main()
