"""``weir advise``: would locality-aware routing help with this data, and with which table to begin?"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from rich.console import Console
from rich.progress import Progress

from weir.advise.counts import Counted, Question
from weir.advise.files import count_files, open_files
from weir.advise.judge import STEPS, Judge, Tables, judge
from weir.advise.words import recommend
from weir.cli.advise_tables import draw, show
from weir.errors import TopologyError, WeirError
from weir.hashing import hash_columns
from weir.locality.table import HASH, SERVER, RoutingTable

SPARK_ABOVE = 1 << 30  # bytes on disk from which Spark does the counting
TABLE = "table:"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("data", metavar="DATA", help="a Parquet file or folder, a CSV file, or table:NAME for a Spark table")
    add("--keys", required=True, help="key columns in the order of the operators: a,b or a+b,c")
    add("--servers", type=int, required=True, help="how many servers the query will have")
    add("--time", default=None, help="the column that orders rows (default: the order of the file)")
    add("--operators", default=None, help="names of the keyed operators (default: those of their keys)")
    add("--out", default=None, metavar="FOLDER", help="write the tables to start with, one file per operator")
    add("--plot", default=None, metavar="FILE.png", help="draw locality over time and the hot keys")
    add("--alpha", type=float, default=1.03, help="load that a server may have, over the average")
    add("--sample", type=int, default=None, metavar="ROWS", help="count about so many rows, drawn at random")
    add("--payload", type=float, default=None, metavar="BYTES", help="what a row weighs (default: measured)")
    add("--capacity", type=int, default=5_000_000, help="most pairs and keys to keep")
    add("--master", default=None, help="count on this Spark, e.g. local[4] or spark://host:7077")
    add("--seed", type=int, default=0)


def parse_keys(keys: str, operators: str | None, known: list[str] | None = None) -> dict[str, list[str]]:
    """Key columns by operator from ``--keys`` and ``--operators``.

    >>> parse_keys("state,user+hashtag", "states,trends")
    {'states': ['state'], 'trends': ['user', 'hashtag']}
    """
    parts = [p.strip() for p in keys.split(",") if p.strip()]
    if len(parts) < 2:
        raise TopologyError(
            f"--keys {keys}: locality is between operators with different keys; name two at least, as in --keys a,b"
        )
    columns = [[part] if part in (known or []) else [c.strip() for c in part.split("+")] for part in parts]
    names = parts if operators is None else [n.strip() for n in operators.split(",")]
    if len(names) != len(parts):
        raise TopologyError(
            f"--operators {operators}: give {len(parts)} names, one for each of --keys {keys}"
        )
    for name in names:
        if not name or "/" in name or name.startswith("."):
            raise TopologyError(f"{name!r} cannot name an operator: it must be a plain file name, too")
    if len(set(names)) < len(names):
        raise TopologyError(f"two operators have the same name in {names}: tell them apart with --operators")
    return dict(zip(names, columns, strict=True))


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Counts, judges, advises; writes the tables and the plot if asked to."""
    _check(args)
    parse_keys(args.keys, args.operators)
    with console.status(f"counting {args.data} …"):
        counted = count(args)
    if len(counted.slices) < 2:
        raise WeirError(
            f"{args.data}: all rows have the same time, so nothing can be learnt from earlier ones and judged by "
            "later ones; leave --time out, or give more rows"
        )
    trial = Judge(counted, args.servers, args.alpha, seed=args.seed)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("judging", total=STEPS + len(counted.slices))

        def step(what: str) -> None:
            progress.update(task, advance=1, description=what)

        found, start = judge(trial, step, args.payload)
    result: dict[str, Any] = {"data": args.data, "recommendation": recommend(found, args.alpha), **found}
    if args.out:
        result["out"] = args.out
        result["tables"] = save(counted, start, args.out)
    if args.plot:
        draw(result, args.plot)
        result["plot"] = args.plot
    return result


def count(args: argparse.Namespace) -> Counted:
    """Reads the data with whichever reader suits its size."""

    def question(names: list[str]) -> Question:
        operators = parse_keys(args.keys, args.operators, names)
        return Question(args.data, operators, args.time, args.sample, args.capacity, seed=args.seed)

    remote = args.data.startswith(TABLE) or "://" in args.data
    dataset = None
    if not remote:
        try:
            dataset = open_files(args.data)
        except (pa.ArrowInvalid, OSError) as error:
            raise WeirError(f"{args.data} is neither Parquet nor CSV that can be read ({error})") from error
        question(dataset.schema.names).check(dataset.schema)
        if args.master is None and _size(args.data) <= SPARK_ABOVE:
            return count_files(question(dataset.schema.names), dataset)
    from weir.spark.counting import count_frame, open_frame, session

    spark, ours = session(args.master)
    try:
        frame = open_frame(spark, args.data, None if dataset is None else dataset.schema)
        return count_frame(question(frame.columns), frame)
    finally:
        if ours:
            spark.stop()


def save(counted: Counted, tables: Tables, folder: str) -> dict[str, str]:
    """Writes one readable table per operator, for ``weir.Locality(start=folder)``."""
    out = {}
    for keys, table in zip(counted.keys, tables, strict=True):
        homes = table.find(hash_columns(keys.columns))
        known = homes >= 0
        # columns of these names would collide with the table's own; only their types matter to the engine
        names = [f"key_{c}" if c in (HASH, SERVER) else c for c in keys.column_names]
        readable = keys.filter(pa.array(known)).rename_columns(names)
        place = f"{folder.rstrip('/')}/{table.operator}.arrow"
        RoutingTable.of(
            readable, homes[known].astype(np.int32), n=table.n, operator=table.operator, version=1
        ).save(place)
        out[table.operator] = place
    return out


def _check(args: argparse.Namespace) -> None:
    """Refuses what can't work before anything is read."""
    if args.servers < 2:
        raise WeirError(f"--servers {args.servers}: on one server every row is local already; give 2 or more")
    if args.alpha < 1:
        raise WeirError(f"--alpha {args.alpha}: no server can stay below the average, use 1 or more")
    for name in ("sample", "capacity", "payload"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise WeirError(f"--{name} {value}: must be positive")
    if not args.data.startswith(TABLE) and "://" not in args.data and not Path(args.data).exists():
        raise WeirError(f"no data at {args.data}: check the path, or write table:NAME for a Spark table")
    if args.plot:
        if importlib.util.find_spec("matplotlib") is None:
            raise WeirError("--plot needs matplotlib: pip install 'weir[plots]', or leave --plot out")
        folder = Path(args.plot).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise WeirError(f"--plot {args.plot}: can't write to {folder}; name a folder that exists")
        if Path(args.plot).suffix.lower() not in (".png", ".svg", ".pdf", ".jpg", ".jpeg"):
            raise WeirError(f"--plot {args.plot}: name a .png, .svg, .pdf or .jpg file")
    if args.out:
        _check_folder(args.out)


def _check_folder(folder: str) -> None:
    try:
        uri = folder if "://" in folder else str(Path(folder).resolve())
        files, place = pafs.FileSystem.from_uri(uri)
        files.create_dir(place, recursive=True)
        probe = f"{place}/.weir-probe"
        files.open_output_stream(probe).close()
        files.delete_file(probe)
    except (OSError, pa.ArrowInvalid) as error:
        raise WeirError(
            f"--out {folder}: can't write there ({error}); name a folder you may write to"
        ) from error


def _size(path: str) -> int:
    place = Path(path)
    return (
        sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
        if place.is_dir()
        else place.stat().st_size
    )


__all__ = ["arguments", "count", "run", "save", "show"]
