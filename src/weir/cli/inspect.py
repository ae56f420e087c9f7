"""``weir inspect``: what a checkpoint holds, and whether it is sound."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from weir.cli.drawing import number, plural, share_bar, show_table, size, table
from weir.engine.inspect.inspection import inspect

_SOUND, _NOTE, _WRONG = ("✓", "green"), ("·", "yellow"), ("✗", "red")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir inspect``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI that the query was started with")
    add("--last", type=int, default=10, metavar="N", help="number of batches to show (default 10)")
    add(
        "--quick",
        action="store_true",
        help="do not read the files; show only what the commits say about them",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the report on a checkpoint; draw a progress bar while its files are read."""
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("")

    def advance(done: int, total: int) -> None:
        progress.start()  # only now: an error before the first file is then one line without a bar above it
        progress.update(task, completed=done, total=total)

    try:
        return inspect(args.checkpoint, last=args.last, verify=not args.quick, advance=advance)
    finally:
        if progress.live.is_started:
            progress.stop()


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if a query could not continue from the checkpoint."""
    return 0 if result["health"]["ok"] else 1


def show(result: dict[str, Any], console: Console) -> None:
    """Print the report."""
    console.print(Text(result["checkpoint"], "bold"), soft_wrap=True)
    on = f" on {result['servers']} servers" if result["batch"] is not None else ""
    last = "no batch has been committed yet" if result["batch"] is None else f"last batch {result['batch']}"
    console.print(f"{result['mode']} run{on}, begun {_age(result['created'])}; {last}", highlight=False)
    if result["batches"]:
        show_table(console, _batches(result["batches"]))
        if any(distance["rows"] for batch in result["batches"] for distance in batch["distance"].values()):
            show_table(console, _distances(result["batches"]))
    if result["edges"]:
        show_table(console, _edges(result["edges"]))
    for name, operator in result["operators"].items():
        show_table(console, _operator(name, operator))
    if result["tables"]:
        show_table(console, _routing_tables(result["tables"]))
    for (mark, style), text in _health(result["health"]):
        console.print(Text.assemble((mark, style), f" {text}"), soft_wrap=True, highlight=False)


def _age(created: str) -> str:
    seconds = time.time() - datetime.fromisoformat(created).timestamp()
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(int(seconds // length), unit, f'{unit}s')} ago"
    return "just now"


def _batches(batches: list[dict[str, Any]]) -> Table:
    """Return a table of batches; counters that are zero in all of them get no column."""
    counters = ("moved_keys", "null_keys", "late", "ahead", "diverted")
    extras = [counter for counter in counters if any(batch[counter] for batch in batches)]
    more = [f">{extra.removesuffix('_keys')}" for extra in extras]
    columns = (">batch", ">rows", "=stayed on server", ">sent", ">busiest", ">table", ">seconds", *more)
    drawn = table("batches", *columns)
    for batch in batches:
        busiest = max((value for value in batch["imbalance"].values() if value is not None), default=None)
        drawn.add_row(
            str(batch["batch"]),
            number(batch["rows"]),
            share_bar(batch["locality"], 10),
            size(batch["bytes_exchanged"]),
            "–" if busiest is None else f"{busiest:.2f}",
            f"v{batch['table_version']}" if batch["table_version"] else "–",
            "–" if batch["seconds"] is None else f"{batch['seconds']:.2f}",
            *(number(batch[extra]) for extra in extras),
        )
    return drawn


def _distances(batches: list[dict[str, Any]]) -> Table:
    """Return a table of the rows and bytes of these batches by the distance that they went."""
    title = f"how far rows went, in {plural(len(batches), 'batch', 'batches')}"
    drawn = table(title, "distance", ">rows", ">sent", "=share of rows")

    def total(distance: str, what: str) -> int:
        return sum(batch["distance"].get(distance, {}).get(what, 0) for batch in batches)

    names = list(dict.fromkeys(name for batch in batches for name in batch["distance"]))
    rows = {name: total(name, "rows") for name in names}
    for name in names:
        share = rows[name] / sum(rows.values())
        bar = Text("█" * round(30 * share) + f" {100 * share:.0f} %", style="cyan")
        label = "from the source" if name == "source" else name
        drawn.add_row(label, number(rows[name]), size(total(name, "bytes")), bar)
    return drawn


def _edges(edges: dict[str, dict[str, Any]]) -> Table:
    """Return a table of the share of rows that stayed on their server in the last batch, hop by hop."""
    drawn = table("edges in the last batch", "from → to", "=stayed on server", ">rows", ">sent", ">bytes")
    for name, edge in edges.items():
        drawn.add_row(
            name,
            share_bar(edge["locality"], 10),
            number(edge["local"] + edge["remote"]),
            number(edge["remote"]),
            size(edge["bytes"]),
        )
    return drawn


def _operator(name: str, operator: dict[str, Any]) -> Table:
    """Return a table of an operator's state on each server."""
    by = f" by {', '.join(operator['key'])}" if operator["key"] else ""
    title = f"{name}: {operator['kind']}{by}, {number(operator['keys'])} keys, {size(operator['bytes'])}"
    drawn = table(title, ">server", ">keys", ">segments", ">size", "share of keys")
    total = sum(server["keys"] or 0 for server in operator["servers"])
    for server in operator["servers"]:
        share = server["keys"] / total if server["keys"] is not None and total else None
        bar = Text("–", style="dim") if share is None else Text("█" * round(30 * share), style="cyan")
        drawn.add_row(
            str(server["server"]),
            number(server["keys"]),
            str(server["segments"]),
            size(server["bytes"]),
            bar,
        )
    return drawn


def _routing_tables(tables: dict[str, dict[str, Any]]) -> Table:
    drawn = table("routing tables", "operator", ">version", ">keys", ">files", ">size")
    for name, one in tables.items():
        drawn.add_row(name, str(one["version"]), number(one["keys"]), str(one["files"]), size(one["bytes"]))
    return drawn


def _health(health: dict[str, Any]) -> list[tuple[tuple[str, str], str]]:
    """Return what is to be said about a checkpoint's health, each with its mark."""
    lines = []
    files = f"{health['files']:,} files ({size(health['bytes'])})"
    if not health["verified"]:
        lines.append((_NOTE, f"{files} not read, as asked"))
    elif not health["damaged"]:
        lines.append((_SOUND, f"all {files} have the length and checksum on record"))
    lines += [(_WRONG, damage["problem"]) for damage in health["damaged"]]
    lines += [(_WRONG, problem) for problem in health["wrong"]]
    if health["verified"] and not health["damaged"] and not health["wrong"]:
        lines.append((_SOUND, "every key lives on one server, and there are as many as the commit counts"))
    if health["planned"] is not None:
        text = f"batch {health['planned']} is planned but not committed: it is running, or will be replayed"
        lines.append((_NOTE, text))
    if health["undelivered"] is not None:
        text = f"batch {health['undelivered']} is committed but its delivery to the sinks is not on record: "
        lines.append((_NOTE, text + "the next start delivers it"))
    orphans = health["orphans"]
    if orphans["files"]:
        text = f"{orphans['files']:,} files ({size(orphans['bytes'])}) are in no commit: "
        lines.append((_NOTE, text + "left by tasks that ran twice or died; harmless"))
    return lines
