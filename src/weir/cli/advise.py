"""``weir advise``: would locality-aware routing help with this data, and with which table to begin?"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from weir.advise import advise
from weir.cli.advise_tables import draw, show
from weir.errors import WeirError
from weir.extras import install

_PARAMETERS = [name for name in inspect.signature(advise).parameters if name != "progress"]
_PLOTS = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir advise``."""
    add = parser.add_argument
    add("data", metavar="DATA", help="a Parquet file or folder, a CSV file, or table:NAME for a Spark table")
    add("--keys", required=True, help="key columns in the order of the operators: a,b or a+b,c")
    add("--servers", type=int, required=True, help="the number of servers that the query will have")
    add("--time", default=None, help="the column that orders rows (default: the order of the file)")
    add("--operators", default=None, help="names of the keyed operators (default: those of their keys)")
    add("--out", default=None, metavar="FOLDER", help="write the tables to start with, one file per operator")
    add("--plot", default=None, metavar="FILE.png", help="draw locality over time and the hot keys")
    add("--alpha", type=float, default=1.03, help="load that a server may have, over the average (1.03)")
    add("--sample", type=int, default=None, metavar="ROWS", help="count about so many rows, drawn at random")
    add("--payload", type=float, default=None, metavar="BYTES", help="bytes of a row (default: measured)")
    add("--capacity", type=int, default=5_000_000, help="most pairs and keys to keep (5,000,000)")
    add("--master", default=None, help="count on this Spark, e.g. local[4] or spark://host:7077")
    add("--seed", type=int, default=0, help="fixes what is drawn at random (0)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the advice, with a progress bar meanwhile; draw the plot if asked to."""
    if args.plot:
        _check_plot(Path(args.plot))
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"counting {escape(args.data)} …", total=None)
        result = advise(
            progress=lambda step, steps: bar.update(task, advance=1, total=steps, description=step),
            **{name: getattr(args, name) for name in _PARAMETERS},
        )
    if args.plot:
        draw(result, args.plot)
        result["plot"] = args.plot
    return result


def _check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is read."""
    if importlib.util.find_spec("matplotlib") is None:
        raise WeirError(f"--plot needs matplotlib: {install('plots')}, or leave --plot out")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise WeirError(f"--plot {path}: can't write to {folder}; name a folder that exists")
    if path.suffix.lower() not in _PLOTS:
        raise WeirError(f"--plot {path}: name a .png, .svg, .pdf or .jpg file")


__all__ = ["arguments", "run", "show"]
