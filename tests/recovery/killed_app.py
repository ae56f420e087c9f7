"""A query to be killed: run as a script by the recovery tests.

    python killed_app.py DATA CHECKPOINT DELIVERIES

Files are read where their partition lives; keys and partitions move in every batch, and batch 2 adds a server. Every
delivery to the sink is written to a file of its own, so that repeated ones can be compared.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

import weir
from weir.spark.session import embedded


@dataclass
class Total:
    rows: int = 0
    total: int = 0


class Totals(weir.Process):
    state = Total
    output = {"topic": "string", "rows": "long", "total": "long"}

    def process(self, key, rows, state):
        state.rows += len(rows)
        state.total += sum(row.n for row in rows)
        yield key, state.rows, state.total


def main(data: str, checkpoint: str, deliveries: str) -> None:
    spark = embedded("local[2]", **{"spark.driver.memory": "1g"})
    reader = spark.readStream.option("maxFilesPerTrigger", 4)
    Path(deliveries).mkdir(exist_ok=True)
    ready = threading.Event()

    def sink(frame, batch):
        ready.wait(60)
        query.reconfigure(wait=True)  # so that state is on the move in the next batch
        if batch == 1:
            query.scale_out(1, share_slots=True)
        rows = sorted(map(list, frame.collect()))
        (Path(deliveries) / f"{batch}-{uuid.uuid4().hex}.json").write_text(json.dumps(rows))

    app = (
        weir.files(reader, data, schema="place string, topic string, n long")
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", Totals(), name="topics")
    )
    routing = weir.Locality(period=1, forecast=None)
    query = app.start(checkpoint, servers=2, routing=routing, sink=sink, trigger={"availableNow": True})
    ready.set()
    query.await_termination()
    answer = {name: sorted(map(list, query.state(name).collect())) for name in ("places", "topics")}
    answer["batches"] = query.progress.batch + 1
    answer["rows"] = query.progress.rows
    answer["servers"] = len(query.progress.servers)
    answer["files"] = len(query.routing_table("files"))
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
