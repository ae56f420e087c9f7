"""What a user of Spark does to run a stateful query on another number of partitions, and how long that takes.

The number of partitions is part of a checkpoint. Spark offers two ways, and the stream waits in both: stop the query,
let a batch that was cut off end, have ``repartition`` write its state anew, and start it again; or stop it, and have a
query with a new checkpoint read everything again from the beginning. One aggregate in the JVM, with RocksDB; Spark does
not chain two of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from weir_evaluation.bench.elastic_feed import SCHEMA, Feed

PARTITIONS = "spark.sql.shuffle.partitions"
STATE = "spark.sql.streaming.stateStore"
SETTINGS = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}


def measure(
    spark: Any, work: Path, keys: int, servers: list[int], rows: int, batches: int, console: Console
) -> list[dict[str, Any]]:
    """Change the partitions of a query with so many keys, both ways; return a record per change.

    ``interruption_s`` is from the order to stop until the batch that had come last is through, without what a batch
    takes anyway.
    """
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    feed = Feed(work / "data", keys)
    checkpoint = work / "checkpoint"
    query = _start(spark, feed, checkpoint, servers[0], 1)
    for _ in feed.fill():
        query.processAllAvailable()
    out = []
    for before, after in itertools.pairwise(servers):
        took = []
        for _ in range(batches):
            feed.some(rows)
            began = time.perf_counter()
            query.processAllAvailable()
            took.append(time.perf_counter() - began)
        median = statistics.median(took)
        for way in ("repartitioned", "replayed"):
            feed.some(rows)
            began = time.perf_counter()
            query.stop()
            if way == "repartitioned":
                if _last(checkpoint / "offsets") > _last(checkpoint / "commits"):  # else it is refused
                    _start(spark, feed, checkpoint, before, 1, availableNow=True).awaitTermination()
                spark._streamingCheckpointManager.repartition(str(checkpoint), after)
                query = _start(spark, feed, checkpoint, after, 1)
            else:  # a part of the files per batch would only take longer
                checkpoint = work / f"checkpoint-{after}"
                query = _start(spark, feed, checkpoint, after, None)
            feed.some(rows)
            query.processAllAvailable()
            interruption = time.perf_counter() - began - 2 * median
            if way == "replayed":  # goes on as before
                query.stop()
                query = _start(spark, feed, checkpoint, after, 1)
            lost, doubled = _compare(spark, checkpoint, feed)
            out.append(
                {
                    "system": f"Spark {spark.version}",
                    "way": way,
                    "keys": keys,
                    "rows_read": int(feed.counts.sum()),
                    "state_mb": _megabytes(checkpoint),
                    "from": before,
                    "to": after,
                    "median_s": median,
                    "interruption_s": interruption,
                    "lost": lost,
                    "doubled": doubled,
                }
            )
            console.print(
                f"  Spark, {before} → {after} partitions, {way}: interrupted for {interruption:.2f} s"
            )
    query.stop()
    return out


def _start(
    spark: Any, feed: Feed, checkpoint: Path, partitions: int, files: int | None, **trigger: Any
) -> Any:
    spark.conf.set(PARTITIONS, str(partitions))
    reader = spark.readStream.schema(SCHEMA)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    aggregated = reader.parquet(str(feed.folder)).groupBy("one").agg({"*": "count", "note": "max"})
    stream = aggregated.writeStream.outputMode("update").format("noop")
    if trigger:
        stream = stream.trigger(**trigger)
    return stream.option("checkpointLocation", str(checkpoint)).start()


def _last(log: Path) -> int:
    """Return the number of the last batch in one of Spark's logs."""
    return max((int(file.name) for file in log.iterdir() if file.name.isdigit()), default=-1)


def _compare(spark: Any, checkpoint: Path, feed: Feed) -> tuple[int, int]:
    state = spark.read.format("statestore").load(str(checkpoint))
    read = state.selectExpr("key.one AS one", "value.count AS n").toArrow()
    found = np.zeros(feed.keys, np.int64)
    np.add.at(found, read["one"].to_numpy(), read["n"].to_numpy())
    return int(np.maximum(feed.counts - found, 0).sum()), int(np.maximum(found - feed.counts, 0).sum())


def _megabytes(checkpoint: Path) -> float:
    return sum(f.stat().st_size for f in (checkpoint / "state").rglob("*") if f.is_file()) / 1e6
