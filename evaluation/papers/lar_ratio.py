"""The gain of locality-aware routing as a curve over what links are to cores. Simulated; goes with Figs. 7 to 14.

The *ratio* is how many times longer a link takes for a tuple than a core: seconds for its bytes through one host's
link, over seconds of work on it. Far below 1, routing matters only by what packing and unpacking costs; far above,
nothing but the way of tuples takes time. The paper does not state it, but it says that with 20 kB two servers are
slower by hash than one: half of the tuples leave, so a link needs at least 4 times as long for one as a core. That
makes 4 for 20 kB and 1 for 5 kB, which are the paper's points here. In the lab links are made slow enough for two
cores to fill.

A server works on one tuple after the other and sends over one link: both at the same time (as an engine of pipelines
and our live servers do), or in turns (as the steps of a batch do). Tuples that leave cost cores a part of their work
in addition: what makes tuples without padding 22 % slower by hash, as in the paper. ``--measured`` puts points of real
runs on it, from the JSON files that the scripts for Figs. 7, 8, 9, 13 and 14 write.

    python evaluation/papers/lar_ratio.py [--servers 6] [--locality 0.8] [--measured out/lar_fig09.json …]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lar_common import OUT, figure, report

PAPER = {5: 1.0, 20: 4.0}  # ratio by kB per tuple, at 10 Gb/s
NETWORK_COST = 0.22  # of the throughput of tuples without padding, by hash on many servers (Fig. 7)
RATIOS = np.geomspace(0.01, 100, 81)


def throughput(
    ratio: NDArray[np.float64], local: float, *, overlap: bool, packing: float
) -> NDArray[np.float64]:
    """Return tuples per server, in units of what its core does when nothing leaves it.

    ``local`` is the share of tuples that stay; ``packing`` what one that leaves costs cores, in units of its work.

    >>> fast_links = throughput(np.array([0.0]), 0.0, overlap=True, packing=0.25)
    >>> fast_links.tolist()
    [0.8]

    The paper's claim that its ratio follows from: by hash two servers are no faster than one.

    >>> (2 * throughput(np.array([4.0]), 0.5, overlap=True, packing=0.0)).tolist()
    [1.0]
    """
    core = 1 + (1 - local) * packing
    link = (1 - local) * ratio
    return 1 / (np.maximum(core, link) if overlap else core + link)


def gain(
    ratio: NDArray[np.float64], servers: int, locality: float, *, overlap: bool, cost: float = NETWORK_COST
) -> NDArray[np.float64]:
    """Return the throughput by tables over that by hash, which keeps one tuple in ``servers``.

    Where links are all that counts, it is the ratio of the bytes that they carry:

    >>> gain(np.array([1e6]), 6, 0.8, overlap=True).round(2).tolist()
    [4.17]
    """
    packing = cost / (1 - cost)
    aware, hashed = (
        throughput(ratio, local, overlap=overlap, packing=packing) for local in (locality, 1 / servers)
    )
    return aware / hashed


def measured(files: list[Path], servers: int) -> list[dict[str, Any]]:
    """Return ratio and gain of every run or point with so many servers that the files hold."""
    out = []
    for path in files:
        data = json.loads(path.read_text())
        for run in data.get("runs", []):
            if run["servers"] == servers and run["link_to_core"]:
                gained = run["gain"]["times"]
                out.append({"from": path.stem, "ratio": run["link_to_core"], "gain": gained})
        points = {
            (p["padding"], p["locality"], p["mode"]): p
            for p in data.get("points", [])
            if p["servers"] == servers and p["link_to_core"]
        }
        for (padding, locality, mode), p in points.items():
            other = points.get((padding, locality, "hash-based"))
            if mode == "locality-aware" and other is not None:
                gained = p["rows_per_s"] / other["rows_per_s"]
                out.append({"from": path.stem, "ratio": other["link_to_core"], "gain": gained})
    return out


def main() -> None:
    """Draws the curves, with the paper's point and those of real runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=6)
    parser.add_argument("--locality", type=float, nargs="+", default=[0.6, 0.8, 0.95])
    parser.add_argument("--measured", type=Path, nargs="*", default=[], help="JSON files of real runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    args = parser.parse_args()
    made, (axis,) = figure(7, 4)
    rows, curves = [], {}
    for number, locality in enumerate(args.locality):
        for overlap, style in ((True, "-"), (False, "--")):
            line = gain(RATIOS, args.servers, locality, overlap=overlap)
            how = "overlapping" if overlap else "in turns"
            label = f"{locality:.0%}, {how}"
            axis.plot(RATIOS, line, style, color=f"C{number}", label=label)
            curves[label] = line.tolist()
            at = [
                float(gain(np.array([r]), args.servers, locality, overlap=overlap)[0])
                for r in (0.1, *PAPER.values(), 10.0, 27.0)
            ]
            rows.append([label, *(f"{x:.2f} ×" for x in at)])
    for size, ratio in PAPER.items():
        axis.axvline(ratio, color="black", linewidth=0.8, linestyle=":")
        axis.annotate(f" paper, {size} kB", (ratio, axis.get_ylim()[1] * 0.95), fontsize=8)
    real = measured(args.measured, args.servers)
    if real:
        axis.scatter([p["ratio"] for p in real], [p["gain"] for p in real], color="black", s=18, zorder=3)
    axis.set(xscale="log", xlabel="link's time over core's time for a tuple", ylabel="tuples/s over hashing")
    axis.legend(frameon=False, fontsize=7, title="locality")
    title = f"gain over hashing by link-to-core ratio, {args.servers} servers (simulated)"
    columns = ["locality", "0.1", *(f"{r:g} (paper, {k} kB)" for k, r in PAPER.items()), "10", "27"]
    data = {"ratios": RATIOS.tolist(), "curves": curves, "measured": real}
    report("lar_ratio", args.out, made, title, columns, rows, data)


if __name__ == "__main__":
    main()
