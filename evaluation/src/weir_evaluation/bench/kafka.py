"""Messages of a topic beside the same rows in files: rows per second, and how local the first hop becomes.

With ``--end-to-end``: from topic to topic, exactly once (:mod:`weir_evaluation.bench.kafka_latency`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

import weir
from weir.messages.payloads import Payload
from weir_evaluation.bench import kafka_latency

HELP = "the same rows through weir.kafka and weir.files: rows per second, first hop's locality"
SCHEMA = pa.schema([("k1", pa.string()), ("k2", pa.string()), ("n", pa.int64())])


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=400_000, help="rows per micro-batch")
    parser.add_argument("--batches", type=int, default=4, help="batches, of which the first warms up")
    parser.add_argument("--partitions", type=int, default=24, help="partitions; each holds keys of its own")
    parser.add_argument(
        "--strays", type=float, default=0.1, help="share of rows in somebody else's partition"
    )
    parser.add_argument("--keys", type=int, default=2_400, help="distinct keys of each operator")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--master", default="local[4]", help="where Spark runs")
    parser.add_argument("--end-to-end", action="store_true", help="instead: topic to topic, exactly once")
    parser.add_argument("--system", action="append", choices=list(kafka_latency.GUARANTEES))
    parser.add_argument("--backlog", type=int, default=400_000, help="rows that wait, end to end")
    parser.add_argument("--seconds", type=float, default=10.0, help="at each rate, end to end")
    parser.add_argument("--progress", metavar="FILE", help="what Weir's batches did, end to end")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded
    from weir_evaluation import jars
    from weir_evaluation.brokers import Kafka

    work = Path(tempfile.mkdtemp(prefix="weir-kafka-"))
    spark = embedded(args.master, **{"spark.driver.memory": "2g"})
    result: dict[str, Any] = {n: getattr(args, n) for n in ("rows", "batches", "servers", "strays")}
    answers = []
    try:
        jars.fetch("kafka")
        with Kafka() as brokers:
            if args.end_to_end:
                return kafka_latency.measure(brokers, work, args, console)
            for name in ("files", "json", "arrow"):
                source = (
                    _Files(spark, work / "data", args) if name == "files" else _Topic(brokers, name, args)
                )
                result[name], answer = _measure(source, work / name, args)
                answers.append(answer)
                console.print(f"{name}: {result[name]['rows_per_second']:,.0f} rows/s")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()
    result["equal"] = all(answer == answers[0] for answer in answers)
    for name in ("json", "arrow"):
        result[name]["of_files"] = result[name]["rows_per_second"] / result["files"]["rows_per_second"]
    return result


def show(result: dict[str, Any], console: Console) -> None:
    if "systems" in result:
        kafka_latency.show(result, console)
        return
    about = f"{result['rows']:,} rows per batch, {result['servers']} servers, {result['strays']:.0%} strays"
    table = RichTable(title=about)
    for column in ("", "rows/s", "of files", "first hop's locality: hash", "learnt"):
        table.add_column(column, justify="right" if column else "left")
    for name, label in (("files", "Parquet files"), ("json", "Kafka, JSON"), ("arrow", "Kafka, Arrow")):
        one = result[name]
        ratio = f"{one['of_files']:.2f} ×" if "of_files" in one else ""
        first, last = (f"{one['locality'][when]:.2f}" for when in ("hash", "learnt"))
        table.add_row(label, f"{one['rows_per_second']:,.0f}", ratio, first, last)
    console.print(table)
    console.print("results equal" if result["equal"] else "[red]results differ[/red]")


def _rows(args: argparse.Namespace, batch: int) -> list[pa.Table]:
    """Return the rows of each partition in a batch; the same for every source."""
    rng = np.random.default_rng(batch)
    out, each = [], -(-args.rows // args.partitions)
    for partition in range(args.partitions):
        away = rng.random(each) < args.strays
        home = np.where(away, rng.integers(0, args.partitions, each), partition)
        keys = [
            home + args.partitions * rng.integers(0, args.keys // args.partitions, each) for _ in range(2)
        ]
        columns = [*(pa.array(k).cast(pa.string()) for k in keys), pa.array(rng.integers(0, 1000, each))]
        out.append(pa.Table.from_arrays(columns, schema=SCHEMA))
    return out


class _Files:
    name = "files"

    def __init__(self, spark: Any, folder: Path, args: argparse.Namespace) -> None:
        self.args, self.folder = args, folder
        folder.mkdir()
        reader = spark.readStream.option("maxFilesPerTrigger", args.partitions)
        self.stream = weir.files(reader, str(folder), schema=SCHEMA)

    def write(self, batch: int) -> None:
        for partition, table in enumerate(_rows(self.args, batch)):
            path = self.folder / f"part={partition}" / f"{batch:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            hidden = path.with_name(f".{path.name}")
            pq.write_table(table, hidden)
            os.utime(hidden, (1_700_000_000 + 1000 * batch + partition,) * 2)
            hidden.rename(path)


class _Topic:
    name = "kafka"

    def __init__(self, brokers: Any, format: str, args: argparse.Namespace) -> None:
        self.args, self.brokers, self.payload = args, brokers, Payload(format, SCHEMA)
        self.topic = brokers.topic(args.partitions)
        self.stream = weir.kafka(brokers.servers, self.topic, SCHEMA, format=format)

    def write(self, batch: int) -> None:
        for partition, table in enumerate(_rows(self.args, batch)):
            whole = table.combine_chunks().to_batches()[0]
            self.brokers.send(self.topic, self.payload.encode(whole), partition)


def _measure(source: Any, checkpoint: Path, args: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Return rates and locality; each batch is written before it is asked for, so that only reading is measured."""
    app = source.stream.keyed("k1", weir.Count(emit="rows"), name="A").keyed(
        "k2", weir.Aggregate(total="sum(n)"), name="B"
    )
    routing = weir.Locality(period=None)
    query = app.start(str(checkpoint), servers=args.servers, routing=routing)
    try:
        query.process_all_available()
        measured = []
        for batch in range(args.batches + 1):
            source.write(batch)
            before = -1 if query.progress is None else query.progress.batch
            query.process_all_available()
            new = [p for p in query.recent_progress if p.batch > before and p.rows]
            measured.append((sum(p.rows for p in new), sum(p.seconds.batch or 0.0 for p in new), new[-1]))
            if batch == args.batches - 1:
                query.reconfigure(wait=True)
        answer = [sorted(map(tuple, query.state(name).collect())) for name in ("A", "B")]
    finally:
        query.stop()
    timed = measured[1 : args.batches]  # the first warms up, the last moves keys
    hops = [p.edges[f"{source.name} → A"].locality for _, _, p in measured]
    rate = sum(rows for rows, _, _ in timed) / sum(seconds for _, seconds, _ in timed)
    return {"rows_per_second": rate, "locality": {"hash": hops[args.batches - 1], "learnt": hops[-1]}}, answer
