"""``weir state migrate``: turn saved state into what a changed application keeps."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weir.cli.configuration import imported
from weir.cli.drawing import plural
from weir.cli.run import application_of, built_here
from weir.migration import migrate_state


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir state migrate``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI of the query, which must not run")
    add(
        "application",
        metavar="APP",
        help="the changed application, or a function that returns it, as weir run takes it: app.py:app",
    )
    add(
        "functions",
        metavar="OPERATOR=FUNCTION",
        nargs="+",
        help="from the old rows, a pyarrow.Table, to the new ones: topics=migrations.py:topics",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Migrate the state, and return how many rows of each operator there were and are."""
    functions = {}
    for text in args.functions:
        operator, _, path = text.partition("=")
        functions[operator] = imported(path)
    app = application_of(args.application)
    with built_here(app, {}) as (application, _), console.status("migrating state"):
        done = migrate_state(application, args.checkpoint, functions)
    return {name: {"before": before, "after": after} for name, (before, after) in done.items()}


def show(result: dict[str, Any], console: Console) -> None:
    """Say what has become of the state."""
    for name, rows in result.items():
        text = f"{name}: {plural(rows['before'], 'row', 'rows')} became {rows['after']}"
        console.print(text, highlight=False, markup=False)
