"""``weir bench partition``: partitioners side by side on generated key graphs, fresh and after drift."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from weir.locality.counts import count_keys, count_pairs
from weir.locality.graph import KeyGraph
from weir.locality.partition import partition, relabel
from weir.locality.proposal import STARTS
from weir_evaluation.partition import PARTITIONERS

HELP = "compare partitioners: locality, balance, CPU and memory, fresh and after drift"
STAY_BONUS = 0.08


@dataclass(frozen=True)
class Generator:
    """Rows (left key, right key) with planted communities.

    Popularity is Zipf on both sides. A row's right key comes from the left key's community, except for a share
    ``mixing`` of the rows, where it comes from anywhere. With one community nothing is planted.

    >>> left, right = Generator(20, 200, 1000, 4).rows(seed=1)
    >>> len(left), len(np.unique(left)) <= 20
    (1000, True)
    """

    left: int
    right: int
    count: int
    communities: int
    mixing: float = 0.25
    pairs: int | None = None  # of all distinct pairs, the most frequent that a bounded counter would keep

    def rows(self, seed: int, drift: float = 0.0) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Draws the rows; ``drift`` is the share of right keys that have changed community (half as many left)."""
        rng = np.random.default_rng(seed)
        of_left = rng.integers(self.communities, size=self.left)
        of_right = rng.integers(self.communities, size=self.right)
        if drift:
            rng = np.random.default_rng(seed + 1)
            for side, share in ((of_right, drift), (of_left, drift / 2)):
                moved = rng.random(len(side)) < share
                side[moved] = rng.integers(self.communities, size=int(moved.sum()))
        left, right = self._zipf(rng, self.left, 0.8), self._zipf(rng, self.right, 1.0)
        if self.communities > 1:
            members = np.argsort(of_right, kind="stable")
            starts = np.searchsorted(of_right[members], np.arange(self.communities + 1))
            inside = rng.random(self.count) >= self.mixing
            home = of_left[left[inside]]
            size = starts[home + 1] - starts[home]
            rank = np.exp(rng.random(len(home)) * np.log(size + 1)) - 1
            right[inside] = members[starts[home] + np.minimum(rank.astype(np.int64), size - 1)]
        return (
            left.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
            right.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F),
        )

    def _zipf(self, rng: np.random.Generator, keys: int, exponent: float) -> NDArray[np.int64]:
        share = np.cumsum(1 / np.arange(1, keys + 1) ** exponent)
        return np.minimum(np.searchsorted(share / share[-1], rng.random(self.count)), keys - 1)

    def graph(self, seed: int, drift: float = 0.0) -> KeyGraph:
        """The key graph of the rows."""
        left, right = self.rows(seed, drift)
        pairs = count_pairs(left, right)
        if self.pairs is not None:
            pairs = pairs.truncate(self.pairs)
        return KeyGraph.build([count_keys(left), count_keys(right)], {(0, 1): pairs})


FULL = {
    "200x20k planted": Generator(200, 20_000, 2_000_000, 24),
    "200x20k none": Generator(200, 20_000, 2_000_000, 1),
    "2kx300k planted": Generator(2_000, 300_000, 10_000_000, 96, pairs=3_000_000),
    "2kx300k none": Generator(2_000, 300_000, 10_000_000, 1, pairs=3_000_000),
}
QUICK = {
    "50x2k planted": Generator(50, 2_000, 100_000, 12),
    "50x2k none": Generator(50, 2_000, 100_000, 1),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    parser.add_argument("--servers", default="2,6,16,64")
    parser.add_argument("--graphs", default=None, help="comma-separated names, all by default")
    parser.add_argument(
        "--methods", default=None, help="metis, multilevel, mtkahypar; all installed by default"
    )
    parser.add_argument(
        "--starts",
        type=int,
        default=STARTS,
        help="of the multilevel partitioner, as a proposal has it; with more than 1 full servers exchange keys",
    )
    parser.add_argument("--drift", type=float, default=0.1, help="share of keys that change community")
    parser.add_argument("--seed", type=int, default=1)


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measures; compilation happens before the clock starts."""
    generators = QUICK if args.quick else FULL
    if args.graphs:
        generators = {name: g for name, g in generators.items() if name in args.graphs.split(",")}
    methods = {name: PARTITIONERS[name] for name in (args.methods or ",".join(PARTITIONERS)).split(",")}
    servers = [int(n) for n in args.servers.split(",")]
    warm_up = Generator(50, 3_000, 20_000, 4).graph(0)
    for by in methods.values():
        first = partition(warm_up, 3, partitioner=by, starts=args.starts)
        partition(warm_up, 3, partitioner=by, warm=first, stay_bonus=STAY_BONUS)
    out: list[dict[str, Any]] = []
    for name, generator in generators.items():
        console.print(f"{name}: generating")
        graph = generator.graph(args.seed)
        drifted = generator.graph(args.seed, args.drift) if generator.communities > 1 else None
        for n in servers:
            for method, by in methods.items():
                console.print(f"{name}: {method}, {n} servers")
                work = functools.partial(
                    partition, graph, n, partitioner=by, seed=args.seed, starts=args.starts
                )
                parts, cpu, peak = measured(work)
                out.append(
                    {
                        "graph": name,
                        "servers": n,
                        "method": method,
                        "locality": graph.locality(parts),
                        "overload": graph.overload(parts, n).tolist(),
                        "floor": graph.floor(n).tolist(),
                        "cpu_seconds": cpu,
                        "peak_mb": peak,
                    }
                )
            if drifted is not None:
                out.append({"graph": name, "servers": n, "after_drift": after_drift(graph, drifted, n, args)})
    return out


def after_drift(
    graph: KeyGraph, drifted: KeyGraph, n: int, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Partitions, lets the keys drift, and partitions again: from scratch, and from what there was."""
    seed, starts = args.seed, args.starts
    before = partition(graph, n, seed=seed, starts=starts)
    present = np.full(len(drifted), -1, np.int32)
    for o in range(drifted.operators):
        own = slice(drifted.starts[o], drifted.starts[o + 1])
        at = graph.vertices(o, drifted.key[own])
        present[own] = np.where(at >= 0, before[at], -1)
    known = present >= 0
    stale = np.where(known, present, 0).astype(np.int32)
    fresh = relabel(partition(drifted, n, seed=seed + 1, starts=starts), present, None, n)
    warm = partition(drifted, n, seed=seed + 1, warm=present, stay_bonus=STAY_BONUS)
    return {
        name: {"locality": drifted.locality(parts), "moved": float((parts != present)[known].mean())}
        for name, parts in (("unchanged", stale), ("fresh", fresh), ("warm", warm))
    }


def measured(work: Callable[[], NDArray[np.int32]]) -> tuple[NDArray[np.int32], float, float | None]:
    """What some work returns, its CPU seconds, and the MB that it held at most beyond what there was before.

    Memory is known on Linux only (None elsewhere): what earlier work has freed is first given back to the system, and
    the process's high-water mark set back, so that memory used again counts like any other.

    >>> _, seconds, peak = measured(lambda: np.ones(2_000_000, np.int32)[:1])
    >>> peak is None or 7 < peak < 12
    True
    """
    start = fresh_mark()
    began = time.process_time()
    result = work()
    cpu = time.process_time() - began
    return result, cpu, None if start is None else memory_mb("VmHWM") - start


def fresh_mark() -> float | None:
    """Gives back unused memory and sets the high-water mark back; the MB in use now, None where nobody knows."""
    if not sys.platform.startswith("linux"):
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


def memory_mb(what: str) -> float:
    """A line of the process's status in MB, e.g. ``VmHWM``, the high-water mark."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def show(result: list[dict[str, Any]], console: Console) -> None:
    """Prints the result as two tables."""
    table = Table(title="partitioners")
    for column in ("graph", "servers", "method", "locality", "overload", "floor", "CPU s", "peak MB"):
        table.add_column(column, justify="left" if column in ("graph", "method") else "right")
    drift = Table(title="after drift")
    for column in ("graph", "servers", "unchanged", "fresh", "moved", "warm", "moved"):
        drift.add_column(column, justify="left" if column == "graph" else "right")
    for row in result:
        if "method" in row:
            table.add_row(
                row["graph"],
                str(row["servers"]),
                row["method"],
                f"{row['locality']:.3f}",
                " ".join(f"{x:.2f}" for x in row["overload"]),
                " ".join(f"{x:.2f}" for x in row["floor"]),
                f"{row['cpu_seconds']:.2f}",
                "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}",
            )
        else:
            told = row["after_drift"]
            drift.add_row(
                row["graph"],
                str(row["servers"]),
                f"{told['unchanged']['locality']:.3f}",
                *(f"{told[k][v]:.3f}" for k in ("fresh", "warm") for v in ("locality", "moved")),
            )
    console.print(table)
    console.print(drift)
