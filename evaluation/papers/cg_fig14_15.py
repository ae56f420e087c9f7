"""Figs. 14 and 15 of Consistent Grouping: throughput, latency and memory on Spark, on like and unlike servers.

The paper: 8 sources, 24 workers, a fixed time of 0.1 to 1 ms per message, once on equal servers and once with two of
them limited to 30 % of their CPU. Here each row is slept for. Servers share this machine's cores, so a service time
that is short against what a row costs a core says little: the table shows it all the same. CG is the printed algorithm;
"CG, ours" has moves that adapt. Runs may be spread over several calls with ``--add``.

    python evaluation/papers/cg_fig14_15.py [--words FILE] [--delays 0.1 0.25 0.5 1.0] [--runs 3] [--add]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from cg_common import COLOURS, OUT, Report, console
from weir_evaluation.bench import consistent

CASES = {"homogeneous": "Fig. 14: equal servers", "heterogeneous": "Fig. 15: two of 24 at 30 %"}
GROUPINGS = {
    "KG": "KG",
    "PKG": "PKG",
    "SG": "SG",
    "CG": "CG, printed",
    "CG, ours": "CG",
}  # here → in the bench
MEASURES = {"rows_per_s": "rows/s", "latency_ms": "ms per batch", "row_p50_ms": "ms, age of a row (p50)"}
Found = dict[tuple[float, str, str], list[dict[str, float]]]  # the runs by delay, case and grouping
SHORT = 0.5  # ms: below, cores are busy with rows more than servers are with sleeping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--words", type=Path, help="a Parquet file with a column 'word' (default: Zipf, z = 1)"
    )
    parser.add_argument("--delays", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1.0], metavar="MS")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a perfectly balanced batch")
    parser.add_argument("--add", action="store_true", help="count the runs of earlier calls, too")
    parser.add_argument("--quick", action="store_true", help="one run of few batches")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    args = parser.parse_args()
    if args.quick:
        args.runs, args.batches, args.seconds = 1, 4, 0.5
    report = Report("cg_fig14_15", "CG Figs. 14, 15: on Spark, service times slept per row", args)
    found = measure(args)
    report.rows = rows(found)
    claims(report, found)
    report.close(draw(found, sorted({delay for delay, _, _ in found})))


def measure(args: argparse.Namespace) -> Found:
    """Return the runs of each delay, case and grouping, in turns; after each turn they are written down."""
    lying = args.out / "cg_fig14_15_runs.json"
    kept: list[dict[str, Any]] = json.loads(lying.read_text()) if args.add and lying.exists() else []
    for _ in range(args.runs):
        for delay in args.delays:
            given = argparse.ArgumentParser()
            consistent.arguments(given)
            bench = ["--batches", str(args.batches), "--seconds", str(args.seconds), "--delay", str(delay)]
            for name in GROUPINGS.values():
                bench += ["--only", name]
            result = consistent.run(
                given.parse_args(bench + (["--words", str(args.words)] if args.words else [])), console
            )
            for case, methods in result.items():
                for name, real in GROUPINGS.items():
                    one = methods[real]
                    ages = {f"row_{part}_ms": one["row_latency_ms"][part] for part in ("p50", "p99")}
                    run = {what: one[what] for what in ("rows_per_s", "latency_ms", "memory")} | ages
                    kept.append({"delay": delay, "case": case, "grouping": name, "run": run})
            lying.write_text(json.dumps(kept, indent=1) + "\n")
    found: Found = {}
    for one in kept:
        found.setdefault((one["delay"], one["case"], one["grouping"]), []).append(one["run"])
    return found


def rows(found: Found) -> list[dict[str, Any]]:
    """Return a row per delay, case and grouping: means, and the least and greatest throughput."""
    made = []
    for (delay, case, name), runs in found.items():
        speeds = [one["rows_per_s"] for one in runs]
        means = {what: round(statistics.mean(one[what] for one in runs), 1) for what in runs[0]}
        made.append(
            {"delay_ms": delay, "servers": case, "grouping": name}
            | means
            | {"least": min(speeds), "most": max(speeds), "runs": len(runs)}
        )
    return made


def claims(report: Report, found: Found) -> None:
    """Add what the paper says of both figures; thresholds in brackets are ours where it gives no number."""
    delays = sorted({delay for delay, _, _ in found})

    def mean(delay: float, case: str, name: str, what: str = "rows_per_s") -> float:
        return statistics.mean(one[what] for one in found[delay, case, name])

    def by_delay(case: str, one: str, other: str, what: str = "rows_per_s") -> dict[float, float]:
        return {d: mean(d, case, one, what) / mean(d, case, other, what) for d in delays}

    def text(ratios: dict[float, float]) -> str:
        return ", ".join(f"{ratio:.2f} at {delay:g} ms" for delay, ratio in ratios.items())

    short = f"below {SHORT:g} ms the cores of this machine limit all groupings alike"
    least = {d: min(mean(d, "homogeneous", n) for n in ("PKG", "SG", "CG")) for d in delays}
    behind = {d: mean(d, "homogeneous", "KG") / least[d] for d in delays}
    report.claim(
        "Fig. 14: KG has the lowest throughput",
        max(behind.values()) < 1,
        f"KG {text(behind)} of the next",
        short,
    )
    best = {d: max(mean(d, "homogeneous", n) for n in ("PKG", "SG")) for d in delays}
    alike = {d: mean(d, "homogeneous", "CG") / best[d] for d in delays}
    report.claim(
        "Fig. 14: PKG, SG and CG are alike (CG within 10 %)",
        min(alike.values()) > 0.9,
        f"CG {text(alike)} of the best",
    )
    copies = by_delay("homogeneous", "CG", "PKG", "memory")
    report.claim(
        "Fig. 14: CG needs as much memory as PKG (within 10 %)",
        max(copies.values()) < 1.1,
        f"CG {text(copies)} of PKG's copies of keys",
        "a run is some batches long, and keys that virtual workers take along while shares settle count in full",
    )
    spread = by_delay("homogeneous", "SG", "PKG", "memory")
    report.claim(
        "Fig. 14: SG needs most memory", min(spread.values()) > 1, f"SG {text(spread)} of PKG's copies"
    )
    gain = by_delay("heterogeneous", "CG", "KG")
    report.claim(
        "Fig. 15: CG has up to 3.44 times the throughput of KG", max(gain.values()) >= 3.44, text(gain), short
    )
    age = by_delay("heterogeneous", "CG", "KG", "latency_ms")
    report.claim(
        "Fig. 15: CG has half the latency of KG",
        min(age.values()) <= 0.5,
        f"{text(age)} of KG's time per batch",
        short,
    )
    first = {
        d: mean(d, "heterogeneous", "CG") / max(mean(d, "heterogeneous", n) for n in ("KG", "PKG", "SG"))
        for d in delays
    }
    report.claim(
        "Fig. 15: CG is the best of all", min(first.values()) > 1, f"{text(first)} of the next", short
    )
    adapted = by_delay("heterogeneous", "CG, ours", "KG")
    report.claim(
        "Fig. 15: (ours) with moves that adapt, 3.44 times the throughput of KG at 0.5 ms and above",
        all(ratio >= 3.44 for d, ratio in adapted.items() if d >= SHORT),
        text(adapted),
    )
    rows_ = {d: by_delay("heterogeneous", "CG", "KG", "row_p50_ms")[d] for d in delays}
    report.claim(
        "Fig. 15: (ours) rows are through sooner, too, although all groupings begin a batch alike",
        max(rows_.values()) < 1,
        f"median age of a row {text(rows_)} of KG's",
    )


def draw(found: Found, delays: list[float]) -> plt.Figure:
    """Return throughput, time per batch and age of rows over the service time, for both cases."""
    figure, axes = plt.subplots(len(CASES), len(MEASURES), figsize=(13, 6.5), sharex=True)
    for line_of, (case, title) in zip(axes, CASES.items(), strict=True):
        for axis, (what, label) in zip(line_of, MEASURES.items(), strict=True):
            for name in GROUPINGS:
                values = [np.array([one[what] for one in found[d, case, name]]) for d in delays]
                axis.errorbar(
                    delays,
                    [v.mean() for v in values],
                    [[v.mean() - v.min() for v in values], [v.max() - v.mean() for v in values]],
                    color=COLOURS[name],
                    label=name,
                    marker="o",
                    capsize=3,
                )
            axis.set(title=f"{title}, {label}" if what == "rows_per_s" else label, ylim=(0, None))
            axis.grid(alpha=0.25)
    for axis in axes[-1]:
        axis.set_xlabel("service time, ms per row")
    axes[0][0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
