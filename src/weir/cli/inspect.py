"""What a checkpoint holds, read without Spark: batches, state, tables, and whether every byte is still there.

A commit names each file with its length and checksum, so a checkpoint can be verified by anyone who can read
it, also while the query runs: nothing here writes, locks or deletes.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from weir.engine.documents import BatchPlan, Commit, FileRef
from weir.engine.ledger import HEAD, read_commit
from weir.engine.tables import load_table
from weir.errors import CheckpointError
from weir.state.segment import DEAD, H1, H2, SegmentRef
from weir.state.storage import FORMAT, Storage

HELP = "what a checkpoint holds, and whether it is sound"
NOT_OURS = ("source/", "commits/", "plans/", "delivered/")  # documents are read as such; Spark minds its own

Ref = SegmentRef | FileRef
Hashes = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``weir inspect``."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder or URI that the query was started with"
    )
    parser.add_argument(
        "--last", type=int, default=10, metavar="N", help="how many batches to show (default 10)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="don't read the files, only what commits say of them"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The report behind ``weir inspect``, with a progress bar while files are read."""
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("")

    def advance(done: int, total: int) -> None:
        progress.start()  # not before: an error that comes first is one line, and no empty bar above it
        progress.update(task, completed=done, total=total)

    try:
        return inspect(args.checkpoint, last=args.last, verify=not args.quick, advance=advance)
    finally:
        if progress.live.is_started:
            progress.stop()


def exit_code(result: dict[str, Any]) -> int:
    """1 for a checkpoint from which a query could not go on."""
    return 0 if result["health"]["ok"] else 1


# ---------------------------------------------------------------------- reading


def inspect(
    checkpoint: str,
    *,
    last: int = 10,
    verify: bool = True,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Everything that can be said about a checkpoint, as JSON-able data.

    Parameters
    ----------
    checkpoint
        The folder or URI that the query was started with.
    last
        How many batches to describe.
    verify
        Read every file that the latest commit names, compare length and checksum, and count keys.
    advance
        Told the bytes read so far and the bytes to read.

    Raises
    ------
    CheckpointError
        When there is no checkpoint, or one of the documents that everything hangs on cannot be read.
    """
    storage = open_checkpoint(checkpoint)
    head = storage.read_document(HEAD, "checkpoint")
    names = [n for n in storage.names("commits") if not n.endswith(".tmp")]
    commits: dict[str, Commit] = {}
    damaged: list[dict[str, str]] = []
    for name in names:
        try:
            commits[name] = read_commit(storage, name)
        except CheckpointError as error:
            if name == names[-1]:
                raise  # without the latest commit nothing else means anything
            damaged.append({"file": f"commits/{name}", "problem": str(error)})
    now = commits[names[-1]] if names else None
    plans = _plans(storage, damaged)
    read = _Reading(storage, now, verify, advance)
    damaged += read.damaged
    result: dict[str, Any] = {
        "checkpoint": storage.root,
        "id": head["id"],
        "mode": head["mode"],
        "created": datetime.fromtimestamp(head["created"], UTC).isoformat(),
        "format": FORMAT,
        "servers": now.servers if now else None,
        "batch": now.batch if now else None,
        "epoch": now.epoch if now else 0,
        "batches": _batches(commits, last),
        "operators": read.operators,
        "edges": dict((now.progress.get("edges") or {}) if now else {}),  # type: ignore[call-overload]
        "tables": _tables(storage, now, verify),
        "table_version": now.table_version if now else 0,
    }
    undelivered = _undelivered(storage, now)
    result["health"] = {
        "ok": not damaged and not read.wrong,
        "verified": verify,
        "files": read.files,
        "bytes": read.bytes,
        "damaged": damaged,
        "wrong": read.wrong,
        "planned": _planned(plans, now),
        "undelivered": undelivered,
        **_unnamed(storage, list(commits.values()), plans),
    }
    return result


def open_checkpoint(location: str) -> Storage:
    """The storage of a checkpoint; refuses folders that are none."""
    storage = Storage(location)
    if storage.exists(HEAD):
        return storage
    if storage.exists("commits"):
        raise CheckpointError(f"{storage.path(HEAD)}: missing, although there are commits. Restore it.")
    if not storage.exists(""):
        raise CheckpointError(f"{storage.root}: no such folder")
    raise CheckpointError(
        f"{storage.root}: not a Weir checkpoint (it has no file '{HEAD}'). "
        "Name the folder that the query was started with."
    )


def files_of(thing: Any) -> Iterator[Ref]:
    """Every file that a commit or plan names, wherever in it the name stands."""
    if isinstance(thing, (SegmentRef, FileRef)):
        yield thing
    elif isinstance(thing, msgspec.Struct):
        for field in thing.__struct_fields__:
            yield from files_of(getattr(thing, field))
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from files_of(value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from files_of(value)


class _Reading:
    """Reads the files of one commit: verifies them, and counts the keys that live on each server."""

    def __init__(
        self, storage: Storage, commit: Commit | None, verify: bool, advance: Callable[[int, int], None]
    ) -> None:
        self.storage, self.verify, self._advance = storage, verify, advance
        self.damaged: list[dict[str, str]] = []
        self.wrong: list[str] = []
        self.operators: dict[str, dict[str, Any]] = {}
        named = {r.name: r for r in files_of(commit)}
        self.files = len(named)
        self.bytes = sum(r.bytes for r in named.values())
        self._done = 0
        if commit is None:
            return
        described: dict[str, Any] = commit.signature.get("operators", {})  # type: ignore[assignment]
        for name, servers in commit.manifest.items():
            self.operators[name] = self._operator(
                name, servers, described.get(name, {}), commit.keys.get(name)
            )
            for refs in servers:
                for ref in refs:
                    named.pop(ref.name, None)
        for other in named.values():
            self._check(other)

    def _operator(
        self, name: str, servers: list[list[SegmentRef]], described: dict[str, Any], expected: int | None
    ) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        living: list[Hashes] = []
        for number, refs in enumerate(servers):
            tables = [self._check(r) for r in refs]
            keys: int | None = None
            if self.verify and all(t is not None for t in tables):
                here = _living([t for t in tables if t is not None])
                living.append(here)
                keys = len(here[0])
            rows.append(
                {
                    "server": number,
                    "keys": keys,
                    "entries": sum(r.rows for r in refs),
                    "segments": len(refs),
                    "bytes": sum(r.bytes for r in refs),
                }
            )
        if len(living) == len(servers) and self.verify:
            self._compare(name, living, expected)
        operator = described.get("operator", {})
        return {
            "kind": operator.get("kind"),
            "key": [k for k, _ in described.get("key", [])],
            "window": described.get("window"),
            "grouping": (described.get("grouping") or [None])[0],
            "placement": described.get("placement"),
            "keys": expected,
            "segments": sum(r["segments"] for r in rows),
            "bytes": sum(r["bytes"] for r in rows),
            "servers": rows,
        }

    def _compare(self, name: str, living: list[Hashes], expected: int | None) -> None:
        found = sum(len(h1) for h1, _ in living)
        if expected is not None and found != expected:
            self.wrong.append(f"operator {name!r} has {found:,} keys, but the commit counts {expected:,}")
        both = (
            np.concatenate([np.stack(h, axis=1) for h in living]) if living else np.empty((0, 2), np.uint64)
        )
        twice = len(both) - len(np.unique(both, axis=0))
        if twice:
            self.wrong.append(f"operator {name!r}: {twice:,} keys live on more than one server")

    def _check(self, ref: Ref) -> pa.Table | None:
        """Verifies a file; returns its table."""
        if not self.verify:
            return None
        try:
            data = self.storage.read_checked(ref.name, ref.bytes, ref.crc)
            return pa.ipc.open_file(data).read_all()
        except (CheckpointError, pa.ArrowException, OSError) as error:
            self.damaged.append({"file": ref.name, "problem": str(error)})
            return None
        finally:
            self._done += ref.bytes
            self._advance(self._done, self.bytes)


def _living(tables: list[pa.Table]) -> Hashes:
    """The hashes of the keys that are alive after all of a server's segments, oldest first."""
    if not tables:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    table = pa.concat_tables([t.select([H1, H2, DEAD]) for t in tables])
    h1, h2, dead = (table[c].to_numpy() for c in (H1, H2, DEAD))
    order = np.lexsort((h2, h1))  # stable: of equal keys the newest comes last
    h1, h2, dead = h1[order], h2[order], dead[order]
    last = np.ones(len(h1), np.bool_)
    last[:-1] = (h1[1:] != h1[:-1]) | (h2[1:] != h2[:-1])
    alive = last & ~dead
    return h1[alive], h2[alive]


def _batches(commits: dict[str, Commit], last: int) -> list[dict[str, Any]]:
    """The last batches, oldest first. A migration repeats its batch's number and is left out."""
    by_number = {c.batch: c for c in commits.values() if c.progress}
    out = []
    for number in sorted(by_number)[-last:] if last > 0 else []:
        progress: dict[str, Any] = by_number[number].progress
        operators: dict[str, Any] = progress.get("operators", {})
        seconds = {k: v for k, v in progress.get("seconds", {}).items() if k != "batch"}
        out.append(
            {
                "batch": number,
                "rows": progress.get("rows"),
                "rows_local": progress.get("rows_local"),
                "rows_exchanged": progress.get("rows_exchanged"),
                "bytes_exchanged": progress.get("bytes_exchanged"),
                "locality": progress.get("locality"),
                "distance": progress.get("distance", {}),
                "latency": progress.get("sinks", {}),
                "imbalance": {n: o.get("imbalance") for n, o in operators.items()},
                "null_keys": sum(o.get("null_keys", 0) for o in operators.values()),
                "late": sum(o.get("late", 0) for o in operators.values()),
                "diverted": sum(o.get("diverted", 0) for o in operators.values()),
                "table_version": progress.get("table_version", 0),
                "moved_keys": progress.get("moved_keys", 0),
                "seconds": sum(seconds.values()) if seconds else None,
            }
        )
    return out


def _tables(storage: Storage, commit: Commit | None, verified: bool) -> dict[str, dict[str, Any]]:
    """The routing tables in force; how many keys they list is only known by reading base and patches."""
    out: dict[str, dict[str, Any]] = {}
    for name, ref in (commit.tables if commit else {}).items():
        keys: int | None = None
        if verified:
            with contextlib.suppress(CheckpointError, pa.ArrowException):  # damage is told elsewhere
                keys = len(load_table(storage, ref))
        out[name] = {
            "version": ref.version,
            "keys": keys,
            "files": len(ref.files),
            "bytes": sum(f.bytes for f in ref.files),
        }
    return out


def _plans(storage: Storage, damaged: list[dict[str, str]]) -> list[BatchPlan]:
    """All plans that are still there."""
    plans = []
    for name in storage.names("plans"):
        if name.endswith(".tmp"):
            continue
        try:
            plans.append(msgspec.convert(storage.read_document(f"plans/{name}", "plan"), BatchPlan))
        except CheckpointError as error:
            damaged.append({"file": f"plans/{name}", "problem": str(error)})
    return plans


def _planned(plans: list[BatchPlan], commit: Commit | None) -> int | None:
    """A batch that was planned and has not been committed: in flight, or to be replayed."""
    expected = (commit.batch + 1, commit.epoch) if commit else (0, 0)
    return next((p.batch for p in plans if (p.batch, p.epoch) == expected), None)


def _undelivered(storage: Storage, commit: Commit | None) -> int | None:
    """The last batch, if it has rows for a sink and no record that the sink has had them."""
    if commit is None or not commit.outputs or storage.exists(f"delivered/{commit.batch:012d}"):
        return None
    return commit.batch


def _unnamed(storage: Storage, commits: list[Commit], plans: list[BatchPlan]) -> dict[str, dict[str, int]]:
    """Files that no commit and no plan names.

    Those of a batch that is not committed yet may still become part of a commit. The others were left behind by
    tasks that were run again or killed, and never will.
    """
    named = {r.name for r in files_of([*commits, *plans])}
    latest = max((c.batch for c in commits), default=-1)
    found = {"in_flight": {"files": 0, "bytes": 0}, "orphans": {"files": 0, "bytes": 0}}
    for file in storage.files(""):
        if file == HEAD or file.startswith(NOT_OURS) or file in named:
            continue
        batch = file.split("/")[-2] if "/" in file else ""
        where = found["in_flight" if batch.isdigit() and int(batch) > latest else "orphans"]
        where["files"] += 1
        where["bytes"] += storage.fs.get_file_info(storage.path(file)).size or 0
    return found


# ---------------------------------------------------------------------- showing


def size(n: float | None) -> str:
    """Bytes for people.

    >>> size(1_234_567), size(12), size(None)
    ('1.2 MB', '12 B', '–')
    """
    if n is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.1f} {unit}" if unit != "B" and n < 10 else f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def share_bar(share: float | None, width: int = 20) -> Text:
    """A share as a bar with its percentage behind it.

    >>> share_bar(0.5, 4).plain
    '██░░  50 %'
    """
    if share is None:
        return Text("–", style="dim")
    filled = round(share * width)
    colour = "green" if share >= 0.6 else "yellow" if share >= 0.4 else "red"
    return Text.assemble(
        ("█" * filled, colour), ("░" * (width - filled), "dim"), (f" {100 * share:3.0f} %", colour)
    )


def show(result: dict[str, Any], console: Console) -> None:
    """Prints a report for people."""
    console.print(f"[bold]{result['checkpoint']}[/]", highlight=False, soft_wrap=True)
    age = _age(result["created"])
    if result["batch"] is None:
        console.print(f"{result['mode']} run, begun {age}; no batch has been committed yet", highlight=False)
    else:
        console.print(
            f"{result['mode']} run on {result['servers']} servers, begun {age}; last batch {result['batch']}",
            highlight=False,
        )
    if result["batches"]:
        console.print(_batch_table(result["batches"]))
        if any(d["rows"] for b in result["batches"] for d in b["distance"].values()):
            console.print(_distance_table(result["batches"]))
    if result["edges"]:
        console.print(_edge_table(result["edges"]))
    for name, operator in result["operators"].items():
        console.print(_operator_table(name, operator))
    if result["tables"]:
        table = _table("routing tables")
        for column in ("operator", "version", "keys", "files", "size"):
            table.add_column(column, justify="left" if column == "operator" else "right")
        for name, t in result["tables"].items():
            table.add_row(name, str(t["version"]), _number(t["keys"]), str(t["files"]), size(t["bytes"]))
        console.print(table)
    _show_health(result["health"], console)


def _age(created: str) -> str:
    seconds = time.time() - datetime.fromisoformat(created).timestamp()
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' if n != 1 else ''} ago"
    return "just now"


def _table(title: str) -> RichTable:
    return RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
        title_style="bold",
    )


def _batch_table(batches: list[dict[str, Any]]) -> RichTable:
    extras = [c for c in ("moved_keys", "null_keys", "late", "diverted") if any(b[c] for b in batches)]
    table = _table("batches")
    for column in ("batch", "rows"):
        table.add_column(column, justify="right")
    table.add_column("stayed on server", no_wrap=True, min_width=17)
    for column in ("sent", "busiest", "table", "seconds", *(e.removesuffix("_keys") for e in extras)):
        table.add_column(column, justify="right")
    for b in batches:
        worst = max((v for v in b["imbalance"].values() if v is not None), default=None)
        table.add_row(
            str(b["batch"]),
            _number(b["rows"]),
            share_bar(b["locality"], 10),
            size(b["bytes_exchanged"]),
            "–" if worst is None else f"{worst:.2f}",
            f"v{b['table_version']}" if b["table_version"] else "–",
            "–" if b["seconds"] is None else f"{b['seconds']:.2f}",
            *(_number(b[e]) for e in extras),
        )
    return table


def _distance_table(batches: list[dict[str, Any]]) -> RichTable:
    """Rows and bytes of the batches shown, by how far they went."""
    table = _table(f"how far rows went, in {len(batches)} batch{'es' if len(batches) != 1 else ''}")
    table.add_column("distance")
    table.add_column("rows", justify="right")
    table.add_column("sent", justify="right")
    table.add_column("share of rows", no_wrap=True)
    names = list(dict.fromkeys(name for b in batches for name in b["distance"]))
    sums = {
        name: {w: sum(b["distance"].get(name, {}).get(w, 0) for b in batches) for w in ("rows", "bytes")}
        for name in names
    }
    total = sum(s["rows"] for s in sums.values())
    for name, s in sums.items():
        bar = Text("█" * round(30 * s["rows"] / total) + f" {100 * s['rows'] / total:.0f} %", style="cyan")
        label = "from the source" if name == "source" else name
        table.add_row(label, _number(s["rows"]), size(s["bytes"]), bar)
    return table


def _edge_table(edges: dict[str, dict[str, Any]]) -> RichTable:
    """Where rows stayed on their server in the last batch, hop by hop, from the files that were read on."""
    table = _table("edges in the last batch")
    table.add_column("from → to")
    table.add_column("stayed on server", no_wrap=True, min_width=17)
    for column in ("rows", "sent", "bytes"):
        table.add_column(column, justify="right")
    for name, edge in edges.items():
        rows = edge["local"] + edge["remote"]
        table.add_row(
            name, share_bar(edge["locality"], 10), _number(rows), _number(edge["remote"]), size(edge["bytes"])
        )
    return table


def _operator_table(name: str, operator: dict[str, Any]) -> RichTable:
    by = f" by {', '.join(operator['key'])}" if operator["key"] else ""
    title = f"{name}: {operator['kind']}{by}, {_number(operator['keys'])} keys, {size(operator['bytes'])}"
    table = _table(title)
    for column in ("server", "keys", "segments", "size"):
        table.add_column(column, justify="right")
    table.add_column("share of keys")
    total = sum(s["keys"] or 0 for s in operator["servers"])
    for s in operator["servers"]:
        share = s["keys"] / total if s["keys"] is not None and total else None
        bar = Text("–", style="dim") if share is None else Text("█" * round(30 * share), style="cyan")
        table.add_row(str(s["server"]), _number(s["keys"]), str(s["segments"]), size(s["bytes"]), bar)
    return table


def _show_health(health: dict[str, Any], console: Console) -> None:
    def line(mark: str, text: str) -> None:
        console.print(Text.from_markup(mark + " ").append(text), soft_wrap=True, highlight=False)

    if health["verified"] and not health["damaged"]:
        n = health["files"]
        line(
            "[green]✓[/]", f"all {n:,} files ({size(health['bytes'])}) have the length and checksum on record"
        )
    elif not health["verified"]:
        line("[yellow]·[/]", f"{health['files']:,} files ({size(health['bytes'])}) not read, as asked")
    for d in health["damaged"]:
        line("[red]✗[/]", d["problem"])
    for problem in health["wrong"]:
        line("[red]✗[/]", problem)
    if health["verified"] and not health["damaged"] and not health["wrong"]:
        line("[green]✓[/]", "every key lives on one server, and there are as many as the commit counts")
    if health["planned"] is not None:
        line(
            "[yellow]·[/]",
            f"batch {health['planned']} is planned but not committed: it is running, or will be replayed",
        )
    if health["undelivered"] is not None:
        line(
            "[yellow]·[/]",
            f"batch {health['undelivered']} is committed but its delivery to the sinks is not on record: "
            "the next start delivers it",
        )
    orphans = health["orphans"]
    if orphans["files"]:
        line(
            "[yellow]·[/]",
            f"{orphans['files']:,} files ({size(orphans['bytes'])}) are in no commit: left by tasks that ran twice "
            "or died; harmless",
        )


def _number(n: int | None) -> str:
    return "–" if n is None else f"{n:,}"
