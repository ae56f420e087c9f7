"""Files written by key, listed by Spark: the first hop becomes as local as the data allow."""

from __future__ import annotations

import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
from support import rows_of

SERVERS, PARTS, ROWS, STRAYS = 3, 6, 200, 0.1
SCHEMA = "sensor string, room string, v long"
HOP = "files → sensors"


def write(folder, batches):
    """Write files, in a folder per group of sensors; return the share of rows that have to leave their server."""
    rng = np.random.default_rng(3)
    apart = []
    for batch in batches:
        for part in range(PARTS):
            group = np.where(rng.random(ROWS) < STRAYS, rng.integers(0, PARTS, ROWS), part)
            sensor = group + PARTS * rng.integers(0, 8, ROWS)
            table = pa.table(
                {
                    "sensor": pa.array([f"s{s}" for s in sensor]),
                    "room": pa.array([f"r{g}" for g in group]),
                    "v": pa.array(rng.integers(0, 100, ROWS)),
                }
            )
            path = folder / f"group={part}" / f"{batch}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + 100 * batch + part,) * 2)
            apart.append((group % SERVERS != part % SERVERS).mean())
    return float(np.mean(apart))


def check(spark, query, folder):
    plain = spark.read.parquet(str(folder))
    assert rows_of(query.state("sensors")) == rows_of(plain.groupBy("sensor").count())
    assert rows_of(query.state("rooms")) == rows_of(plain.groupBy("room").sum("v"))


def test_partitions_come_to_their_keys_while_servers_come_and_go(spark, tmp_path, checkpoint):
    folder = tmp_path / "data"
    apart = write(folder, range(5))
    reader = spark.readStream.option("maxFilesPerTrigger", PARTS)
    app = (
        weir.files(reader, str(folder), schema=SCHEMA)
        .keyed("sensor", weir.Count(emit="rows"), name="sensors")
        .keyed("room", weir.Aggregate(total="sum(v)"), name="rooms")
    )
    ready = threading.Event()

    def sink(frame, batch):
        ready.wait(60)
        if batch == 1:
            query.reconfigure(wait=True)
        if batch == 3:
            query.scale_in(2)

    routing = weir.Locality(period=None)
    query = app.start(checkpoint, servers=SERVERS, routing=routing, sink=sink, trigger={"availableNow": True})
    ready.set()
    query.await_termination()
    check(spark, query, folder)
    first, _, _, settled, alone = [p.edges[HOP] for p in query.recent_progress]
    rows = PARTS * ROWS
    assert [p.rows for p in query.recent_progress] == [rows] * 5
    assert first.local + first.remote == settled.local + settled.remote == rows
    allowed = 1 - apart * rows / first.remote
    assert 1 - settled.remote / first.remote > 0.95 * allowed
    assert len(query.routing_table("files")) == PARTS
    assert f"edge {HOP}: LAR" in query.describe()
    assert [len(p.servers) for p in query.recent_progress] == [3, 3, 3, 3, 1]
    assert alone.locality == 1.0
