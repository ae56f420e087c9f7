"""Fig. 12: locality against the number of pairs that are counted.

Paper: at 6 servers 0.1 % of the pairs already doubles locality, a million pairs suffice, and more servers need more.
Tables are made from the heaviest pairs of one stretch of the stream and scored on that stretch (as in the paper)
and on the one that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from claims import Claim, claim
from lar_common import console, figure, options, report
from weir.locality import KeyGraph, count_keys, count_pairs, partition
from weir.locality.counts import PairCounts
from weir.locality.partition import Partitioner
from weir.routing.table import Table
from weir_evaluation.bench.locality import load
from weir_evaluation.locality.space_saving import PairSpaceSaving
from weir_evaluation.partition import Metis


def tables(pairs: PairCounts, n: int, partitioner: Partitioner | None) -> list[Table]:
    """Tables from counted pairs."""
    keys = [count_keys(pairs.left, pairs.count), count_keys(pairs.right, pairs.count)]
    graph = KeyGraph.build(keys, {(0, 1): pairs})
    parts = partition(graph, n, partitioner=partitioner)
    return [Table(graph.key[a:b], parts[a:b], n) for a, b in pairwise(graph.starts.tolist())]


def locality(made: list[Table], left: np.ndarray, right: np.ndarray) -> float:
    """Share of rows whose keys live together, unknown ones by hash."""
    return float((made[0].route(left) == made[1].route(right)).mean())


def main() -> None:
    """Sweeps the number of pairs and draws the curves."""
    parser = options("Fig. 12: locality against counted pairs")
    parser.add_argument("--servers", default="2,4,6")
    args = parser.parse_args()
    stream, _ = load(args.data, args.keys.split(","), args.time, "7d", 1, args.limit)
    left, right = stream.keys
    half = len(left) // 2
    counted = count_pairs(left[:half], right[:half])
    sizes = [
        s for s in (100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000) if s < len(counted)
    ]
    sizes.append(len(counted))
    ways = {"METIS, SpaceSaving": Metis(), "METIS, truncated": Metis(), "Weir, truncated": None}
    made, (axis,) = figure()
    rows, data = [], {"pairs": len(counted), "sizes": sizes}
    for n in map(int, args.servers.split(",")):
        for way, partitioner in ways.items():
            console.print(f"{n} servers: {way} …")
            own, later = [], []
            for size in sizes:
                if "SpaceSaving" in way:
                    sketch = PairSpaceSaving(size, canonical=False)
                    sketch.observe(left[:half], right[:half])
                    kept = sketch.counts()
                else:
                    kept = counted.truncate(size)
                table = tables(kept, n, partitioner)
                own.append(locality(table, left[:half], right[:half]))
                later.append(locality(table, left[half:], right[half:]))
            data[f"{way}, {n} servers"] = {"same rows": own, "next rows": later}
            if way != "METIS, truncated":
                style = "-" if partitioner is None else "--"
                axis.plot(
                    sizes,
                    own,
                    style,
                    color=f"C{n % 10}",
                    marker="o",
                    markersize=3,
                    label=f"{way}, {n} servers",
                )
            thousandth = a_thousandth(sizes, len(counted))
            rows.append(
                [
                    f"{way}, {n} servers",
                    "×2" if n == 6 else "–",
                    f"×{own[thousandth] * n:.2f}",
                    *(f"{x:.1%}" for x in (own[0], own[len(sizes) // 2], own[-1])),
                    f"{later[-1]:.1%}",
                ]
            )
    axis.set(
        xscale="log", xlabel="pairs counted", ylabel="locality", title=f"of {len(counted):,} different pairs"
    )
    axis.legend(frameon=False, fontsize=8, ncols=2)
    columns = [
        "",
        "paper at 0.1 %",
        "here at 0.1 %",
        f"{sizes[0]:,}",
        f"{sizes[len(sizes) // 2]:,}",
        "all",
        "all, next rows",
    ]
    report(
        "lar_fig12",
        args.out,
        made,
        "Fig. 12: gain over hash, and locality by pairs counted",
        columns,
        rows,
        data,
        claims(data, [int(n) for n in args.servers.split(",")]),
    )


def a_thousandth(sizes: Sequence[int] | NDArray[np.int64], pairs: int) -> int:
    """Which of the sizes is nearest to a thousandth of all pairs."""
    return int(np.argmin(np.abs(np.log(np.asarray(sizes) / (pairs / 1000)))))


def claims(data: dict[str, Any], servers: list[int]) -> list[Claim]:
    """What the paper says of the curves."""
    sizes, pairs, way = np.array(data["sizes"]), data["pairs"], "METIS, SpaceSaving"
    curve = {n: np.array(data[f"{way}, {n} servers"]["same rows"]) for n in servers}
    top = max(servers)
    few = a_thousandth(sizes, pairs)
    # pairs that bring nine tenths of what all bring beyond hash
    needed = {n: int(sizes[np.argmax(c - 1 / n >= 0.9 * (c[-1] - 1 / n))]) for n, c in curve.items()}
    ours = data[f"Weir, truncated, {top} servers"]["same rows"]
    return [
        claim(
            f"0.1 % of the pairs double the locality on {top} servers",
            curve[top][few] >= 2 / top,
            f"{curve[top][few] * top:.2f} × with {sizes[few]:,} of {pairs:,} pairs",
            "these tweets have a hundredth of the paper's rows, so a thousandth of their pairs are few",
        ),
        claim(
            "a million pairs suffice",
            max(needed.values()) <= 1_000_000,
            f"nine tenths of the gain with {needed[top]:,} pairs on {top} servers; there are {pairs:,}",
        ),
        claim(
            "more servers need more pairs",
            needed[max(servers)] >= needed[min(servers)],
            ", ".join(f"{n}: {needed[n]:,}" for n in servers) + ", for nine tenths of the gain",
            "two servers gain little beyond the half that hash has, and the rarest pairs are a greater part of that",
        ),
        claim(
            "(ours) our partitions of all pairs are as good as METIS's",
            ours[-1] >= curve[top][-1] - 0.005,
            f"{ours[-1]:.1%} and {curve[top][-1]:.1%}",
        ),
    ]


if __name__ == "__main__":
    main()
