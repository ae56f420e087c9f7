"""Weir beside Spark's own stateful operators, on the same data, parallelism and checkpoints."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from weir_evaluation.bench.data import fitting_tables, write_pairs
from weir_evaluation.bench.peers.runners.spark_chain import SCHEMA, chain

HELP = "Weir (hash, table) beside Spark's chained transformWithStateInPandas and two bare shuffles"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=800_000, help="rows per micro-batch without payload")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches per run that count")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=4,
        help="micro-batches before these, while the JVM compiles what it runs",
    )
    parser.add_argument("--keys", type=int, default=2_000, help="distinct keys of each operator")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--locality", type=float, default=0.8)
    parser.add_argument("--payload", type=int, action="append", help="bytes per row (default: 0 and 1000)")
    parser.add_argument("--repeat", type=int, default=2, help="rounds; the median counts")
    parser.add_argument("--only", action="append", choices=["spark", "hash", "table", "floor"])
    parser.add_argument("--execution", choices=["auto", "live", "jobs"], default="auto", help="of Weir")
    parser.add_argument("--plot", metavar="FILE.svg", help="also draw the result as a chart")
    parser.add_argument("--no-growth", action="store_true", help="leave out the state growth measurement")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    spark = embedded(
        f"local[{args.servers + 2}]",  # room for live servers; the cores are those of the machine
        **{
            "spark.sql.shuffle.partitions": str(args.servers),
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.driver.memory": "8g",
        },
    )
    methods: dict[str, Callable[..., tuple[float, Any]]] = {
        "spark": _spark_chain,
        "hash": _weir_hash,
        "table": _weir_table,
        "floor": _two_shuffles,
    }
    chosen = args.only or list(methods)
    result: dict[str, Any] = {"payload": {}}
    work = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        for payload in args.payload or [0, 1000]:
            rows = args.rows if payload == 0 else max(20_000, args.rows // 4)
            data = work / f"data-{payload}"
            console.print(f"payload {payload} B: {args.batches} micro-batches of {rows:,} rows")
            shape = {
                "keys": args.keys,
                "servers": args.servers,
                "locality": args.locality,
                "payload": payload,
            }
            write_pairs(data, batches=args.warm_up + args.batches, rows=rows, **shape)
            speeds: dict[str, list[float]] = {m: [] for m in chosen}
            answers: dict[str, Any] = {}
            for round_number in range(args.repeat):
                for method in chosen:
                    folder = work / f"{method}-{payload}-{round_number}"
                    speed, answer = methods[method](spark, data, folder, args)
                    speeds[method].append(speed)
                    if answer is not None:
                        answers[method] = answer
                    console.print(f"  {method:6} round {round_number + 1}: {speed:>12,.0f} rows/s")
                    shutil.rmtree(folder, ignore_errors=True)
            if len({str(a) for a in answers.values()}) > 1:
                raise AssertionError(f"the systems disagree on the result: {answers}")
            result["payload"][str(payload)] = {m: statistics.median(v) for m, v in speeds.items()}
            shutil.rmtree(data)
        if not args.no_growth:
            result["state_growth"] = _state_growth(spark, work, console, args.servers)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()
    if args.plot:
        plot(result, Path(args.plot))
    return result


LABELS = {
    "spark": "Spark, transformWithStateInPandas",
    "hash": "Weir, routed by hash",
    "table": "Weir, keys that travel together share a server",
    "floor": "two bare shuffles, no state, no Python",
}


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw rows per second, and how many times Spark's they are."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    matplotlib.rcParams["svg.fonttype"] = "none"
    payloads = result["payload"]
    figure, axes = plt.subplots(1, len(payloads), figsize=(10, 2.3), sharey=True, layout="constrained")
    for axis, (payload, speeds) in zip(axes if len(payloads) > 1 else [axes], payloads.items(), strict=True):
        names = [name for name in LABELS if name in speeds][::-1]
        colours = ["#c8ccd2" if name in ("spark", "floor") else "#0a5bb5" for name in names]
        axis.barh([LABELS[name] for name in names], [speeds[name] for name in names], color=colours)
        for place, name in enumerate(names):
            times = f"  {speeds[name] / speeds['spark']:.1f} ×" if "spark" in speeds else ""
            axis.text(speeds[name], place, times, va="center", fontsize=9)
        title = f"{int(payload):,} B of payload" if int(payload) else "no payload"
        axis.set_title(f"rows per second, {title}", fontsize=10, loc="left")
        axis.locator_params(axis="x", nbins=4)
        axis.set_xlim(0, 1.18 * max(speeds.values()))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(title="rows per second, median of rounds")
    table.add_column("payload")
    names = list(next(iter(result["payload"].values())))
    for name in names:
        table.add_column(name, justify="right")
    if "spark" in names:
        table.add_column("hash / spark", justify="right")
        table.add_column("table / spark", justify="right")
    for payload, speeds in result["payload"].items():
        cells = [f"{speeds[n]:,.0f}" for n in names]
        if "spark" in names:
            cells += [
                f"{speeds[m] / speeds['spark']:.1f} ×" if m in speeds else "–" for m in ("hash", "table")
            ]
        table.add_row(f"{payload} B", *cells)
    console.print(table)
    if "state_growth" in result:
        console.print(
            f"state growth: a batch over 1,000,000 stored keys takes {result['state_growth']:.2f} × as long as one "
            "over 10,000 (10,000 keys touched by each)"
        )


def _stream(spark: Any, data: Path, files: int = 2) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(data))


def _spark_progress(query: Any) -> list[tuple[int, float]]:
    return [
        (p["numInputRows"], p["durationMs"]["triggerExecution"] / 1000)
        for p in query.recentProgress
        if p["numInputRows"]
    ]


def weir_speed(
    spark: Any, data: Path, folder: Path, args: argparse.Namespace, groupings: Any
) -> tuple[float, Any]:
    """Return the rows per second of two counts with these groupings, and a digest of their result."""
    import weir

    first, second = groupings
    app = (
        weir.source(_stream(spark, data))
        .keyed("k1", weir.Count(emit="rows"), name="A", routing=first)
        .keyed("k2", weir.Count(), name="B", routing=second)
    )
    # whole rows travel, payload and all, as they do in an engine that cannot see into operators
    query = app.start(
        str(folder),
        servers=args.servers,
        prune=False,
        trigger={"availableNow": True},
        execution=args.execution,
    )
    query.await_termination()
    measured = _spark_progress(query.spark_query)[args.warm_up :]
    speed = sum(r for r, _ in measured) / sum(s for _, s in measured)
    answer = [_digest(query.state(name), "count") for name in ("A", "B")]
    return speed, answer


def _weir_hash(spark: Any, data: Path, folder: Path, args: argparse.Namespace) -> tuple[float, Any]:
    return weir_speed(spark, data, folder, args, (None, None))


def _weir_table(spark: Any, data: Path, folder: Path, args: argparse.Namespace) -> tuple[float, Any]:
    return weir_speed(spark, data, folder, args, fitting_tables(args.keys, args.servers))


def _digest(frame: Any, value: str) -> tuple[int, int]:
    from pyspark.sql import functions as F

    row = frame.agg(F.count("*").alias("keys"), F.sum(value).alias("total")).first()
    return int(row["keys"]), int(row["total"])


def _two_shuffles(spark: Any, data: Path, folder: Path, args: argparse.Namespace) -> tuple[float, Any]:
    from pyspark.sql import functions as F

    def batch(frame: Any, number: int) -> None:
        frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        once = frame.repartition(args.servers, "k1")
        # the condition holds for every row, but keeps Spark from folding the two shuffles into one
        twice = once.where(F.rand() >= 0).repartition(args.servers, "k2")
        twice.write.format("noop").mode("overwrite").save()

    stream = _stream(spark, data).writeStream.foreachBatch(batch)
    query = stream.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    measured = _spark_progress(query)[args.warm_up :]
    return sum(r for r, _ in measured) / sum(s for _, s in measured), None


def _spark_chain(spark: Any, data: Path, folder: Path, args: argparse.Namespace) -> tuple[float, Any]:
    chained = chain(_stream(spark, data))
    counts: dict[str, int] = {}

    def collect(frame: Any, number: int) -> None:
        counts.update({r["k2"]: r["n"] for r in frame.collect()})

    stream = chained.writeStream.outputMode("update").foreachBatch(collect)
    query = stream.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    measured = _spark_progress(query)[args.warm_up :]
    speed = sum(r for r, _ in measured) / sum(s for _, s in measured)
    first = spark.read.schema(SCHEMA).parquet(str(data)).groupBy("k1").count()
    return speed, [_digest(first, "count"), (len(counts), sum(counts.values()))]


def _state_growth(spark: Any, work: Path, console: Console, servers: int) -> float:
    """Batch time over a large state against a small one, 10,000 keys touched by each batch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import weir

    def measure(stored: int) -> float:
        data, folder = work / f"growth-{stored}", work / f"growth-state-{stored}"
        data.mkdir()
        rng = np.random.default_rng(1)
        everything = pa.array(np.arange(stored)).cast(pa.string())
        pq.write_table(pa.table({"k": everything}), data / "00000.parquet")
        for number in range(1, 13):
            touched = rng.choice(stored, 10_000, replace=False)
            pq.write_table(
                pa.table({"k": pa.array(touched).cast(pa.string())}), data / f"{number:05d}.parquet"
            )
        stream = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).parquet(str(data))
        app = weir.source(stream).keyed("k", weir.Count(), name="A")
        query = app.start(str(folder), servers=servers, trigger={"availableNow": True})
        query.await_termination()
        return statistics.mean(p.seconds.batch or 0.0 for p in query.recent_progress[2:])

    began = time.perf_counter()
    small = [measure(10_000)]
    large = [measure(1_000_000)]
    ratio = statistics.median(large) / statistics.median(small)
    console.print(f"state growth: {ratio:.2f} ({time.perf_counter() - began:.0f} s)")
    return ratio
