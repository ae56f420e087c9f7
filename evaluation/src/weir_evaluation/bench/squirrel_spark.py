"""``weir bench squirrel --spark``: the same workloads on real Spark, with service times emulated by sleeping per row.

A source, an operator that takes rows by shuffle, and one that takes them by key and merges; each works on a row for
``--delay`` milliseconds, longer on slower servers. Sleeping servers run honestly in parallel on few cores. What is
measured is the whole engine: routing, exchange, partial states, merging, commit. ``latency_ms`` is that of a whole
micro-batch. Every server reads its part of the stream and keeps what it does not hand on, so a row that stays on its
server is near.

Without ``--hosts`` all servers share this machine's memory, and distance costs next to nothing: what shows is
balance. With ``--hosts 4`` they are hosts of a lab, one rack of network namespaces behind links of ``--bandwidth``. A
link's default speed makes a row of :data:`ROW_BYTES` from another host cost 2.5 times one from its own server, the
ratio of Squirrel's Fig. 3: 1.5 times ``--delay`` on the wire.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from weir.network.profile import PAPER
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle
from weir_evaluation.bench.data import bodies
from weir_evaluation.simulate.streams import SimulatedStream, words, zipf
from weir_evaluation.simulate.workloads import (
    ADVERTISING,
    METHODS,
    WORDCOUNT,
    Workload,
    events,
    graded,
    grouping,
)

KEYS = 100_000
ROW_BYTES = round(PAPER.row_bytes)
SCHEMA = "word long, body binary"


@dataclass
class Tally:
    rows: int = 0


class Owed:
    """Service time not yet slept: sleeping once per few milliseconds keeps the emulation exact."""

    seconds = 0.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of runs on Spark."""
    parser.add_argument("--spark", action="store_true", help="on real Spark, with emulated service times")
    parser.add_argument("--servers", type=int, default=4, help="with --spark: servers")
    parser.add_argument("--delay", type=float, default=0.5, help="with --spark: ms of service per row")
    parser.add_argument("--seconds", type=float, default=2.0, help="with --spark: length of a balanced batch")
    parser.add_argument(
        "--workload",
        choices=[WORDCOUNT.name, ADVERTISING.name],
        help="with --spark: only this one (default both)",
    )
    parser.add_argument("--batches", type=int, default=12, help="with --spark: micro-batches per run")
    parser.add_argument(
        "--hosts", type=int, default=0, help="with --spark: servers are so many hosts of a lab (needs root)"
    )
    parser.add_argument(
        "--bandwidth",
        help="with --hosts: of their links (default: a row takes 1.5 × --delay on the wire, as in the paper)",
    )


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """One record per workload, skew, heterogeneity and method, as in the simulator."""
    if args.hosts:
        args.servers = args.hosts
    rows = int(args.batches * args.servers * args.seconds * 1000 / args.delay / 2)
    cases: list[tuple[Workload, float | str, float, SimulatedStream]] = []
    if args.words is not None:
        cases.append((WORDCOUNT, "real", 1.0, words(args.words, limit=rows)))
    for z in args.zipf:
        cases.append((WORDCOUNT, z, 1.0, zipf(rows, KEYS, z)))
    for ratio in args.heterogeneity:
        cases.append((WORDCOUNT, 0.0, ratio, zipf(rows, KEYS, 0.0)))
    cases += [(ADVERTISING, 0.0, ratio, events(rows)) for ratio in [1.0, *args.heterogeneity]]
    cases = [case for case in cases if args.workload in (None, case[0].name)]
    work = Path(tempfile.mkdtemp(prefix="weir-squirrel-"))
    measured = []
    try:
        with _session(args, console) as spark:
            for number, (workload, skew, ratio, stream) in enumerate(cases):
                data = work / f"{number}"
                _write(data, stream, args)
                for method in METHODS:
                    folder = work / f"{number}-{method}"
                    found = _measure(spark, data, folder, workload, method, ratio, args)
                    record = {"workload": workload.name, "skew": skew, "heterogeneity": ratio}
                    if args.hosts:
                        record["input_mb"] = round(rows * ROW_BYTES / 1e6)
                    measured.append(record | {"method": method} | found)
                    console.print(
                        f"{workload.name}, skew {skew}, heterogeneity {ratio:g}, {method}: "
                        f"{found['rows_per_s']:,} rows/s, {found['latency_ms']:,.0f} ms per batch, "
                        f"{found['local']:.0%} of rows stay",
                        highlight=False,
                    )
                    shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(data)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return measured


@contextlib.contextmanager
def _session(args: argparse.Namespace, console: Console) -> Iterator[Any]:
    """Spark in this process, or on a lab of our own."""
    if not args.hosts:
        from weir.spark.session import embedded

        # live servers, and a slot for the source
        spark = embedded(f"local[{args.servers + 1}]", **{"spark.driver.memory": "2g"})
        try:
            yield spark
        finally:
            spark.stop()
        return
    from weir_evaluation.lab import LabCluster

    bits_per_s = 8 * ROW_BYTES / (1.5 * args.delay / 1000)
    bandwidth = args.bandwidth or f"{round(bits_per_s / 1000)}kbit"
    lab = LabCluster(args.hosts, bandwidth, cores=2)  # a live server and a slot for the source
    with console.status("starting the lab") as status:
        lab.up(status.update)
    console.print(f"{args.hosts} hosts, links of {bandwidth}", highlight=False)
    with lab.running():
        # no server ever works on another's host, however long its own is busy
        yield lab.session("weir bench squirrel", **{"spark.locality.wait": "300s"})


def _write(folder: Path, stream: SimulatedStream, args: argparse.Namespace) -> None:
    """Micro-batches, each a file per server; on hosts rows have a body, which no compression makes smaller."""
    keys = stream.hashes[stream.ids].astype(np.int64)
    size = ROW_BYTES if args.hosts else 0
    rng = np.random.default_rng(0)
    for number, batch in enumerate(np.array_split(keys, args.batches)):
        for source, part in enumerate(np.array_split(batch, args.servers)):
            path = folder / f"part={source}" / f"{number:04d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = pa.table({"word": part, "body": bodies(len(part), size, rng)})
            pq.write_table(table, path, compression="none", use_dictionary=False)
            os.utime(path, (1_700_000_000 + 100 * number + source,) * 2)  # Spark lists files in order of age


def _serve(rows: int, delay: float, speeds: list[float]) -> None:
    from pyspark import TaskContext

    Owed.seconds += delay * rows / speeds[TaskContext.get().partitionId()]  # type: ignore[union-attr]
    if Owed.seconds > 0.002:
        began = time.perf_counter()
        time.sleep(Owed.seconds)
        Owed.seconds -= time.perf_counter() - began


def _measure(
    spark: Any,
    data: Path,
    folder: Path,
    workload: Workload,
    method: Any,
    ratio: float,
    args: argparse.Namespace,
) -> dict[str, Any]:
    import weir

    reader = spark.readStream.option("maxFilesPerTrigger", args.servers)
    place = {f"part={source}": source for source in range(args.servers)}
    source = weir.files(reader, str(data), schema=SCHEMA, assignment=place)
    delay, speeds, keep = args.delay / 1000, graded(ratio, args.servers).tolist(), workload.keep

    def first(batch: Any) -> Any:
        _serve(batch.num_rows, delay, speeds)
        return batch

    def second(key: int, rows: Any, state: Tally) -> None:
        state.rows += len(rows)
        _serve(len(rows), delay, speeds)

    def merge(one: Tally, other: Tally) -> Tally:
        return Tally(one.rows + other.rows)

    app = source.map_batches(first, name="first", routing=grouping(method, Shuffle()))
    if keep < 1:  # which rows are handed on depends on the row, as it must
        limit = int(keep * 2**31)
        app = app.filter_batches(
            lambda b: (b.column("word").to_numpy() * 2654435761 % 2**31) < limit, name="kept"
        )
    app = app.process(
        "word", second, name="second", state=Tally, merge=merge, routing=grouping(method, Hash())
    )
    query = app.start(str(folder), servers=args.servers, prune=False, trigger={"availableNow": True})
    query.await_termination()
    progress = query.recent_progress
    came = sum(p.operators["second"].rows_in for p in progress)
    total = query.state("second").agg({"rows": "sum"}).first()[0]
    if total != came:
        raise AssertionError(f"{total} rows counted, {came} came in")
    settled = progress[len(progress) // 2 :]
    seconds = [p.seconds.plan + p.seconds.job for p in settled]
    return {
        "rows_per_s": round(sum(p.rows for p in settled) / sum(seconds)),
        "latency_ms": round(1000 * statistics.mean(seconds), 3),
        "seconds": round(sum(p.seconds.plan + p.seconds.job for p in progress), 3),
        "batch_s": [round(p.seconds.plan + p.seconds.job, 2) for p in progress],
        "weights": progress[-1].weights,
        "local": round(statistics.mean(p.locality or 0.0 for p in settled), 3),
        "execution": sorted({p.execution for p in settled}),
    }
