"""A query over files that servers read, to be killed: run as a script by the recovery tests.

python files_app.py DATA CHECKPOINT
"""

from __future__ import annotations

import json
import sys
import threading

import weir
from weir.spark.session import embedded


def main(data: str, checkpoint: str) -> None:
    spark = embedded("local[2]", **{"spark.driver.memory": "1g"})
    reader = spark.readStream.option("maxFilesPerTrigger", 4)
    ready = threading.Event()

    def sink(frame, batch):
        ready.wait(60)
        query.reconfigure(wait=True)  # so that keys and partitions are on the move in the next batch

    app = (
        weir.files(reader, data, schema="place string, topic string, n long")
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Aggregate(total="sum(n)"), name="topics")
    )
    routing = weir.Locality(period=1, forecast=None)
    query = app.start(checkpoint, servers=3, routing=routing, sink=sink, trigger={"availableNow": True})
    ready.set()
    query.await_termination()
    answer = {name: sorted(map(list, query.state(name).collect())) for name in ("places", "topics")}
    answer["progress"] = [[p["batch"], p["rows"]] for p in query.recent_progress]
    answer["files"] = len(query.routing_table("files"))
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
