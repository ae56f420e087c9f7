"""A query with weights, to be killed: run as a script by the test of replays.

python weighted_app.py DATA CHECKPOINT
"""

from __future__ import annotations

import sys

import weir
from weir.spark.session import embedded

SCHEMA = "place string, topic string, n long"


def start(spark, data: str, checkpoint: str) -> weir.Query:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(data)
    app = (
        weir.source(stream)
        .map_batches(lambda batch: batch, name="spread", routing=weir.Weighted(profile="measure"))
        .keyed("topic", weir.Count(), name="topics", routing=weir.Weighted(weir.Hash(), profile="measure"))
    )
    query = app.start(checkpoint, servers=3, trigger={"availableNow": True})
    query.await_termination()
    return query


if __name__ == "__main__":
    start(embedded("local[2]", **{"spark.driver.memory": "1g"}), *sys.argv[1:])
