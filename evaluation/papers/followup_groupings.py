"""FISH and Dalton, which came after the four papers: their headline figures, beside what they were compared with.

FISH: mean and 99th percentile of the latency on 128 workers while the hot keys change, and the partial states. Dalton:
rows per second of a windowed count whose partial states are merged, from uniform to very skewed keys.

python evaluation/papers/followup_groupings.py [--quick]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import Report, options
from weir.routing.base import Grouping
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir_evaluation.routing import Dalton, DChoices, Fish, WChoices
from weir_evaluation.simulate import Arrivals, Result, SimulatedCluster, evolving, memory, simulate, zipf

WORKERS = 128
HOURS = 1.0
LOAD = 0.9
WINDOW = 100_000  # messages of a window of Dalton's count
SOURCES = 4
SKEWS = (0.4, 0.8, 1.2, 1.6, 2.0)


def tail_latency(run: Result, part: float = 0.99) -> float:
    """The latency that a part of the messages stays below, by worker and slot."""
    known = ~np.isnan(run.latency)
    latency, count = run.latency[known], run.assigned[known]
    order = np.argsort(latency)
    return float(latency[order][np.searchsorted(np.cumsum(count[order]), part * count.sum())])


def fish(report: Report, messages: int) -> dict[str, Result]:
    stream = evolving(messages, 100_000, 1.4, phases=20)
    rate = messages / (3600 * HOURS)
    cluster = SimulatedCluster.equal(WORKERS, rate / LOAD)
    runs: dict[str, Result] = {}
    tried: tuple[Grouping, ...] = (
        Hash(),
        PartialKey(),
        DChoices(),
        WChoices(),
        Fish(),
        Consistent(),
        Shuffle(),
    )
    for grouping in tried:
        run = simulate(stream, grouping, cluster, Arrivals.steady(rate), sources=8, slot=10, seed=1)
        runs[grouping.name] = run
        report.rows.append(
            {
                "figure": f"FISH, {WORKERS} workers",
                "grouping": grouping.name,
                "latency or rows/s": run.mean_latency(),
                "p99 latency": tail_latency(run),
                "partial states": int(run.memory[-1]),
            }
        )
    ours, wide, shuffled = runs["FISH"], runs["W-C"], runs["SG"]
    mean = 1 - ours.mean_latency() / wide.mean_latency()
    tail = 1 - tail_latency(ours) / tail_latency(wide)
    less = 1 - ours.memory[-1] / shuffled.memory[-1]
    report.claim(
        "FISH: 87 % less average latency than W-Choices when hot keys change",
        mean >= 0.8712,
        f"{ours.mean_latency():.2f} s instead of {wide.mean_latency():.2f} s: {mean:.0%} less",
    )
    report.claim(
        "FISH: 76 % less latency at the 99th percentile",
        tail >= 0.7634,
        f"{tail_latency(ours):.2f} s instead of {tail_latency(wide):.2f} s: {tail:.0%} less",
    )
    report.claim(
        "FISH: 99.96 % less memory than a shuffle",
        less >= 0.9996,
        f"{ours.memory[-1]:,} partial states instead of {shuffled.memory[-1]:,}: {less:.0%} less",
        f"each key needs a state, so on {WORKERS} workers no grouping can save more than "
        f"{1 - 1 / WORKERS:.1%} of the states that a shuffle could make",
    )
    return runs


def pace(messages: int, z: float, grouping: Grouping, workers: int) -> float:
    """Rows per second of the slowest of the workers and of those that merge, one second per row or partial state."""
    stream = zipf(messages, 100_000, z, seed=1)
    to = np.empty(messages, np.int32)
    for source in range(SOURCES):
        router = grouping.router(workers, seed=1, source=source)
        to[source::SOURCES] = router.route(stream.keys[source::SOURCES])
    seconds = 0.0
    for begin in range(0, messages, WINDOW):
        part = slice(begin, begin + WINDOW)
        seconds += np.bincount(to[part]).max() + memory(stream.ids[part], to[part]) / workers
    return messages / seconds


def dalton(report: Report, messages: int) -> dict[str, list[float]]:
    tried: tuple[Grouping, ...] = (Dalton(), Hash(), PartialKey(), DChoices(), WChoices(), Shuffle())
    found = {g.name: [pace(messages, z, g, 64) for z in SKEWS] for g in tried}
    for name, paces in found.items():
        for z, rows in zip(SKEWS, paces, strict=True):
            report.rows.append(
                {
                    "figure": f"Dalton, 64 workers, z = {z}",
                    "grouping": name,
                    "latency or rows/s": rows,
                    "p99 latency": "",
                    "partial states": "",
                }
            )
    best = {
        name: max(a / b for a, b in zip(found["Dalton"], paces, strict=True))
        for name, paces in found.items()
        if name != "Dalton"
    }
    shown = ", ".join(f"{times:.2f} × {name}" for name, times in best.items())
    report.claim(
        "Dalton: up to 6.7 × the throughput of hashing", best["KG"] >= 6.7, f"at its best skew {shown}"
    )
    report.claim(
        "Dalton: 1.3 × the throughput of the best other grouping",
        min(best.values()) >= 1.3,
        f"at its best skew {shown}",
        "it sends a row where rows of that key fared well, W-Choices where the source has sent the least",
    )
    return found


def main() -> None:
    args = options(__doc__)
    messages = 400_000 if args.quick else args.messages or 4_000_000
    report = Report("followup_groupings", "FISH and Dalton: their headline figures (simulated)", args)
    runs = fish(report, messages)
    paces = dalton(report, messages)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for name, run in runs.items():
        left.plot(run.time / 60, np.nanmax(run.latency, axis=1), label=name, linewidth=1.2)
    left.set(
        xlabel="minutes",
        ylabel="seconds, slowest worker",
        title="latency while hot keys change",
        yscale="log",
    )
    for name, rows in paces.items():
        right.plot(SKEWS, rows, marker="o", markersize=4, label=name)
    right.set(xlabel="skew z", ylabel="rows per second", title="windowed count with merging")
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8)
    report.close(figure)


if __name__ == "__main__":
    main()
