"""Tumbling event-time windows: closed once, late rows dropped and counted."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import weir
from support import rows_of, stream, write_batches

NOW = {"availableNow": True}
SCHEMA = "k string, time timestamp, n long"


def at(minute, second=0):
    return dt.datetime(2024, 1, 1, 12, minute, second, tzinfo=dt.UTC)


def batch(*rows):
    keys, times, numbers = zip(*rows, strict=True)
    return pa.table({"k": keys, "time": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(numbers)})


BATCHES = [
    batch(("a", at(1), 1), ("a", at(9), 2), ("b", at(4), 3)),
    batch(("a", at(12), 4), ("b", at(8), 5)),  # 12:08 is not late yet: the watermark is at 12:07
    batch(("a", at(25), 6), ("a", at(11), 7)),  # the watermark is at 12:10: 12:00-12:10 closes
    batch(("a", at(9, 59), 8), ("b", at(26), 9)),  # the watermark is at 12:23: late; 12:10-12:20 closes
]


def test_windows_close_once_in_order_and_late_rows_are_counted(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "data", BATCHES)
    closed = []
    app = weir.source(stream(spark, folder, SCHEMA)).keyed(
        "k",
        weir.Aggregate(rows="count", total="sum(n)"),
        name="w",
        window=weir.tumbling("time", "10 minutes", "2m"),
    )

    def sink(frame, number):
        closed.extend(
            (number, r.k, r.window_start.minute, r.window_end.minute, r.rows, r.total)
            for r in frame.collect()
        )

    query = app.start(checkpoint, servers=2, trigger=NOW, sink=sink)
    query.await_termination()
    assert sorted(closed) == [(2, "a", 0, 10, 2, 3), (2, "b", 0, 10, 2, 8), (3, "a", 10, 20, 2, 11)]
    assert query.progress["operators"]["w"]["late"] == 1
    assert sorted((r.k, r.window_start.minute, r.rows) for r in query.state("w").collect()) == [
        ("a", 20, 1),
        ("b", 20, 1),
    ]
    assert query.progress["state_keys"]["w"] == 2


def test_a_bounded_run_closes_every_window_and_equals_plain_spark(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "data", BATCHES)
    frame = spark.read.schema(SCHEMA).parquet(folder)
    app = (
        weir.source(frame)
        .keyed("n", weir.Count(), name="numbers")
        .keyed("k", weir.Aggregate(total="sum(n)"), name="w", window=weir.tumbling("time", "10 minutes"))
        .keyed("k", weir.Aggregate(windows="count", best="max(total)"), name="per_key")
    )
    query = app.run(checkpoint, servers=3)
    assert query.state("w").count() == 0
    frame.createOrReplaceTempView("window_rows")
    expected = spark.sql(
        "select k, count(*), max(total) from (select k, window(time, '10 minutes') w, sum(n) total "
        "from window_rows group by all) group by k"
    )
    assert rows_of(query.state("per_key")) == rows_of(expected)
