"""Two counts in Spark's own words: ``transformWithStateInPandas`` twice, RocksDB, a checkpoint per micro-batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

SCHEMA = "k1 string, k2 string, payload binary"


def chain(rows: Any) -> Any:
    """The two operators on a stream of rows."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class CountAndPass(StatefulProcessor):  # type: ignore[misc]
        """Counts a key's rows and passes them on."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            frames = list(rows)
            before = self.count.get()
            self.count.update(((before[0] if before else 0) + sum(len(f) for f in frames),))
            yield from frames

        def close(self) -> None:
            pass

    class CountAndTell(CountAndPass):
        """Counts a key's rows and tells the new count, once per key and micro-batch."""

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            before = self.count.get()
            n = (before[0] if before else 0) + sum(len(f) for f in rows)
            self.count.update((n,))
            yield pd.DataFrame({"k2": [key[0]], "n": [n]})

    return (
        rows.groupBy("k1")
        .transformWithStateInPandas(CountAndPass(), SCHEMA, "update", "none")
        .groupBy("k2")
        .transformWithStateInPandas(CountAndTell(), "k2 string, n long", "update", "none")
    )


def main() -> None:
    import told
    from pyspark.sql import SparkSession

    order = told.job()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    workers, work = order["workers"], order["work"]
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(workers),
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    builder = SparkSession.builder.master(f"local[{workers}]").appName("two counts")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", order["files_per_batch"])
        .parquet(order["data"])
    )
    stream = chain(rows).writeStream.outputMode("update").format("noop")
    checkpoint = f"{work}/checkpoint"
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    told.micro_batches(work, query.recentProgress)
    told.detail(work, exchanged_bytes=told.shuffled_bytes(spark))
    # the plan numbers its stateful operators from the sink: B is 0, A is 1
    for operator, number in (("A", 1), ("B", 0)):
        state = spark.read.format("statestore").option("path", checkpoint).option("operatorId", number)
        counts = told.Counts(work, operator)
        for key, count in (
            state.option("stateVarName", "count").load().selectExpr("key.*", "value.n").collect()
        ):
            counts.add(key, count)
    spark.stop()


if __name__ == "__main__":
    main()
