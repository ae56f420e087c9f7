"""Queries that change their servers while things die: run as a script, prints one JSON line.

python scaling_app.py cluster DATA CHECKPOINT     a million keys, 2 → 4 → 3; an executor dies in the first change
python scaling_app.py executors DATA CHECKPOINT   2 → 1 → 2 servers on executors that go and come with them
"""

from __future__ import annotations

import json
import sys
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc
from cluster_app import kill_my_executor_once

import weir
from weir.spark.executors import executors as known
from weir.spark.session import embedded

POSTS = "place string, topic string, n long"
NUMBERS = "key long, killer boolean"


def start(app, checkpoint, steps):
    holder, ready = {}, threading.Event()

    def sink(frame, batch):
        ready.wait(60)
        if batch in steps:
            steps[batch](holder["query"])

    holder["query"] = app.start(checkpoint, servers=2, sink=sink, trigger={"availableNow": True})
    ready.set()
    holder["query"].await_termination()
    return holder["query"]


def cluster(data: str, checkpoint: str) -> None:
    spark = embedded(
        "local-cluster[2,2,1024]",
        **{
            "spark.task.maxFailures": "8",
            "spark.stage.maxConsecutiveAttempts": "10",
            "spark.executor.memory": "1g",
            "spark.driver.memory": "1g",
            "spark.excludeOnFailure.enabled": "false",
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
        },
    )
    stream = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(data)

    def dies(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(batch.column("killer")).as_py():
            kill_my_executor_once(f"{checkpoint}-killed")
        return batch

    # behind a keyed operator, so that it dies in a step, when states have left and some have arrived
    app = (
        weir.source(stream)
        .keyed("key", weir.Count(emit="rows"), name="counts")
        .map_batches(dies, name="dies", routing=weir.Shuffle())
        .keyed("killer", weir.Count(), name="killers")
    )
    query = start(app, checkpoint, {1: lambda q: q.scale_out(2), 3: lambda q: q.scale_in(1)})
    plain = spark.read.schema(NUMBERS).parquet(data).groupBy("key").count()
    ours = query.state("counts").toDF("key", "ours")
    differ = plain.join(ours, "key", "full_outer").where("count is distinct from ours").count()
    answer = {
        "keys": plain.count(),
        "differ": differ,
        "killers": sorted(map(list, query.state("killers").collect())),
        "scalings": [scaling.to_dict() for scaling in query.scalings],
        "state_keys": [p.state_keys["counts"] for p in query.recent_progress],
    }
    print(json.dumps(answer))
    spark.stop()


def executors(data: str, checkpoint: str) -> None:
    spark = embedded(
        "local-cluster[2,1,1024]", **{"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    )
    stream = spark.readStream.schema(POSTS).option("maxFilesPerTrigger", 1).parquet(data)
    app = weir.source(stream).keyed("place", weir.Count(), name="places")
    living, refused = {}, []

    def too_many(query) -> None:
        living["start"] = [e.id for e in known(spark)]
        try:
            query.scale_out(1, timeout=2)  # no worker is left for it
        except weir.errors.EngineError as error:
            refused.append(str(error))

    def count_one(query) -> None:
        end = time.monotonic() + 30
        while len(known(spark)) > 1 and time.monotonic() < end:
            time.sleep(0.1)
        living["after in"] = [e.id for e in known(spark)]
        query.scale_out(1, timeout=60)

    query = start(app, checkpoint, {0: too_many, 1: lambda q: q.scale_in(1), 3: count_one})
    living["after out"] = [e.id for e in known(spark)]
    answer = {
        "living": living,
        "refused": refused,
        "scalings": [scaling.to_dict() for scaling in query.scalings],
        "servers": [len(p.servers) for p in query.recent_progress],
        "places": sorted(map(list, query.state("places").collect())),
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    {"cluster": cluster, "executors": executors}[sys.argv[1]](*sys.argv[2:])
