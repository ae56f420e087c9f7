"""Source affinity on real Spark: files written by key, and how much of the first hop still leaves its server."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from weir.engine.progress import Progress

HELP = "files written by key: bytes from reading servers to the first operator, before and after learning"
SCHEMA = "k1 string, k2 string, padding binary"
HOP = "files → A"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=40_000, help="rows per micro-batch")
    parser.add_argument("--before", type=int, default=3, help="batches before anything is learnt")
    parser.add_argument("--after", type=int, default=3, help="batches after the reconfiguration")
    parser.add_argument("--partitions", type=int, default=24, help="folders; each holds keys of its own")
    parser.add_argument("--strays", type=float, default=0.1, help="share of rows in somebody else's folder")
    parser.add_argument("--keys", type=int, default=2_400, help="distinct keys of each operator")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--padding", type=int, default=200, help="bytes per row")
    parser.add_argument("--master", default="local[6]", help="where Spark runs")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    spark = embedded(args.master, **{"spark.driver.memory": "2g"})
    work = Path(tempfile.mkdtemp(prefix="weir-source-"))
    try:
        console.print(f"writing {args.before + args.after + 1} × {args.partitions} files")
        strays = _write(work / "data", args)
        result: dict[str, Any] = {"servers": args.servers, "strays": args.strays}
        # a balanced layout of partitions: a row is local if the partition of its key is on the same server
        given = {f"part={p}": p % args.servers for p in range(args.partitions)}
        for name, place in (("fixed", given), ("learnt", None)):
            measured = _measure(spark, work, name, place, args, strays)
            result[name] = measured
            console.print(
                f"{name}: {measured['before']['bytes']:,.0f} → {measured['after']['bytes']:,.0f} bytes per batch, "
                f"locality {measured['before']['locality']:.2f} → {measured['after']['locality']:.2f}"
            )
        return result
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(title=f"files read on {result['servers']} servers, {result['strays']:.0%} strays")
    table.add_column("from files to A, per batch")
    modes = [result["fixed"], result["learnt"]]
    for column in ("read at given places", "read where it pays"):
        table.add_column(column, justify="right")
    for label, name, form in (("bytes sent", "bytes", ",.0f"), ("locality", "locality", ".2f")):
        table.add_row(label, *(f"{m['before'][name]:{form}} → {m['after'][name]:{form}}" for m in modes))
    table.add_row("bytes saved", *(f"{m['seen_share']:.1%}" for m in modes))
    table.add_row("… the data allow", *(f"{m['allowed_share']:.1%}" for m in modes))
    following = [f"{m['before']['next_locality']:.2f} → {m['after']['next_locality']:.2f}" for m in modes]
    table.add_row("locality from A to B", *following)
    table.add_row("rows lost, doubled", *(f"{m['lost']}, {m['doubled']}" for m in modes))
    console.print(table)


def _write(folder: Path, args: argparse.Namespace) -> float:
    """Files by key; returns the share of rows that no balanced layout of whole partitions makes local."""
    rng = np.random.default_rng(11)
    each = -(-args.rows // args.partitions)
    pool = rng.integers(0, 256, args.padding + (1 << 16), np.uint8).tobytes()
    apart = rows = 0
    for batch in range(args.before + args.after + 1):
        for part in range(args.partitions):
            away = rng.random(each) < args.strays
            home = np.where(away, rng.integers(0, args.partitions, each), part)
            k1 = home + args.partitions * rng.integers(0, max(1, args.keys // args.partitions), each)
            friend = np.where(rng.random(each) < 0.8, home, rng.integers(0, args.partitions, each))
            k2 = friend + args.partitions * rng.integers(0, max(1, args.keys // args.partitions), each)
            starts = rng.integers(0, 1 << 16, each)
            table = pa.table(
                {
                    "k1": pa.array(k1).cast(pa.string()),
                    "k2": pa.array(k2).cast(pa.string()),
                    "padding": pa.array([pool[s : s + args.padding] for s in starts], pa.binary()),
                }
            )
            path = folder / f"part={part}" / f"{batch:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path, compression="none", use_dictionary=False)
            os.utime(path, (1_700_000_000 + 1000 * batch + part,) * 2)  # Spark lists files in order of age
            apart += int((home % args.servers != part % args.servers).sum())
            rows += each
    return apart / rows


def _measure(
    spark: Any, work: Path, name: str, place: Any, args: argparse.Namespace, strays: float
) -> dict[str, Any]:
    import weir

    reader = spark.readStream.option("maxFilesPerTrigger", args.partitions)
    app = (
        weir.files(reader, str(work / "data"), schema=SCHEMA, assignment=place)
        .keyed("k1", weir.Count(emit="rows"), name="A")
        .keyed("k2", weir.Count(), name="B")
    )
    ready = threading.Event()

    def sink(frame: Any, batch: int) -> None:
        ready.wait(60)
        if batch == args.before - 1:
            query.reconfigure(wait=True)

    query = app.start(
        str(work / name),
        servers=args.servers,
        routing=weir.Locality(period=None),
        prune=False,
        sink=sink,
        trigger={"availableNow": True},
    )
    ready.set()
    query.await_termination()
    progress = query.recent_progress
    before, after = progress[: args.before], progress[args.before + 1 :]
    first, last = _hop(before), _hop(after)
    lost, doubled = _check(spark, work / "data", query)
    return {
        "before": first,
        "after": last,
        # of the bytes that left their server before, the share that the data let us keep, and that was kept
        "allowed_share": 1 - strays / (1 - first["locality"]) if first["locality"] < 1 else 0.0,
        "seen_share": 1 - last["bytes"] / first["bytes"] if first["bytes"] else 0.0,
        "moved_keys": sum(p.moved_keys for p in progress),
        "lost": lost,
        "doubled": doubled,
    }


def _hop(part: list[Progress]) -> dict[str, float]:
    edges = [p.edges[HOP] for p in part]
    local, remote = sum(e.local for e in edges), sum(e.remote for e in edges)
    following = [p.edges["A → B"] for p in part]
    near, far = sum(e.local for e in following), sum(e.remote for e in following)
    return {
        "rows": (local + remote) / len(part),
        "remote_rows": remote / len(part),
        "bytes": sum(e.bytes for e in edges) / len(part),
        "locality": local / (local + remote),
        "next_locality": near / (near + far),
        "imbalance": max(p.operators["files"].imbalance or 1.0 for p in part),
    }


def _check(spark: Any, data: Path, query: Any) -> tuple[int, int]:
    """Rows that plain Spark counts and Weir doesn't, and the other way round."""
    frame = spark.read.parquet(str(data))
    lost = doubled = 0
    for operator, key in (("A", "k1"), ("B", "k2")):
        right = dict(map(tuple, frame.groupBy(key).count().collect()))
        ours = dict(map(tuple, query.state(operator).collect()))
        for value in right.keys() | ours.keys():
            difference = ours.get(value, 0) - right.get(value, 0)
            lost += max(0, -difference)
            doubled += max(0, difference)
    return lost, doubled
