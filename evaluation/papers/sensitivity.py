"""What hangs on constants that no paper gives: each one's figure at half, at once and at twice its value, or so.

Writes the table into ``README.md``; with ``--json`` prints it, too. A constant whose line says much the same everywhere
was not tuned to a result; one whose line does not is named in ``docs/results.md`` wherever that result is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cg_common
from weir.network.profile import PAPER
from weir.routing import consistent, random_choices, weighted
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.weighted import BalancedWeights, Weighted
from weir_evaluation.routing import DynamicWeights
from weir_evaluation.simulate import SimulatedCluster, SimulatedNetwork, page_views, zipf
from weir_evaluation.simulate.batches import in_batches
from weir_evaluation.simulate.workloads import ADVERTISING, CLUSTER, WORDCOUNT, Workload, events, graded

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- made by sensitivity.py: begin -->", "<!-- made by sensitivity.py: end -->"
Measure = Callable[[Any], str]


def unequal(grouping: Consistent, *, swing: float | None = None, rows: float = 1.0, late: int = 0) -> str:
    """The cluster of CG's Fig. 10 with a tenth of the messages."""
    stream = page_views(2_200_000, 290_000, seed=1)
    cluster = SimulatedCluster.mixed(10, cg_common.capacity_for(stream), 3, 5)
    before = cg_common.ROWS_PER_SLOT
    cg_common.ROWS_PER_SLOT = round(before * rows)
    try:
        run = cg_common.a_day(
            stream, grouping, cluster, swing=cg_common.SWING if swing is None else swing, delays=[late]
        )
    finally:
        cg_common.ROWS_PER_SLOT = before
    gap = np.nanmean(run.spread("utilisation")[cg_common.hours(run, 6)])
    return f"gap {gap:.2f}, {run.mean_latency():.0f} s, memory {run.memory[-1] / stream.distinct():.2f}"


def patched(module: Any, name: str) -> Measure:
    """Measure with another value of a module's constant."""

    def measure(value: Any) -> str:
        before = getattr(module, name)
        setattr(module, name, value)
        try:
            return unequal(Consistent(), late=5)
        finally:
            setattr(module, name, before)

    return measure


def heavy(value: float) -> str:
    """In a process of its own: compiled code holds the constant."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"NUMBA_CACHE_DIR": folder}
        call = [sys.executable, __file__, "--heavy", str(value)]
        return subprocess.run(call, env=env, capture_output=True, text=True, check=True).stdout.strip()


def slow_host(control: Any) -> str:
    """Micro-batches on four hosts, the slowest at a quarter: how much shorter than by plain hashing."""
    stream = zipf(12 * 4 * 2000, 100_000, 0.0, seed=1)
    net = SimulatedNetwork.between(CLUSTER, CLUSTER, row_bytes=PAPER.row_bytes, profile=PAPER)
    terms: dict[str, Any] = {"batches": 12, "work": 5e-4, "network": net, "noise": 0.02}
    plain, ours = (
        in_batches(stream, g, graded(4), **terms).settled()
        for g in (Hash(), Weighted(Hash(), control=control))
    )
    return f"{ours / plain - 1:+.0%}"


def noise(value: float) -> str:
    before = weighted.NOISE
    weighted.NOISE = value
    try:
        return slow_host(BalancedWeights())
    finally:
        weighted.NOISE = before


def over_plain(workload: Workload, **more: Any) -> str:
    stream = events(200_000) if workload.name == ADVERTISING.name else zipf(200_000, 100_000, 1.0)
    plain, ours = (workload.run(m, stream, **more).rows_per_s for m in ("plain", "WG+DWC"))
    return f"{ours / plain:.2f} ×"


def constants() -> list[tuple[str, str, Any, Sequence[Any], Measure]]:
    """Name, what is measured, value in use, values tried, and how."""
    fig10 = "CG, Fig. 10: utilisation gap, mean latency, copies per key"
    late = "the same with signals that come 5 slots late"
    slow = "Squirrel in batches, slowest host at ¼: batch length against hashing"
    mine = Consistent()

    def cg(name: str) -> Measure:
        return lambda value: unequal(replace(mine, **{name: value}))

    return [
        ("Consistent.virtual", fig10, mine.virtual, (10, 25, 50, 100), cg("virtual")),
        ("Consistent.growth", fig10, mine.growth, (1.0, 1.5, 2.0, 4.0), cg("growth")),
        ("Consistent.patience", fig10, mine.patience, (0, 2, 5, 10), cg("patience")),
        ("Consistent.light", fig10, mine.light, (0.0, 0.05, 0.1, 0.2), cg("light")),
        ("consistent.SETTLED", late, consistent.SETTLED, (2, 8, 32), patched(consistent, "SETTLED")),
        ("consistent.INSISTING", late, consistent.INSISTING, (4, 12, 24), patched(consistent, "INSISTING")),
        ("random_choices.HEAVY", fig10, random_choices.HEAVY, (0.05, 0.1, 0.2), heavy),
        ("SWING of a day", fig10, cg_common.SWING, (0.0, 0.05, 0.1), lambda v: unequal(mine, swing=v)),
        ("ROWS_PER_SLOT, times", fig10, 1.0, (0.5, 1.0, 2.0), lambda v: unequal(mine, rows=v)),
        ("BalancedWeights.gain", slow, 1.0, (0.5, 1.0), lambda v: slow_host(BalancedWeights(gain=v))),
        ("BalancedWeights.band", slow, 0.05, (0.0, 0.05, 0.1), lambda v: slow_host(BalancedWeights(band=v))),
        ("BalancedWeights.most", slow, 4.0, (2.0, 4.0, 8.0), lambda v: slow_host(BalancedWeights(most=v))),
        ("weighted.NOISE", slow, weighted.NOISE, (0.0, 0.005, 0.05), noise),
        ("DynamicWeights.alpha", slow, 1.2, (1.1, 1.2, 1.5), lambda v: slow_host(DynamicWeights(alpha=v))),
        ("DynamicWeights.delta", slow, 4, (2, 4, 8), lambda v: slow_host(DynamicWeights(delta=v))),
        (
            "cost of an advertising row, times",
            "Squirrel, Fig. 8: throughput over plain",
            1.0,
            (0.5, 1.0, 2.0),
            lambda v: over_plain(replace(ADVERTISING, cost=v * ADVERTISING.cost)),
        ),
        (
            "rows in flight, times",
            "Squirrel, Fig. 10, Zipf 1: throughput over plain",
            1.0,
            (0.5, 1.0, 2.0),
            lambda v: over_plain(WORDCOUNT, window=round(v * WORDCOUNT.window)),
        ),
        (
            "serialisation at the sender",
            "Squirrel, Fig. 10, Zipf 1: throughput over plain",
            0.0,
            (0.0, 0.5, 1.0),
            lambda v: over_plain(WORDCOUNT, at_sender=v),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--heavy", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.heavy is not None:
        random_choices.HEAVY = args.heavy
        print(unequal(Consistent()))
        return
    records = []
    for name, what, used, tried, measure in constants():
        got = {str(value): measure(value) for value in tried}
        records.append({"constant": name, "in_use": used, "measured": what, "by_value": got})
        print(name, got, file=sys.stderr, flush=True)
    lines = ["| constant | in use | what is measured | by value |", "|---|---|---|---|"]
    for r in records:
        values = " · ".join(f"**{v}**: {text}" for v, text in r["by_value"].items())
        lines.append(f"| {r['constant']} | {r['in_use']} | {r['measured']} | {values} |")
    page = README.read_text()
    table = "\n".join(lines)
    README.write_text(f"{page.split(BEGIN)[0]}{BEGIN}\n{table}\n{END}{page.split(END)[1]}")
    if args.json:
        print(json.dumps(records, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
