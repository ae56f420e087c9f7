"""Windows beside Spark's own, and a stream on Spark that falls silent."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import weir
from support import rows_of, stream, write_batches
from truth import eventually

SCHEMA = "k string, time timestamp, n long"


def rows(times, n=None):
    keys = [f"k{i % 3}" for i in range(len(times))]
    numbers = np.arange(len(times)) if n is None else np.full(len(times), n)
    return pa.table({"k": keys, "time": pa.array(times, pa.timestamp("us", "UTC")), "n": numbers})


def test_sliding_and_session_windows_are_those_of_spark(spark, tmp_path, checkpoint):
    rng = np.random.default_rng(3)
    start = np.datetime64("2024-01-01T12:00:00", "us")
    seconds = np.concatenate(
        [rng.integers(0, 7200, 300), [10_000, 10_300, 10_600, 11_000]]
    )  # some just a gap apart
    table = rows(start + seconds.astype("timedelta64[s]"))
    frame = spark.read.parquet(write_batches(tmp_path / "data", [table]))
    source = weir.source(frame)
    values = weir.Aggregate(rows="count", total="sum(n)")
    app = weir.Application(
        source.keyed("k", values, name="sliding", window=weir.sliding("time", "10 minutes", "4 minutes")),
        source.keyed("k", values, name="sessions", window=weir.session("time", "5 minutes")),
    )
    taken = {}
    sinks = {
        name: lambda f, b, name=name: taken.setdefault(name, []).extend(rows_of(f))
        for name in ("sliding", "sessions")
    }
    app.run(checkpoint, servers=2, sink=sinks)
    frame.createOrReplaceTempView("timed_rows")
    for name, window in (
        ("sliding", "window(time, '10 minutes', '4 minutes')"),
        ("sessions", "session_window(time, '5 minutes')"),
    ):
        plain = spark.sql(
            f"select k, w.start, w.end, count(*), sum(n) from (select k, n, {window} w from timed_rows) group by k, w"
            if name == "sliding"
            else f"select k, {window}.start, {window}.end, count(*), sum(n) from timed_rows group by k, {window}"
        )
        assert sorted(taken[name], key=repr) == rows_of(plain)


def test_windows_at_an_offset_and_days_of_a_time_zone_are_those_of_spark(spark, tmp_path, checkpoint):
    hours = np.random.default_rng(5).integers(0, 24 * 400, 600)  # both changes of the clocks among them
    table = rows(np.datetime64("2024-01-01", "us") + hours.astype("timedelta64[h]"))
    frame = spark.read.parquet(write_batches(tmp_path / "data", [table]))
    windows = {
        "shifted": weir.tumbling("time", "12 h", offset="5 h"),
        "days": weir.tumbling("time", "1 day", timezone="America/New_York"),
    }
    app = weir.Application(
        *(weir.source(frame).count("k", name=name, window=w) for name, w in windows.items())
    )
    taken = {}
    sinks = {name: lambda f, b, name=name: taken.setdefault(name, []).extend(rows_of(f)) for name in windows}
    app.run(checkpoint, servers=2, sink=sinks)
    frame.createOrReplaceTempView("hours")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        shifted = "select k, w.start, w.end, count(*) from (select k, {} w from hours) group by k, w"
        days = """select k, date_trunc('DAY', time) start, cast(cast(date_trunc('DAY', time) as date) + 1 as timestamp),
                  count(*) from hours group by k, start"""
        plain = spark.sql(shifted.format("window(time, '12 hours', '12 hours', '5 hours')"))
        assert sorted(taken["shifted"], key=repr) == rows_of(plain)
        assert sorted(taken["days"], key=repr) == rows_of(spark.sql(days))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "stream"


def test_on_a_quiet_stream_windows_close_and_the_source_goes_on(spark, folder, tmp_path, checkpoint):
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    write_batches(folder, [rows([now] * 6, n=1)])
    out = str(tmp_path / "out")

    def started():
        source = weir.source(stream(spark, folder, SCHEMA)).event_time("time", idle="1 s")
        window = weir.tumbling("time", "1 s")
        app = source.keyed("k", weir.Aggregate(total="sum(n)"), name="w", window=window)
        return app.start(checkpoint, servers=2, sink=out)

    def written():
        try:
            return rows_of(spark.read.parquet(out).select("k", "total"))
        except Exception:
            return []

    query = started()
    query.process_all_available()
    first = eventually(lambda: len(written()) == 3 and written())
    assert first == [("k0", 2), ("k1", 2), ("k2", 2)]
    batches = query.progress.batch
    assert batches >= 1  # the second was ours
    assert query.progress.rows == 0
    query.stop()
    # the next file's batch has Spark's number 1, whatever we have done meanwhile; and before that one, or a tick
    write_batches(folder, [rows([now + dt.timedelta(hours=1)] * 3, n=7)])
    query = started()
    query.process_all_available()
    eventually(lambda: len(written()) == 6)
    query.stop()
    assert query.exception() is None
    query = started()  # nothing new, nothing due: what was told is not told again
    query.process_all_available()
    query.stop()
    assert written() == sorted([*first, ("k0", 7), ("k1", 7), ("k2", 7)])
    assert query.state("w").count() == 0


def test_on_a_quiet_stream_keys_go_when_their_time_to_live_has_ended(spark, folder, tmp_path, checkpoint):
    write_batches(folder, [rows([dt.datetime.now(dt.UTC)] * 3)])
    gone = []
    app = weir.source(stream(spark, folder, SCHEMA)).count("k", name="c", ttl="1 s", emit="changes")
    query = app.start(checkpoint, servers=2, sink=lambda frame, batch: gone.extend(rows_of(frame)))
    eventually(lambda: sum(row[1] == "delete" for row in gone) == 3)
    query.stop()
    assert query.exception() is None
    assert query.state("c").count() == 0
