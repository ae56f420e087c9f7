"""Live servers where Spark allocates executors: none before the query, fewer when servers have left.

python allocation_app.py DATA CHECKPOINT
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import weir
from support import stream
from weir.spark.executors import executors
from weir.spark.session import embedded

SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "2s",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


def main(data: str, checkpoint: str) -> None:
    spark = embedded("local-cluster[4,1,1024]", **SETTINGS)
    query = (
        weir.source(stream(spark, data))
        .count("place", name="places")
        .start(checkpoint, servers=2, execution="live")
    )
    told = []

    def batch(number: int) -> None:
        (Path(data) / f".{number}.parquet").rename(Path(data) / f"{number}.parquet")
        query.process_all_available()
        last = query.progress
        told.append([last.rows, last.execution, len(last.servers)])

    batch(0)
    end = time.monotonic() + 60
    while len(executors(spark)) > 2:  # nobody reads the source meanwhile; servers stay where they are
        assert time.monotonic() < end
        time.sleep(0.2)
    batch(1)
    query.scale_out(servers=1)
    batch(2)
    query.scale_in(servers=2)
    batch(3)
    counts = sorted([row["place"], row["count"]] for row in query.state("places").collect())
    refused = ""
    try:
        query.scale_out(servers=8)
    except weir.errors.EngineError as error:
        refused = str(error)
    query.stop()
    spark.stop()
    print(json.dumps({"told": told, "counts": counts, "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
