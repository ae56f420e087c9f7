"""Shared by the scripts for the figures of locality-aware routing: options, reports, plots.

Every script prints a table with the paper's numbers beside ours, and writes a plot and a JSON file to
``evaluation/papers/out/``. The data are rows (location, hashtag, time) in a Parquet file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from claims import Claim
from fingerprint import fingerprint

OUT = Path(__file__).parent / "out"
COLOURS = {
    "hash": "#7f8c8d",
    "static": "#e67e22",
    "paper": "#c0392b",
    "paper_often": "#e6b0aa",
    "weir": "#2471a3",
    "weir_first_seen": "#16a085",
    "weir_look_ahead": "#8e44ad",
    "auto": "#b7950b",
    "bound": "#2c3e50",
}

console = Console(width=120)


def options(description: str) -> argparse.ArgumentParser:
    """The options that all figures share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="a Parquet file of rows in order of time")
    parser.add_argument("--keys", default="state,hashtag", help="the two key columns")
    parser.add_argument("--time", default="time", help="the column with the time")
    parser.add_argument("--limit", type=int, default=None, help="only the first rows")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    return parser


def figure(wide: float = 8.0, high: float = 4.0, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with panels one below the other."""
    made, axes = plt.subplots(panels, 1, figsize=(wide, high * panels), squeeze=False, layout="constrained")
    for axis in axes[:, 0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    return made, list(axes[:, 0])


def report(
    name: str,
    out: Path,
    made: Figure,
    title: str,
    columns: list[str],
    rows: list[list[str]],
    data: dict[str, Any],
    claims: list[Claim] | None = None,
) -> None:
    """Prints the table and the claims, and writes plot and JSON."""
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for one in claims or []:
        mark = "[green]holds[/]" if one["holds"] else "[red]does not hold[/]"
        console.print(f"{mark}: {one['claim']}: {one['measured']}", highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    made.savefig(out / f"{name}.png", dpi=150)
    data = data | {
        "title": title,
        "claims": claims or [],
        "fingerprint": fingerprint(Path(__file__).with_name(f"{name}.py")),
    }
    (out / f"{name}.json").write_text(json.dumps(data, indent=2))
    console.print(f"written: {out / name}.png, .json")
