"""``weir fork``: a copy of a checkpoint by reference, from which a changed program starts while the old one runs on."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weir.engine.batch.fork import fork


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir fork``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI of the query, which may be running")
    add("new", metavar="NEW", help="an empty folder, or a URI where nothing is")
    add(
        "--source-checkpoint",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="where Spark keeps its own offsets, if not in the checkpoint, and where to keep those of the fork",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Fork the checkpoint; return behind which batch."""
    places = args.source_checkpoint
    with console.status("taking over the files of the last commit"):
        batch = fork(args.checkpoint, args.new, source_checkpoint=None if places is None else tuple(places))
    return {"checkpoint": args.new, "batch": batch}


def show(result: dict[str, Any], console: Console) -> None:
    """Say what can be started now."""
    text = f"{result['checkpoint']} goes on behind batch {result['batch']}; start your program on it"
    console.print(text, highlight=False, markup=False)
