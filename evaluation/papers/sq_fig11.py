"""Fig. 11: wordcount on machines of which the fastest is 1 … 8 times as fast as the slowest."""

from __future__ import annotations

from cg_common import Report
from sq_common import KEYS, curves, from_spark, measure, options, pick
from weir_evaluation.simulate import zipf
from weir_evaluation.simulate.workloads import WORDCOUNT, graded

RATIOS = {1.0: "1", 2.0: "2", 4.0: "4", 8.0: "8"}


def main() -> None:
    args = options(__doc__)
    report = Report("sq_fig11", "Squirrel Fig. 11: wordcount on unequal machines (simulated)", args)
    stream = zipf(args.rows, KEYS, 0.0)
    for ratio in RATIOS:
        report.rows += measure(WORDCOUNT, stream, {"heterogeneity": ratio}, heterogeneity=ratio)
    report.rows += from_spark(args, ["heterogeneity"], workload="wordcount", skew=0.0)
    rate = {
        (m, r): pick(report.rows, m, heterogeneity=r)["rows_per_s"]
        for m in ("plain", "WG", "WG+DWC", "WG+A2")
        for r in RATIOS
    }
    power = {r: graded(r).sum() / len(graded(r)) for r in RATIOS}
    report.claim(
        "plain grouping loses with heterogeneity: the slowest machine sets the pace",
        rate["plain", 8.0] < 0.25 * rate["plain", 1.0],
        ", ".join(f"{r:g} ×: {rate['plain', r] / rate['plain', 1.0]:.0%}" for r in RATIOS if r > 1)
        + " of its throughput on equal machines",
    )
    report.claim(
        "WG+DWC follows the machines' strength",
        all(rate["WG+DWC", r] >= 0.75 * power[r] * rate["WG+DWC", 1.0] for r in RATIOS),
        ", ".join(
            f"{r:g} ×: {rate['WG+DWC', r] / rate['WG+DWC', 1.0]:.0%} with {power[r]:.0%} of the power"
            for r in RATIOS
            if r > 1
        ),
    )
    report.claim(
        "WG+DWC does better than WG alone",
        all(rate["WG+DWC", r] > rate["WG", r] for r in RATIOS if r > 1),
        ", ".join(f"{r:g} ×: {rate['WG+DWC', r] / rate['WG', r]:.2f} ×" for r in RATIOS if r > 1),
    )
    least = min(
        (pick(report.rows, "WG+DWC", heterogeneity=r) for r in RATIOS if r > 1), key=lambda r: r["over plain"]
    )
    report.claim(
        "(target) at least 1.67 × the throughput at 47 % less latency on unequal machines",
        all(
            rate["WG+DWC", r] / rate["plain", r] >= 1.67
            and pick(report.rows, "WG+DWC", heterogeneity=r)["latency_ms"]
            <= 0.53 * pick(report.rows, "plain", heterogeneity=r)["latency_ms"]
            for r in RATIOS
            if r > 1
        ),
        f"{least['over plain']:.2f} ×, {least['latency']} at least",
    )
    one = measure(WORDCOUNT, stream, {"heterogeneity": "one of four at ¼"}, speeds=[1, 1, 1, 0.25])
    lopsided = measure(WORDCOUNT, stream, {"heterogeneity": "sources on 2 of 4"}, sources=[0, 1])
    report.rows += one + lopsided
    report.claim(
        "(ours) one slow machine among equals; sources on half of the machines",
        one[2]["over plain"] > 1.67 and lopsided[2]["over plain"] > 1,
        f"{one[2]['over plain']:.2f} × and {lopsided[2]['over plain']:.2f} × (WG alone: "
        f"{one[1]['over plain']:.2f} × and {lopsided[1]['over plain']:.2f} ×)",
    )
    report.claim(
        "(ours) what DWC has beside the printed Algorithm 2 is needed: to the letter, weights forget distances",
        all(rate["WG+A2", r] < rate["WG", r] for r in RATIOS),
        ", ".join(f"{r:g} ×: {rate['WG+A2', r] / rate['WG', r]:.2f} × WG alone" for r in RATIOS)
        + f"; on equal machines {rate['WG+A2', 1.0] / rate['plain', 1.0]:.2f} × plain: all channels grow alike, to "
        "the ceiling",
    )
    report.close(curves(report, "heterogeneity", "fastest / slowest machine", RATIOS))


if __name__ == "__main__":
    main()
