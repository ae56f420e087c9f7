"""Files written by key, on real Spark: the first hop becomes as local as the data allow."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_scaling import NOW, into, out, scaling

import weir
from support import rows_of
from weir.cli.main import main

SERVERS, PARTS, ROWS, STRAYS = 3, 9, 250, 0.1
SCHEMA = "sensor string, room string, v long"
HOP = "files → sensors"


def write(folder, batches):
    """A folder per group of sensors; returns the share of rows that have to leave their server."""
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


def start(spark, folder, checkpoint, place):
    reader = spark.readStream.option("maxFilesPerTrigger", PARTS)
    app = (
        weir.files(reader, str(folder), schema=SCHEMA, place=place)
        .keyed("sensor", weir.Count(), name="sensors")
        .keyed("room", weir.Aggregate(total="sum(v)"), name="rooms")
    )
    ready = threading.Event()

    def sink(frame, batch):
        ready.wait(60)
        if batch == 1:
            query.reconfigure(wait=True)

    query = app.start(
        checkpoint,
        servers=SERVERS,
        routing=weir.Locality(period=None),
        sink=sink,
        trigger={"availableNow": True},
    )
    ready.set()
    query.await_termination()
    return query


@pytest.mark.parametrize("place", ["given", None])
def test_the_first_hop_loses_the_share_that_the_data_allow(spark, tmp_path, checkpoint, place, capsys):
    folder = tmp_path / "data"
    apart = write(folder, range(4))
    given = {f"group={p}": p % SERVERS for p in range(PARTS)} if place else None
    query = start(spark, folder, checkpoint, given)
    check(spark, query, folder)
    first, *_, last = [p["edges"][HOP] for p in query.recent_progress]
    rows = PARTS * ROWS
    assert first["local"] + first["remote"] == last["local"] + last["remote"] == rows
    allowed = 1 - apart * rows / first["remote"]
    assert 1 - last["remote"] / first["remote"] > 0.95 * allowed
    assert 1 - last["bytes"] / first["bytes"] > 0.9 * allowed
    # and it is told: by the query, and of the checkpoint
    assert f"edge {HOP}: LAR" in query.describe()
    assert f"{last['locality']:.0%} stayed on their server" in query.describe()
    assert main(["inspect", checkpoint, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["edges"][HOP] == last
    assert ("files" in told["tables"]) == (place is None)
    assert main(["inspect", checkpoint]) == 0
    assert HOP in capsys.readouterr().out
    if place is None:
        assert len(query.routing_table("files")) == PARTS
        # what was learnt about partitions may be given up at a restart
        write(folder, range(4, 5))
        query = start(spark, folder, checkpoint, "hash")
        check(spark, query, folder)
        assert query.progress["batch"] == 4
        with pytest.raises(weir.errors.EngineError, match="not routed by a learnt table"):
            query.routing_table("files")


def test_servers_come_and_go_while_files_are_read(spark, tmp_path, checkpoint):
    folder = tmp_path / "data"
    write(folder, range(4))
    reader = spark.readStream.option("maxFilesPerTrigger", PARTS)
    app = (
        weir.files(reader, str(folder), schema=SCHEMA)
        .keyed("sensor", weir.Count(), name="sensors")
        .keyed("room", weir.Aggregate(total="sum(v)"), name="rooms")
    )
    routing = weir.Locality(period=1, forecast=None)
    query, _ = scaling(
        lambda sink: app.start(checkpoint, servers=2, routing=routing, sink=sink, trigger=NOW),
        {0: out(1), 2: into(2)},
    )
    check(spark, query, folder)
    assert [len(p["servers"]) for p in query.recent_progress] == [2, 3, 3, 1]
    assert [p["rows"] for p in query.recent_progress] == [PARTS * ROWS] * 4
    assert query.progress["edges"][HOP]["locality"] == 1.0  # on one server


def test_pairs_are_learnt_through_a_flat_map_that_tells_where_rows_come_from(spark, tmp_path, checkpoint):
    folder = tmp_path / "data"
    write(folder, range(1))
    told = {}
    for name, parents in (("silent", None), ("telling", "row")):

        def twice(batch):
            rows = np.repeat(np.arange(batch.num_rows), 2)
            made = {n: pc.take(batch.column(n), pa.array(rows)) for n in ("room", "v")}
            return {**made, "row": rows}

        app = (
            weir.files(spark.read, str(folder), schema=SCHEMA)
            .keyed("sensor", weir.Count(), name="sensors")
            .map_batches(twice, "room string, v long", parents=parents)
            .keyed("room", weir.Aggregate(total="sum(v)"), name="rooms")
        )
        query = app.run(checkpoint + name, servers=SERVERS, routing=weir.Locality())
        edge = (query._driver.learner.names.index("sensors"), query._driver.learner.names.index("rooms"))
        told[name] = sum(r[edge].total for r in query._driver.learner.manager._recent)
    assert told == {"silent": 0, "telling": 2 * PARTS * ROWS}
