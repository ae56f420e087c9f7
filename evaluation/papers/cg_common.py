"""Shared by the scripts for the figures of Consistent Grouping: streams, clusters, reports, plots.

Every script prints a table, states each claim of the paper with what was measured beside it, and writes a
plot and a JSON file to ``evaluation/papers/out/``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator
from rich.console import Console
from rich.table import Table

from claims import claim
from fingerprint import fingerprint
from weir.routing.base import Grouping
from weir_evaluation.simulate import (
    Arrivals,
    Result,
    SimulatedCluster,
    SimulatedStream,
    imbalance,
    memory,
    page_views,
    simulate,
    words,
)

OUT = Path(__file__).parent / "out"
EPSILON = 0.01
LOAD = 0.8  # share of the whole capacity that arrives on average
SWING = 0.05  # busiest hour over the mean: the average load stays below the threshold for "busy"
ROWS_PER_SLOT = 1500  # messages that a worker judges its utilisation by; a slot of about a minute for 10
COLOURS = {
    "KG": "#c0392b",
    "PKG": "#e67e22",
    "PoTC": "#8e44ad",
    "CH": "#16a085",
    "PoRC": "#2c3e50",
    "SG": "#7f8c8d",
    "CG": "#2471a3",
    "CG, ours": "#1abc9c",
}
MARKS = {"KG": "o", "PKG": "s", "PoTC": "^", "CH": "D", "PoRC": "v", "SG": "x", "CG": "P", "CG, ours": "*"}
DASHES = {"SG": (0, (1, 1)), "PoTC": (0, (4, 2))}
UNITS = {"queue": "messages", "latency": "seconds", "utilisation": "of capacity"}

console = Console(width=140)


def options(description: str) -> argparse.Namespace:
    """The options that all figures share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument(
        "--messages", type=int, help="so many of each stream, instead of all 22 and 12 million"
    )
    parser.add_argument("--words", metavar="PATH", help="a Parquet file with a column 'word', for real keys")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    return parser.parse_args()


def streams(args: argparse.Namespace) -> list[SimulatedStream]:
    """The page-view stream, and the real words if they are given."""
    most = 2_200_000 if args.quick else args.messages or 22_000_000
    found = [page_views(most, round(most * 2.9 / 22))]
    if args.words:
        found.append(words(args.words, limit=1_200_000 if args.quick else args.messages))
    else:
        console.print("no --words PATH given: real words are left out", style="yellow")
    return found


def spread_out(stream: SimulatedStream, grouping: Grouping, bins: int) -> dict[str, Any]:
    """Routes a whole stream from one source: imbalance and memory over the bins."""
    router = grouping.router(bins, seed=1)
    to = np.concatenate([router.route(stream.hashes[part]) for part in np.array_split(stream.ids, 64)])
    return {
        "grouping": grouping.name,
        "stream": stream.name,
        "imbalance": imbalance(np.bincount(to, minlength=bins)),
        "memory": memory(stream.ids, to),
    }


def capacity_for(stream: SimulatedStream) -> float:
    """Messages per second of a cluster that the stream fills to 80 % in a day."""
    return len(stream) / 86_400 / LOAD


def a_day(
    stream: SimulatedStream,
    grouping: Grouping,
    cluster: SimulatedCluster,
    *,
    swing: float = SWING,
    times: float = 1.0,
    **more: Any,
) -> Result:
    """The stream within 24 hours, with time slots that let every worker see enough messages to judge by.

    ``times``: so many times as long.
    """
    # Short streams get short slots all the same: what counts is how often signals can be sent in a day.
    rows = ROWS_PER_SLOT if len(stream) > 5_000_000 else ROWS_PER_SLOT / 5
    slot = 86_400 * times * rows * cluster.workers / len(stream)
    arrivals = Arrivals.day(len(stream), swing)
    return simulate(stream, grouping, cluster, arrivals, slot=slot, seed=1, **more)


def hours(result: Result, at: float) -> np.ndarray:
    """Which slots lie after an hour of the day; the last one, cut off by the end, is left out."""
    found = result.time / 3600 > at
    found[-1] = False
    return found


def over_a_day(result: Result) -> dict[str, float]:
    """A run in a few numbers: the gap between worst and best worker, at the end and typically."""
    late = hours(result, 6)
    return {
        "queue_gap_end": float(result.spread("queue")[-2]),
        "queue_gap_max": float(np.nanmax(result.spread("queue")[:-1])),
        "latency_gap_end": float(result.spread("latency")[-2]),
        "latency_mean": result.mean_latency(),
        "utilisation_gap": float(np.nanmean(result.spread("utilisation")[late])),
        "memory": int(result.memory[-1]),
    }


class Report:
    """Collects rows and claims of one figure, prints them and writes them down."""

    def __init__(self, figure: str, title: str, args: argparse.Namespace) -> None:
        self.figure, self.title, self.args = figure, title, args
        self.rows: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self.started = time.monotonic()
        self.made_by = fingerprint(Path(__file__).with_name(f"{figure}.py"))
        args.out.mkdir(parents=True, exist_ok=True)

    def claim(self, paper: str, holds: bool, measured: str, why: str = "") -> None:
        """Adds a :func:`~claims.claim`."""
        self.claims.append(claim(paper, holds, measured, why))

    def close(self, figure: plt.Figure) -> None:
        """Writes the plot and the JSON file and prints the tables."""
        figure.suptitle(self.title, fontsize=11)
        figure.tight_layout()
        figure.savefig(self.args.out / f"{self.figure}.png", dpi=130)
        plt.close(figure)
        written = {
            "figure": self.figure,
            "title": self.title,
            "quick": self.args.quick,
            "messages": getattr(self.args, "messages", None),
            "seconds": round(time.monotonic() - self.started, 1),
            "fingerprint": self.made_by,
            "claims": self.claims,
            "rows": self.rows,
        }
        (self.args.out / f"{self.figure}.json").write_text(json.dumps(written, indent=1) + "\n")
        self._print()

    def _print(self) -> None:
        table = Table(title=f"{self.figure}: {self.title}", title_justify="left")
        for column in self.rows[0]:
            table.add_column(column, justify="left" if isinstance(self.rows[0][column], str) else "right")
        for row in self.rows:
            table.add_row(*(_shown(value) for value in row.values()))
        console.print(table)
        if self.args.quick:
            console.print(
                "--quick: too few messages to judge the claims by; a smoke test only", style="yellow"
            )
        for one in self.claims:
            verdict = "[green]holds[/]        " if one["holds"] else "[red]does not hold[/]"
            console.print(f"{verdict} {one['claim']}\n                [dim]{one['measured']}[/]")
            if "why" in one:
                console.print(f"                [yellow]{one['why']}[/]")
        for by in ("paper", "ours"):
            mine = [one["holds"] for one in self.claims if one["by"] == by]
            if mine:
                whose = "the paper's claims" if by == "paper" else "claims of our own"
                console.print(f"{sum(mine)} of {len(mine)} {whose} hold", style="bold")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def line(axis: plt.Axes, x: Any, y: Any, name: str, **more: Any) -> None:
    """One grouping's curve in its colour and mark."""
    style = {"linewidth": 1.4, "markersize": 4.5, "linestyle": DASHES.get(name, "-")} | more
    axis.plot(x, y, color=COLOURS[name], marker=MARKS[name], label=name, **style)


def log_axes(axis: plt.Axes, ticks: Any = None) -> None:
    """Logarithmic upwards, with enough labels to read values by; sideways too if ticks are given."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if low >= 1 and high / low < 100:
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.yaxis.set_minor_formatter(NullFormatter())
    if ticks is not None:
        axis.set_xscale("log")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(alpha=0.25)


def three_series(results: dict[str, Result], colours: dict[str, Any]) -> tuple[plt.Figure, np.ndarray]:
    """Queue, latency and utilisation over the day: worst worker less best worker."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.9))
    for axis, what in zip(axes, ("queue", "latency", "utilisation"), strict=True):
        for name, result in results.items():
            gap = result.spread(what)[:-1]  # type: ignore[arg-type]
            axis.plot(result.time[:-1] / 3600, gap, color=colours[name], label=name, linewidth=1.3)
        axis.set_xlabel("hour")
        axis.set_ylabel(f"{what}: max − min ({UNITS[what]})")
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=8)
    axes[0].set_yscale("symlog", linthresh=100)
    axes[1].set_yscale("symlog", linthresh=1)
    return figure, axes
