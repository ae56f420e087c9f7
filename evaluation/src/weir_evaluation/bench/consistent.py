"""Consistent Grouping and its rivals on real Spark, with service times emulated by sleeping per row.

Sleeping servers run honestly in parallel on few cores. What is measured is the whole engine: routing, exchange,
partial states, merging, commit.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

import weir
from weir.engine.progress import Progress

DEFAULT = ("KG", "PKG", "SG", "CG")
MORE = ("CG, printed", "WG")  # Consistent Grouping to the letter; weights
HELP = "KG, PKG, SG and CG on servers that are alike and that are not: throughput, latency, memory"


@dataclass
class Tally:
    rows: int = 0


# Where routers follow load, servers begin with the first rows of a batch. So they do here behind all groupings, or
# rows of some would be older for a reason that is not the routing.
class EarlyHash(weir.Hash):
    follows_load = True


class EarlyPartialKey(weir.PartialKey):
    follows_load = True


class EarlyShuffle(weir.Shuffle):
    follows_load = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--servers", type=int, default=24)
    parser.add_argument("--sources", type=int, default=8)
    parser.add_argument("--delay", type=float, default=0.5, help="milliseconds of service per row")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a perfectly balanced batch")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--slow", type=int, default=2, help="servers that are slow in the heterogeneous case")
    parser.add_argument("--speed", type=float, default=0.3, help="their speed")
    parser.add_argument("--words", type=Path, help="Parquet file with a column 'word' (default: Zipf, z = 1)")
    parser.add_argument("--only", action="append", choices=[*DEFAULT, *MORE])
    parser.add_argument("--execution", choices=["live", "jobs"], default="live", help="how batches run")
    parser.add_argument(
        "--change", action="store_true", help="also change speeds in mid-run and show how CG and WG follow"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    spark = embedded(f"local[{args.servers + args.sources}]", **{"spark.driver.memory": "4g"})
    work = Path(tempfile.mkdtemp(prefix="weir-consistent-"))
    groupings = {
        "KG": EarlyHash(),
        "PKG": EarlyPartialKey(),
        "SG": EarlyShuffle(),
        "CG": weir.Consistent(),
        "CG, printed": weir.Consistent.of_the_paper(),
        "WG": weir.Weighted(weir.Hash()),
    }
    chosen = args.only or DEFAULT
    result: dict[str, Any] = {}
    try:
        data = work / "words"
        _write(data, args)
        even = [1.0] * args.servers
        uneven = [args.speed] * args.slow + [1.0] * (args.servers - args.slow)
        cases = {"homogeneous": [even] * args.batches, "heterogeneous": [uneven] * args.batches}
        if args.change:
            half = args.batches // 2
            cases["changing"] = [uneven] * half + [uneven[::-1]] * (args.batches - half)
        for case, speeds in cases.items():
            result[case] = {}
            for name in chosen if case != "changing" else [n for n in chosen if n in ("CG", "WG")]:
                folder = work / f"{case}-{name}"
                measured = _measure(
                    spark, data, folder, groupings[name], speeds, args, keep=case == "changing"
                )
                result[case][name] = measured
                console.print(
                    f"{case}, {name}: {measured['rows_per_s']:,.0f} rows/s, {measured['latency_ms']:,.0f} ms, "
                    f"{measured['memory']:,.0f} pairs"
                )
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()
    return result


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(title="service times emulated by sleeping; settled half of the run")
    about = (
        "servers",
        "grouping",
        "rows/s",
        "against KG",
        "batch ms",
        "row p50 ms",
        "p99 ms",
        "(server, key) pairs",
    )
    for column in about:
        table.add_column(column, justify="right" if column not in ("servers", "grouping") else "left")
    for case, methods in result.items():
        base = methods.get("KG", {}).get("rows_per_s")
        for name, m in methods.items():
            ratio = f"{m['rows_per_s'] / base:.2f} ×" if base else "–"
            ages = [f"{m['row_latency_ms'][part]:,.0f}" for part in ("p50", "p99")]
            cells = [
                f"{m['rows_per_s']:,.0f}",
                ratio,
                f"{m['latency_ms']:,.0f}",
                *ages,
                f"{m['memory']:,.0f}",
            ]
            table.add_row(case, name, *cells)
    console.print(table)


def _write(folder: Path, args: argparse.Namespace) -> None:
    """Micro-batches of words, each as many files as there are sources."""
    folder.mkdir()
    rows = int(args.seconds * 1000 / args.delay * args.servers)
    rng = np.random.default_rng(11)
    if args.words:
        column = pq.read_table(args.words, columns=["word"])["word"]
        whole = column.slice(0, rows * args.batches).combine_chunks()
        batches = [whole.slice(i * rows, rows) for i in range(args.batches)]
    else:
        weights = 1.0 / np.arange(1, 20_001)
        weights /= weights.sum()
        draws = [rng.choice(20_000, rows, p=weights) for _ in range(args.batches)]
        batches = [pa.array([f"w{d}" for d in batch]) for batch in draws]
    for number, batch in enumerate(batches):
        for source in range(args.sources):
            part = batch.take(pa.array(np.arange(source, len(batch), args.sources)))
            of = np.full(len(part), number, np.int32)
            pq.write_table(
                pa.table({"word": part, "batch": of}), folder / f"{number:04d}-{source:02d}.parquet"
            )


def _measure(
    spark: Any,
    data: Path,
    folder: Path,
    grouping: Any,
    speeds: list[list[float]],
    args: argparse.Namespace,
    keep: bool,
) -> dict[str, Any]:
    stream = (
        spark.readStream.schema("word string, batch int")
        .option("maxFilesPerTrigger", args.sources)
        .parquet(str(data))
    )
    delay = args.delay / 1000

    def serve(key: str, rows: Any, state: Tally) -> None:
        from pyspark import TaskContext

        # speeds change with the batch, which rows carry: nothing is looked up that others would not pay for
        speed = speeds[rows[0].batch][TaskContext.get().partitionId()]
        state.rows += len(rows)
        Owed.seconds += delay * len(rows) / speed
        if Owed.seconds > 0.002:
            began = time.perf_counter()
            time.sleep(Owed.seconds)
            Owed.seconds -= time.perf_counter() - began

    def merge(one: Tally, other: Tally) -> Tally:
        return Tally(one.rows + other.rows)

    app = weir.source(stream).process(
        "word", serve, name="words", state=Tally, merge=merge, routing=grouping, output="word string"
    )
    query = app.start(
        str(folder), servers=args.servers, trigger={"availableNow": True}, execution=args.execution
    )
    query.await_termination()
    progress = query.recent_progress
    settled = progress[len(progress) // 2 :]
    seconds = [p.seconds.plan + p.seconds.job for p in settled]
    rows = [p.rows for p in settled]
    total = query.state("words").agg({"rows": "sum"}).first()[0]
    if total != sum(p.rows for p in progress):
        raise AssertionError(f"{total} rows counted, {sum(p.rows for p in progress)} came in")
    out: dict[str, Any] = {
        "rows_per_s": sum(rows) / sum(seconds),
        "latency_ms": 1000 * statistics.mean(seconds),
        # of a row, from the marker that it got at its source until its key was served
        "row_latency_ms": {
            part: 1000 * statistics.mean((p.operators["words"].latency or {})[part] for p in settled)
            for part in ("p50", "p99")
        },
        "memory": statistics.mean(p.operators["words"].pairs for p in settled),
    }
    if keep:
        out["batch_seconds"] = [round(p.seconds.plan + p.seconds.job, 3) for p in progress]
        out["imbalance"] = [round(_imbalance(p), 3) for p in progress]
    return out


def _imbalance(progress: Progress) -> float:
    busy = [s.busy for s in progress.servers]
    return max(busy) / (sum(busy) / len(busy))


class Owed:
    """Service time not yet slept: sleeping once per few milliseconds keeps the emulation exact."""

    seconds = 0.0
