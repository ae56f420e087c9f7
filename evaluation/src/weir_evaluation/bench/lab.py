"""A host of the lab dies, or is cut off, in the middle of a batch: how long until the query goes on?"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

import weir
from weir.errors import EngineError
from weir_evaluation.lab import LabCluster

HELP = "a lab host is killed or cut off in mid-run: time to recover, and the result beside plain Spark's"
SCHEMA = "place string, topic string"
PATIENCE = 300


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts", type=int, default=3, help="hosts of the lab, if none is running (default 3)"
    )
    parser.add_argument("--bandwidth", default="1gbit", help="of their links (default 1gbit)")
    parser.add_argument("--fault", choices=["kill", "cut"], default="kill")
    parser.add_argument("--batches", type=int, default=8, help="micro-batches in the stream (default 8)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows per micro-batch (default 100,000)")
    parser.add_argument("--at", type=int, default=3, help="the batch in which it happens (default 3)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if not 2 <= args.at < args.batches - 1:
        raise EngineError(
            "the fault needs two batches before it and one behind it: 2 <= --at < --batches - 1"
        )
    work = Path(tempfile.mkdtemp(prefix="weir-bench-lab-"))
    try:
        _write(work / "data", args.batches, args.rows)
        with _lab(args, console) as (lab, spark):
            return _measure(lab, spark, work, args, console)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _lab(args: argparse.Namespace, console: Console) -> Iterator[tuple[LabCluster, Any]]:
    """The lab that we run on, or one of our own."""
    present = os.environ.get("WEIR_LAB")
    if present is not None:
        from weir.spark.session import embedded

        spark = embedded(name="weir bench lab", **{"spark.driver.memory": "1g"})
        try:
            yield LabCluster.attach(present), spark
        finally:
            spark.stop()
        return
    lab = LabCluster(args.hosts, args.bandwidth)
    with console.status("starting the lab") as status:
        lab.up(status.update)
    with lab.running():
        yield lab, lab.session("weir bench lab")


def posts(rng: np.random.Generator, rows: int) -> pa.Table:
    """Return rows with a place, and a topic that favours its place."""
    place = rng.zipf(1.4, rows) % 50
    topic = np.where(
        rng.random(rows) < 0.7, place * 20 + rng.integers(0, 20, rows), rng.integers(0, 1000, rows)
    )
    return pa.table({"place": pa.array(place).cast(pa.string()), "topic": pa.array(topic).cast(pa.string())})


def application(source: Any) -> weir.Stream:
    """Return the query that is hurt: posts counted by place, then by topic."""
    return (
        weir.source(source)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", weir.Count(), name="topics")
    )


def _write(folder: Path, batches: int, rows: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(7)
    for number in range(batches):
        pq.write_table(posts(rng, rows), folder / f"{number:05d}.parquet")
        os.utime(folder / f"{number:05d}.parquet", (1_700_000_000 + number,) * 2)  # read in order of age


def _measure(
    lab: LabCluster, spark: Any, work: Path, args: argparse.Namespace, console: Console
) -> dict[str, Any]:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(work / "data"))
    app = application(frame)
    done: dict[int, float] = {}
    before_fault, go_on = threading.Event(), threading.Event()

    def sink(rows: Any, batch: int) -> None:
        done[batch] = time.monotonic()
        console.print(f"batch {batch} committed")
        if batch == args.at - 1:
            before_fault.set()
            go_on.wait(PATIENCE)

    query = app.start(str(work / "checkpoint"), servers=len(lab.names), sink=sink)
    try:
        _until(before_fault.is_set, query)
        _until(lambda: len(query.recent_progress) >= args.at - 1, query)
        earlier = [p.seconds.job for p in query.recent_progress]
        usual = statistics.median(earlier[1:] or earlier)  # the first one also warms up
        homes = [s.host for s in query.recent_progress[-1].servers]
        victim = next(h for h in homes if h in lab.names)
        go_on.set()
        _until(lambda: query.status["message"] == f"batch {args.at}", query)
        began, stages = time.monotonic(), set[int]()
        tracker = spark.sparkContext.statusTracker()

        def second_stage() -> bool:
            stages.update(tracker.getActiveStageIds())
            return len(stages) > 1

        # when its second stage is at work, there is output of the first one to be lost
        _until(lambda: second_stage() or args.at in done, query)
        struck, fault_at = time.monotonic(), time.time()
        in_flight = args.at not in done
        getattr(lab, args.fault)(victim)
        console.print(f"{args.fault} {victim}, {struck - began:.1f} s into batch {args.at}")
        _until(lambda: args.at in done, query)
        recovered = done[args.at] - struck
        console.print(f"batch {args.at} committed {recovered:.1f} s later")
        lab.heal(victim)
        query.process_all_available()
        after = [p for p in query.recent_progress if p.batch > args.at]
        equal = {
            name: _counts(query.state(name)) == _counts(_plain(spark, work / "data", key))
            for name, key in (("places", "place"), ("topics", "topic"))
        }
    finally:
        go_on.set()
        query.stop()
    return {
        "fault": args.fault,
        "host": victim,
        "hosts": len(lab.names),
        "rows_per_batch": args.rows,
        "in_flight": in_flight,
        "batch_seconds_before": usual,
        "fault_at": fault_at,
        "recovery_seconds": recovered,
        "batches_after": [p.batch for p in after],
        "batch_seconds_after": statistics.median(p.seconds.job for p in after),
        "homes_before": homes,
        "homes_after": [s.host for s in after[-1].servers],
        "equal": equal,
    }


def _until(reached: Any, query: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not reached():
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > until:
            raise EngineError(f"the query stands still: {query.status}")
        time.sleep(0.02)


def _plain(spark: Any, data: Path, key: str) -> Any:
    return spark.read.schema(SCHEMA).parquet(str(data)).groupBy(key).count()


def _counts(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(title=f"{result['fault']} {result['host']} of {result['hosts']} lab hosts in mid-batch")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("a batch before", f"{result['batch_seconds_before']:.1f} s")
    table.add_row("from the fault to that batch's commit", f"{result['recovery_seconds']:.1f} s")
    table.add_row("a batch after", f"{result['batch_seconds_after']:.1f} s")
    table.add_row("servers lived on", " ".join(result["homes_before"]))
    table.add_row("servers live on", " ".join(result["homes_after"]))
    table.add_row("counts equal plain Spark's", "yes" if all(result["equal"].values()) else "NO")
    console.print(table)


def exit_code(result: dict[str, Any]) -> int:
    return 0 if all(result["equal"].values()) else 1
