"""``weir bench peers``: Weir beside what one would pick instead, on the same data and cores.

The application is two counts: rows are counted by ``k1``, then passed on whole and counted by ``k2``. Every
system runs in an environment of its own (:mod:`~weir_evaluation.bench.peers.environment`), is measured by the
same meter (:mod:`~weir_evaluation.bench.peers.meter`) and the same clock
(:mod:`~weir_evaluation.bench.peers.measure`), and its counts are compared with
the true ones. docs/peers.md says what is equal and what is not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from weir.errors import EngineError, did_you_mean
from weir_evaluation.bench.data import write_pairs
from weir_evaluation.bench.peers.environment import Unavailable
from weir_evaluation.bench.peers.measure import Data, measured, tidy
from weir_evaluation.bench.peers.systems import System, all_systems, rows_per_read

HELP = "Weir beside Spark's transformWithState, Flink, PyFlink and Bytewax: rows/s, CPU, memory"
FILES_PER_BATCH = 2
REFERENCE = "weir-table"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--only", action="append", metavar="NAME", help="only this system; may be repeated")
    parser.add_argument("--payload", type=int, action="append", help="bytes per row (default: 0, 1000, 8000)")
    parser.add_argument(
        "--rows", type=int, default=800_000, help="most rows per micro-batch (default 800,000)"
    )
    parser.add_argument(
        "--megabytes", type=int, default=200, help="most payload per micro-batch (default 200 MB)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=8, help="micro-batches that come first and don't count (default 8)"
    )
    parser.add_argument("--batches", type=int, default=8, help="micro-batches that count (default 8)")
    parser.add_argument("--keys", type=int, default=2_000, help="distinct keys of each operator")
    parser.add_argument(
        "--locality", type=float, default=0.8, help="share of rows whose two keys belong together"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores, and instances of each operator")
    parser.add_argument("--repeat", type=int, default=1, help="rounds; the fastest counts")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a run may take")


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measures every chosen system at every payload; one that fails is listed with its reason."""
    chosen = choose(args.only)
    if not sys.platform.startswith("linux"):
        raise EngineError("weir bench peers reads /proc to account for CPU and memory: it needs Linux")
    if args.warm_up < 1 or args.batches < 1:
        raise EngineError(
            f"--warm-up {args.warm_up} --batches {args.batches}: both must be at least 1, for the clock starts at "
            "the end of a micro-batch"
        )
    there = len(os.sched_getaffinity(0))
    if args.cores > there:
        raise EngineError(
            f"--cores {args.cores}: this process may use {there} cores; ask for that many at most"
        )
    pythons: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for system in chosen:
        try:
            pythons[system.name] = system.python(console)
        except Unavailable as error:
            reasons[system.name] = str(error)
            console.print(_failure(system.name, error))
    result = []
    work = Path(tempfile.mkdtemp(prefix="weir-peers-"))
    # who is ended by a signal leaves a gigabyte behind otherwise
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for payload in args.payload or [0, 1_000, 8_000]:
            for system in chosen:
                row = _row(system, payload)
                if system.name in reasons:
                    row["error"] = reasons[system.name]
                else:
                    row |= _best(system, pythons[system.name], payload, work, args, console)
                result.append(row)
            for folder in work.glob("data-*"):
                tidy(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    return result


def choose(names: list[str] | None) -> list[System]:
    """The systems of these names, all by default."""
    known = all_systems()
    for name in names or []:
        if name not in known:
            raise EngineError(f"--only {name}: no such system; {did_you_mean(name, known)}")
    return [system for name, system in known.items() if not names or name in names]


def _row(system: System, payload: int) -> dict[str, Any]:
    return {
        "system": system.name,
        "version": system.version,
        "payload": payload,
        "rows_per_s": None,
        "cpu_s_per_million": None,
        "peak_mb": None,
        "guarantee": system.guarantee,
        "note": system.note,
    }


def _best(
    system: System, python: Path, payload: int, work: Path, args: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """The fastest of the rounds: others may disturb a run, but nothing makes one faster than it is."""
    rounds = []
    data = _data(work, payload, system, args)
    for number in range(args.repeat):
        folder = work / f"{system.name}-{payload}-{number}"
        began = time.monotonic()
        with console.status(f"{system.name}, {payload:,} B: {data.rows:,} rows") as status:
            try:
                figures = measured(system, python, data, folder, cores=args.cores, seconds=args.timeout)
            except Unavailable as error:
                console.print(_failure(f"{system.name}, {payload:,} B", error))
                return {"error": str(error), "rows": data.rows}
            finally:
                status.stop()
                tidy(folder)
        rounds.append(figures)
        console.print(
            f"{system.name:11} {payload:>6,} B  {figures['rows_per_s']:>10,.0f} rows/s  "
            f"{figures['cpu_s_per_million']:>8.2f} CPU s/M  {figures['peak_mb']:>7,.0f} MB  "
            f"({data.rows:,} rows, {time.monotonic() - began:.0f} s with start and check)",
            highlight=False,
        )
    best = max(rounds, key=lambda f: f["rows_per_s"])
    exchanged = best["exchanged_bytes"]
    return {
        **best,
        "rows": data.rows,
        "exchanged_bytes_per_row": None if exchanged is None else round(exchanged / data.rows, 1),
    }


def _data(work: Path, payload: int, system: System, args: argparse.Namespace) -> Data:
    """The generated files for a payload; systems that get as many rows read the same ones."""
    rows = min(args.rows, args.megabytes * 1_000_000 // max(payload, 1), system.most_rows or args.rows)
    rows -= rows % FILES_PER_BATCH
    warm_up = min(args.warm_up, system.most_batches or args.warm_up)
    batches = warm_up + min(args.batches, system.most_batches or args.batches)
    folder = work / f"data-{payload}-{rows}-{batches}"
    if not folder.exists():
        write_pairs(
            folder,
            batches=batches,
            rows=rows,
            keys=args.keys,
            servers=args.cores,
            locality=args.locality,
            payload=payload,
            files_per_batch=FILES_PER_BATCH,
            row_group=rows_per_read(payload),
        )
    return Data(
        folder=folder,
        files=sorted(folder.glob("*.parquet")),
        rows=rows * batches,
        warm_up=rows * warm_up,
        keys=args.keys,
        payload=payload,
        files_per_batch=FILES_PER_BATCH,
    )


def show(result: list[dict[str, Any]], console: Console) -> None:
    """Prints the result as a table, with the ratio to Weir."""
    table = RichTable(title="two counts: by k1, then by k2")
    for column in ("payload", "system", "version"):
        table.add_column(column)
    for column in ("rows/s", "of Weir's", "CPU s / M rows", "peak MB", "B/row exchanged"):
        table.add_column(column, justify="right")
    table.add_column("durability")
    speeds = {r["payload"]: r["rows_per_s"] for r in result if r["system"] == REFERENCE}
    previous = None
    for row in result:
        if previous is not None and row["payload"] != previous:
            table.add_section()
        previous = row["payload"]
        head = (f"{row['payload']:,} B", row["system"], row["version"])
        if "error" in row:
            table.add_row(*head, *["–"] * 5, Text("failed", "red"))
            continue
        ours = speeds.get(row["payload"])
        exchanged = row["exchanged_bytes_per_row"]
        table.add_row(
            *head,
            f"{row['rows_per_s']:,.0f}",
            "–" if not ours else f"{row['rows_per_s'] / ours:.2f} ×",
            f"{row['cpu_s_per_million']:.2f}",
            f"{row['peak_mb']:,.0f}",
            "–" if exchanged is None else f"{exchanged:,.0f}",
            row["guarantee"],
        )
    console.print(table)
    for system, note in {r["system"]: r["note"] for r in result}.items():
        console.print(Text(f"{system}: {note}"))
    for row in result:
        if "error" in row:
            console.print(_failure(f"{row['system']}, {row['payload']:,} B", row["error"]))


def _failure(what: str, reason: object) -> Text:
    return Text.assemble((what, "red"), f": {reason}")


def exit_code(result: list[dict[str, Any]]) -> int:
    """Not zero when a system could not be measured."""
    return int(any("error" in row for row in result))
