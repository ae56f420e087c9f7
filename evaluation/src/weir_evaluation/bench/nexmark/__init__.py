"""Nexmark: queries of an auction house on Weir, in Spark's SQL and on Spark's Python operators, side by side."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from weir_evaluation.bench.nexmark.generate import SCHEMAS, Shape, ends, write
from weir_evaluation.bench.nexmark.queries import QUERIES, Query
from weir_evaluation.bench.nexmark.results import Collector, agree
from weir_evaluation.bench.peers.meter import cpu_seconds, descendants

HELP = "Nexmark's queries: Weir beside Spark SQL and transformWithStateInPandas, results compared"
SYSTEMS = ("weir", "spark_sql", "spark_python")
STARTS = 4  # tries to run a query of Spark's
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=1_000_000, help="persons, auctions and bids in all")
    parser.add_argument("--batches", type=int, default=5, help="micro-batches; the first one warms up")
    parser.add_argument(
        "--servers", type=int, default=4, help="servers, and partitions of Spark's own operators"
    )
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of event time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--query", action="append", choices=list(QUERIES), help="some queries (default: all)")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="some systems (default: all)")


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    from weir.spark.session import embedded

    work = Path(tempfile.mkdtemp(prefix="weir-nexmark-"))
    spark = None
    try:
        shape = Shape(args.events, -(-args.events // args.batches), args.rate, args.seed)
        rows = write(work / "data", shape)
        console.print(f"{args.events:,} events in {args.batches} micro-batches")
        settings = {
            "spark.sql.shuffle.partitions": str(args.servers),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        }
        spark = embedded(f"local[{args.servers + 2}]", "nexmark", **settings)
        return [
            _query(spark, work, QUERIES[name], shape, rows, args, console) for name in args.query or QUERIES
        ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if spark is not None:
            spark.stop()


def exit_code(result: list[dict[str, Any]]) -> int:
    return 0 if all(row["equal"] for row in result) else 1


def show(result: list[dict[str, Any]], console: Console) -> None:
    table = RichTable(title="rows per second (CPU seconds per million rows)")
    for name in ("query", *SYSTEMS, "weir / python", "weir / SQL", "equal"):
        table.add_column(name, justify="right")
    for row in result:
        cells = ["–" if row[s] is None else f"{row[s]:,.0f} ({row['cpu_s_per_m'][s]:.1f})" for s in SYSTEMS]
        ratios = [
            f"{row['weir'] / row[s]:.2f} ×" if row["weir"] and row[s] else "–"
            for s in ("spark_python", "spark_sql")
        ]
        table.add_row(row["query"], *cells, *ratios, "yes" if row["equal"] else "NO")
    console.print(table)


def _query(
    spark: Any,
    work: Path,
    query: Query,
    shape: Shape,
    rows: dict[str, list[int]],
    args: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    """Run one query on each system, and compare what came out."""
    ways: dict[str, Callable[..., Any] | None] = {
        "weir": query.weir,
        "spark_sql": query.sql,
        "spark_python": query.python,
    }
    out: dict[str, Any] = {"query": query.name, "what": query.what, "note": query.note, "cpu_s_per_m": {}}
    collectors: dict[str, Collector] = {}
    total = sum(sum(rows[name]) for name in query.streams)
    for system in SYSTEMS:
        way = ways[system]
        out[system] = out["cpu_s_per_m"][system] = None
        if way is None or (args.system and system not in args.system):
            continue
        frames = query.prepare({name: _stream(spark, work / "data", name) for name in query.streams})
        collectors[system] = Collector(query, ends(shape))
        folder = work / f"{query.name}-{system}"
        before = _cpu()
        began = time.perf_counter()
        seconds = (_weir if system == "weir" else _spark)(
            way(frames), collectors[system], folder, query, args
        )
        out["cpu_s_per_m"][system] = (_cpu() - before) / total * 1e6
        measured = [sum(rows[name][batch] for name in query.streams) for batch in range(1, args.batches)]
        out[system] = sum(measured) / sum(seconds[1 : args.batches])
        took = time.perf_counter() - began
        console.print(
            f"{query.name} {system}: {out[system]:,.0f} rows/s ({took:.0f} s, {len(seconds)} batches)"
        )
        shutil.rmtree(folder, ignore_errors=True)
    out["rows_out"] = {system: len(collector.rows()) for system, collector in collectors.items()}
    out["equal"] = agree(query, list(collectors.values()))
    console.print(f"{query.name}: {out['rows_out']} rows, {'equal' if out['equal'] else 'NOT EQUAL'}")
    return out


def _stream(spark: Any, data: Path, name: str) -> Any:
    reader = spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(data / name))


def _weir(app: Any, collect: Collector, folder: Path, query: Query, args: argparse.Namespace) -> list[float]:
    running = app.start(str(folder), servers=args.servers, sink=collect, trigger={"availableNow": True})
    running.await_termination()
    return _durations(running.spark_query)


def _spark(
    frame: Any, collect: Collector, folder: Path, query: Query, args: argparse.Namespace
) -> list[float]:
    from pyspark.errors import StreamingQueryException

    stream = frame.writeStream.outputMode(query.mode).foreachBatch(collect).trigger(availableNow=True)
    for attempt in range(STARTS):
        running = stream.option("checkpointLocation", str(folder / str(attempt))).start()
        try:
            running.awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to appear, which a busy machine may not keep
            if "failed to connect back" not in str(error) or attempt == STARTS - 1:
                raise
            collect.forget()
    return _durations(running)


def _durations(running: Any) -> list[float]:
    """Return the seconds of each micro-batch that had rows."""
    return [p["durationMs"]["triggerExecution"] / 1000 for p in running.recentProgress if p["numInputRows"]]


def _cpu() -> float:
    """Return the CPU seconds of this process, of Spark and of its Python workers, so far."""
    own = os.getpid()
    return cpu_seconds([own, *descendants(own)])
