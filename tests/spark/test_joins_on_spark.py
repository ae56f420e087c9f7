"""A join on Spark beside Spark's own join of two streams."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa

import weir
from support import NOW, rows_of, stream, write_batches

START = 1_700_000_000
LEFT, RIGHT = "k string, n long, time timestamp", "k string, m long, at timestamp"


def tables(value, time, batches=2, rows=120):
    out = []
    for batch in range(batches):
        rng = np.random.default_rng([batch, len(value), ord(value[0])])
        seconds = START + 60 * batch + rng.integers(0, 60, rows)
        out.append(
            pa.table(
                {
                    "k": [f"k{k}" for k in rng.integers(0, 25, rows)],
                    value: pa.array(rng.integers(0, 1000, rows)),
                    time: pa.array(seconds * 1_000_000).cast(pa.timestamp("us", "UTC")),
                }
            )
        )
    return out


def test_it_emits_what_sparks_own_join_emits(spark, tmp_path, checkpoint):
    ads, clicks = tables("n", "time"), tables("m", "at")
    folders = write_batches(tmp_path / "left", ads), write_batches(tmp_path / "right", clicks)

    def frames():
        return stream(spark, folders[0], LEFT), stream(spark, folders[1], RIGHT)

    collected = {"weir": [], "spark": []}
    left, right = frames()
    joined = weir.source(left, "ads").join(
        weir.source(right, "clicks"),
        "k",
        how="left",
        within=("5 s", "20 s"),
        time=("time", "at"),
        lateness="2 minutes",
        name="joined",
    )
    query = joined.start(
        checkpoint,
        servers=2,
        trigger=NOW,
        sink=lambda frame, batch: collected["weir"].extend(frame.collect()),
    )
    query.await_termination()
    left, right = frames()
    left, right = left.withWatermark("time", "2 minutes"), right.withWatermark("at", "2 minutes")
    near = (left.k == right.k) & right.at.between(
        left.time - dt.timedelta(seconds=5), left.time + dt.timedelta(seconds=20)
    )
    own = left.join(right, near).select(left.k, "n", "time", "m", "at")
    writer = own.writeStream.foreachBatch(lambda frame, batch: collected["spark"].extend(frame.collect()))
    running = writer.option("checkpointLocation", str(tmp_path / "own")).trigger(**NOW).start()
    running.awaitTermination()
    pairs = [tuple(row) for row in collected["weir"] if row["m"] is not None]
    assert sorted(pairs) == sorted(tuple(row) for row in collected["spark"])
    assert len(pairs) > 100
    # Spark keeps state that it shows nowhere; ours can be looked at
    state = query.state("joined")
    assert state.columns == ["k", "side", "matched", "left.n", "left.time", "right.m", "right.at"]
    assert state.where("side = 0").count() <= sum(map(len, ads))
    assert rows_of(weir.read_state(checkpoint, "joined", spark)) == rows_of(state)
