"""A query with weights, to be killed: run as a script by the test of replays.

    python weighted_app.py DATA CHECKPOINT

Prints, as JSON, the state and what each batch sent to whom.
"""

from __future__ import annotations

import json
import sys

import weir
from weir.spark.session import embedded

SCHEMA = "place string, topic string, n long"


def main(data: str, checkpoint: str) -> None:
    spark = embedded("local[2]", **{"spark.driver.memory": "1g"})
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(data)
    app = (
        weir.source(stream)
        .map(lambda batch: batch, name="spread", grouping=weir.Weighted(profile="measure"))
        .keyed("topic", weir.Count(), name="topics", grouping=weir.Weighted(weir.Hash(), profile="measure"))
    )
    query = app.start(checkpoint, servers=3, trigger={"availableNow": True})
    query.await_termination()
    print(json.dumps({"topics": sorted(map(list, query.state("topics").collect()))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
