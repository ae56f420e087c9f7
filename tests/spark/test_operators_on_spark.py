"""What Spark adds to operators: errors that come through its tasks, dead letters and state as DataFrames, the end of
a bounded input. What operators do with rows is tested in tests/operators."""

from __future__ import annotations

import asyncio
import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import NOW, Run, grouped, posts, rows_of, stream, write_batches


def test_an_error_of_an_operator_comes_through(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", [posts(200, 1)])

    def fail(key, rows, state):
        for row in rows:
            if row.n > 900:
                raise ZeroDivisionError("too big")

    app = weir.source(stream(spark, folder)).process("topic", fail, name="fragile")
    before = failed_tasks(spark)
    query = app.start(checkpoint, servers=2, trigger=NOW)
    with pytest.raises(
        weir.errors.OperatorError, match=r"operator 'fragile', key 'topic \d+': ZeroDivisionError: too big"
    ) as caught:
        query.await_termination()
    assert "'n': 9" in str(caught.value)
    assert isinstance(query.exception(), weir.errors.OperatorError)
    assert query.status["message"] == "failed"
    # each task that fails is logged several times, with a traceback of Spark's
    assert failed_tasks(spark) == before


def failed_tasks(spark):
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(i).failedTasks() for i in range(executors.length()))


def test_dead_letters_and_state_are_dataframes(spark, tmp_path, checkpoint):
    tables = [posts(300, 2), posts(300, 3)]
    folder = write_batches(tmp_path / "posts", tables)

    def fragile(key, rows, state):
        state.rows += len(rows)
        state.seen = sorted({*state.seen, *(row.n % 5 for row in rows)})
        if key == "topic 0":
            raise ValueError("cannot take this topic")

    app = weir.source(stream(spark, folder)).process(
        "topic", fragile, name="fragile", state=Run, on_error="divert"
    )
    with pytest.raises(weir.errors.TopologyError, match="nobody takes them: pass dead_letters="):
        app.start(checkpoint, servers=2, trigger=NOW)
    letters, own = [], []

    def into(taken):
        return lambda frame, batch: taken.extend((batch, r["operator"], r["key"]) for r in frame.collect())

    query = app.dead_letter_sink(into(own)).start(
        checkpoint, servers=2, trigger=NOW, dead_letters=into(letters)
    )
    query.await_termination()
    bad = [pc.sum(pc.equal(table["topic"], "topic 0")).as_py() for table in tables]
    assert own == letters
    assert letters == [(b, "fragile", "topic 0") for b in (0, 1) for _ in range(bad[b])]
    assert min(bad) > 0
    state = query.state("fragile")
    assert state.schema["seen"].dataType.simpleString() == "string"
    rows = {t: len(rows) for (t,), rows in grouped(tables, "topic").items() if t != "topic 0"}
    assert {r["topic"]: r["rows"] for r in state.collect()} == rows


def test_a_bounded_run_closes_every_window_and_equals_plain_spark(spark, tmp_path, checkpoint):
    start = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    times = pa.array([start + dt.timedelta(minutes=m) for m in (1, 9, 4, 12, 8, 25, 11, 26)])
    table = pa.table({"k": list("aababaab"), "time": times, "n": list(range(1, 9))})
    frame = spark.read.parquet(write_batches(tmp_path / "data", [table]))
    app = (
        weir.source(frame)
        .keyed("n", weir.Count(emit="rows"), name="numbers")
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


def test_rows_with_maps_travel_with_and_without_a_key(spark, checkpoint):
    schema = "k string, m map<struct<a: int>, binary>, l array<map<string, double>>"
    rows = [("a", {(1,): bytearray(b"x")}, [{"p": 0.5}, None]), (None, None, []), ("b", {}, [None])]
    frame = spark.createDataFrame(rows, schema)
    collected = []
    joined = weir.source(frame, "one").lookup(weir.source(frame, "other"), "k", name="found")
    joined.run(checkpoint, servers=2, sink=lambda frame, batch: collected.append(frame.toArrow()))
    found = sorted(pa.concat_tables(collected).to_pylist(), key=repr)
    given = sorted(frame.toArrow().to_pylist(), key=repr)
    assert [{name: row[name] for name in ("k", "m", "l")} for row in found] == given
    assert [row["l_right"] for row in found] == [row["l"] if row["k"] else None for row in given]


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_an_asyncio_function_runs_where_the_rows_are(spark, tmp_path, checkpoint, execution):
    async def twice(row):
        await asyncio.sleep(0.001)
        return {"topic": row.topic, "n": 2 * row.n}

    tables = [posts(200, 4), posts(200, 5)]
    source = weir.source(stream(spark, write_batches(tmp_path / "posts", tables)))
    app = source.count("place", emit="rows").map_async(twice, "topic string, n long", concurrency=16)
    app = app.aggregate("topic", total="sum(n)", name="sums")
    query = app.start(checkpoint, servers=2, trigger=NOW, execution=execution)
    query.await_termination()
    sums = {t: 2 * sum(row["n"] for row in rows) for (t,), rows in grouped(tables, "topic").items()}
    assert {r["topic"]: r["total"] for r in query.state("sums").collect()} == sums
