"""An application with four tables of Spark's, to be killed: run as a script by the tests, on a Spark with connectors.

python table_app.py FOLDER [POINT BATCH SINK]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import sink_app

import weir
from weir.faults import watching
from weir.sinks import SparkTable
from weir.spark.session import embedded
from weir_evaluation.connectors import settings

# some keys replace rows, the others add them
TABLES = {
    "delta_rows": [],
    "delta_last": ["place"],
    "weir.shop.iceberg_rows": [],
    "weir.shop.iceberg_last": ["place"],
}
COLUMNS = "place string, rows bigint, total bigint"


def session(folder: str) -> Any:
    return embedded("local[3]", **settings(folder), **{"spark.driver.memory": "1g"})


def make_tables(spark: Any) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS weir.shop")
    for name in TABLES:
        where = f"USING delta LOCATION '{spark.conf.get('spark.sql.warehouse.dir')}/{name}'"
        kind = "USING iceberg" if "iceberg" in name else where  # the session's own catalog forgets its tables
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({COLUMNS}) {kind}")


def start(spark: Any, folder: str) -> Any:
    """Start the query, which takes a file per batch and ends with the last one."""
    data = Path(folder, "data")
    if not data.is_dir():
        data.mkdir()
        for number, batch in enumerate(sink_app.BATCHES):
            (data / f"{number}.json").write_text("\n".join(map(json.dumps, batch)))
            os.utime(data / f"{number}.json", (number, number))  # the order in which Spark takes them
    stream = spark.readStream.schema("place string, n long").option("maxFilesPerTrigger", 1).json(str(data))
    app = weir.source(stream).keyed("place", weir.Aggregate(rows="count", total="sum(n)"), name="places")
    sinks = [SparkTable(name, keys=keys) for name, keys in TABLES.items()]
    return app.start(f"{folder}/checkpoint", servers=1, sink=sinks, trigger={"availableNow": True})


def content(spark: Any, name: str) -> list[tuple[str, int, int]]:
    return sorted(map(tuple, spark.table(name).select("place", "rows", "total").collect()))


def truth(keys: list[str]) -> list[tuple[str, int, int]]:
    updates, last = sink_app.truth()
    return sorted((place, *values) for place, values in last.items()) if keys else updates


def main(folder: str, point: str = "", batch: str = "", sink: str = "") -> None:
    spark, reached = session(folder), []

    def die(where: str, number: int) -> None:
        reached.extend([where] if (where, str(number)) == (point, batch) else [])
        if len(reached) == int(sink or 0) + 1:
            os.killpg(0, signal.SIGKILL)  # Spark, too

    make_tables(spark)
    with watching(die):
        query = start(spark, folder)
        query.await_termination()
    query.stop()
    for name, keys in TABLES.items():
        assert content(spark, name) == truth(keys), name
    left = [str(row[0]) for row in spark.sql("SELECT name FROM weir.shop.iceberg_rows.refs").collect()]
    assert left == ["main"]
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
