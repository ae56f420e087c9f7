"""Live servers on Spark: a stage that stays, fed by a job per batch; what it loses, step jobs make up for."""

from __future__ import annotations

import os
import signal
import threading
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from support import (
    NOW,
    POSTS,
    Rises,
    counts,
    posts,
    rises_in_python,
    rows_of,
    stream,
    two_counts,
    write_batches,
)
from weir.engine.live.coordinator import LiveCoordinator
from weir.errors import EngineError, OperatorError
from weir.spark.live_runner import NO_LIMIT, obstacle
from weir.spark.runner import MOST_BYTES, SETTINGS

pytestmark = pytest.mark.usefixtures("few_starts")

TABLES = [posts(1500, seed) for seed in range(5)]


def ways(query):
    return [progress.execution for progress in query.recent_progress]


def active(spark):
    return spark.sparkContext.statusTracker().getActiveJobsIds()


def eventually(condition, seconds=30):
    end = threading.Event()
    for _ in range(seconds * 20):
        if condition():
            return
        end.wait(0.05)
    assert condition()


def test_live_servers_and_jobs_take_turns_on_one_checkpoint(spark, tmp_path, checkpoint):
    data = tmp_path / "posts"
    app = (
        weir.source(stream(spark, write_batches(data, TABLES[:2]), POSTS))
        .keyed("place", weir.Count(emit="rows"), name="places", routing=weir.PartialKey())
        .keyed("topic", Rises(order_by="n"), name="topics")
    )
    for number, execution in enumerate(["live", "jobs", "auto"]):
        query = app.start(checkpoint, servers=3, trigger=NOW, execution=execution)
        query.await_termination()
        shown = query.describe()
        assert ("on 3 live servers" in shown) == (execution != "jobs")
        eventually(lambda: not active(spark))  # their slots are free again
        if number < 2:
            write_batches(data, TABLES[2 + number : 3 + number])
    assert ways(query)[1:] == ["live"]
    rises = {row.topic: row.rises for row in query.state("topics").collect()}
    assert rises == rises_in_python(TABLES[:4])
    assert rows_of(query.state("places")) == counts(TABLES[:4], "place")


def test_live_where_there_is_room_beside_other_queries(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES[:1])
    app = two_counts(stream(spark, folder, POSTS))
    first, second = (app.start(f"{checkpoint}-{n}", servers=2) for n in range(2))
    try:
        for query in (first, second):
            query.process_all_available()
        assert sorted(ways(first) + ways(second)) == ["jobs", "live"]
        live, waiting = (first, second) if ways(first) == ["live"] else (second, first)
        assert "there are 4, of which live servers of other queries hold 2" in waiting.describe()
        live.stop()
        write_batches(tmp_path / "posts", TABLES[1:2])
        waiting.process_all_available()
        assert ways(waiting) == ["jobs", "live"]
        assert rows_of(waiting.state("topics")) == counts(TABLES[:2], "topic")
    finally:
        first.stop()
        second.stop()
    spark.sparkContext._conf.set("spark.speculation", "true")
    try:
        assert "spark.speculation is on" in obstacle(spark, 2)
    finally:
        spark.sparkContext._conf.set("spark.speculation", "false")
    assert obstacle(spark, 2) is None


def test_batches_of_short_rows_are_limited_by_number_those_of_long_ones_by_bytes(spark, tmp_path, checkpoint):
    data = tmp_path / "posts"
    long = TABLES[1].set_column(
        0, "place", pa.array([f"{p} {'x' * 1000}" for p in TABLES[1]["place"].to_pylist()])
    )
    tables = [TABLES[0], long, long]
    query = two_counts(stream(spark, write_batches(data, tables[:1]), POSTS)).start(checkpoint, servers=2)
    limits = []
    try:
        for number in range(3):
            query.process_all_available()
            limits.append(query._driver.runner.session.conf.get(MOST_BYTES))
            write_batches(data, tables[number + 1 : number + 2])
    finally:
        query.stop()
    # of the first batch nobody knows how long its rows are
    assert limits == [SETTINGS[MOST_BYTES], NO_LIMIT, SETTINGS[MOST_BYTES]]
    assert ways(query) == ["live"] * 3
    assert rows_of(query.state("places")) == counts(tables, "place")


def test_small_batches_come_over_the_driver_and_large_ones_from_tasks(
    spark, tmp_path, checkpoint, monkeypatch
):
    data, fed = tmp_path / "posts", []
    monkeypatch.setattr(
        LiveCoordinator, "feed", lambda *args, feed=LiveCoordinator.feed: (fed.append(1), feed(*args))[1]
    )
    schema = f"{POSTS}, at timestamp, price decimal(9,2)"

    def table(rows, seed):
        plain = posts(rows, seed, topics=rows)
        at = pa.array([None, *range(1, rows)], pa.timestamp("us", "UTC"))
        price = pa.array([None, *(Decimal(n) / 4 for n in range(1, rows))], pa.decimal128(9, 2))
        return plain.append_column("at", at).append_column("price", price)

    tables = [table(10, 0), table(40_000, 1), table(10, 2), table(10, 3)]
    folder = write_batches(data, tables[:1])
    app = weir.source(stream(spark, folder, schema)).keyed(
        "topic",
        weir.Aggregate(last="max(at)", sum="sum(price)", n="count()"),
        name="topics",
    )
    query = app.start(checkpoint, servers=2, execution="live")
    ways_of_rows = []
    try:
        for number in range(4):
            query.process_all_available()
            ways_of_rows.append(len(fed))
            write_batches(data, tables[number + 1 : number + 2])
        assert ways(query) == ["live"] * 4
        # behind a large batch, nobody knows whether the next one is small
        assert ways_of_rows == [1, 1, 1, 2]
        every = pa.concat_tables(tables)
        expected = every.group_by("topic").aggregate([("price", "sum"), ([], "count_all")])
        state = {row.topic: row for row in query.state("topics").collect()}
        assert {t: (r.sum, r.n) for t, r in state.items()} == {
            row["topic"]: (row["price_sum"], row["count_all"]) for row in expected.to_pylist()
        }
    finally:
        query.stop()


@pytest.mark.parametrize("execution", ["live", "jobs"])
def test_a_query_that_is_stopped_in_mid_batch_has_not_failed(spark, tmp_path, checkpoint, execution):
    folder, gate = write_batches(tmp_path / "posts", TABLES[:1]), tmp_path / "working"

    def works_long(key, rows, state):
        gate.touch()
        time.sleep(0.2)

    app = weir.source(stream(spark, folder, POSTS)).process("topic", works_long, name="topics")
    query = app.start(checkpoint, servers=2, execution=execution)
    ends = []
    query.add_listener(ends.append)
    eventually(gate.exists)
    query.stop()
    assert query.exception() is None
    assert [type(e).__name__ for e in ends] == ["Terminated"]
    assert ends[0].error is None
    assert query.spark_query.exception() is None
    assert query.await_termination(1) in (True, None)
    eventually(lambda: not active(spark))


def test_servers_may_work_long_after_their_sources_have_ended(spark, tmp_path, checkpoint, monkeypatch):
    """Whoever watches for sources without a slot stops watching when all have pushed their rows."""
    stopped = []

    def watch(context, tag, group, pushed, allocated):
        assert pushed.wait(60)
        stopped.append(time.monotonic())

    monkeypatch.setattr("weir.spark.live_runner._watch_sources", watch)
    monkeypatch.setattr("weir.spark.live_runner.SMALL_BATCH", -1)

    def works_long(key, rows, state):
        time.sleep(0.05)

    app = weir.source(stream(spark, write_batches(tmp_path / "posts", TABLES[:1]), POSTS))
    query = app.process("topic", works_long, name="topics").start(
        checkpoint, servers=2, trigger=NOW, execution="live"
    )
    query.await_termination()
    assert ways(query) == ["live"]
    assert len(stopped) == 1
    assert time.monotonic() - stopped[0] > 2  # a server calls it for some 90 topics, 0.05 s each


def test_functions_at_a_source_never_run_in_the_driver(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES[:1])

    def where(batch):
        process = pa.array([str(os.getpid())] * batch.num_rows)
        return pa.RecordBatch.from_arrays([process], names=["process"])

    app = weir.source(stream(spark, folder, POSTS)).map_batches(where, schema="process string")
    query = app.keyed("process", weir.Count(), name="n").start(
        checkpoint, servers=2, trigger=NOW, execution="live"
    )
    query.await_termination()
    assert ways(query) == ["live"]
    assert obstacle(spark, 3) is None  # all slots are free again when the wait is over
    assert str(os.getpid()) not in {row.process for row in query.state("n").collect()}


def test_a_source_that_finds_no_slot_gets_those_of_the_servers(spark, tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr("weir.spark.live_runner.STARVING", (2, 0.5))
    folder, gate = write_batches(tmp_path / "posts", TABLES[:1]), tmp_path / "gate"

    def waits(batches):
        while not gate.exists():
            time.sleep(0.05)
        yield from batches

    query = two_counts(stream(spark, folder, POSTS)).start(checkpoint, servers=2)
    query.process_all_available()
    # what another job of this session holds for long
    others = threading.Thread(target=spark.range(0, 2, 1, 2).mapInArrow(waits, "id long").collect)
    others.start()
    try:
        eventually(lambda: len(active(spark)) == 2)
        write_batches(tmp_path / "posts", TABLES[1:2])
        query.process_all_available()
        assert ways(query) == ["live", "jobs"]
        assert "no source task has found a free slot" in query.progress.ran_again
        assert rows_of(query.state("topics")) == counts(TABLES[:2], "topic")
    finally:
        gate.touch()
        others.join()
        query.stop()


@pytest.mark.long
def test_servers_and_keys_move_and_a_server_that_dies_costs_one_batch(spark, tmp_path, checkpoint):
    data, marker = tmp_path / "posts", str(tmp_path / "killed")
    folder = write_batches(data, TABLES[:1])

    def dies_once(batch):
        if len(list(data.glob("*.parquet"))) == 2 and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(dies_once, name="same", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )
    routing = weir.Locality(period=1, forecast=None)
    query = app.start(checkpoint, servers=2, routing=routing, execution="live")
    try:
        for number in range(4):
            query.process_all_available()
            if number == 2:
                query.scale_out(1)
            write_batches(data, TABLES[number + 1 : number + 2])
        query.process_all_available()
        assert ways(query) == ["live", "jobs", "live", "live", "live"]
        died, scaled = query.recent_progress[1], query.recent_progress[3]
        assert died.ran_again
        assert scaled.scaled["to"] == 3
        assert len(query.progress.servers) == 3
        assert query.progress.table_version > 0
        for name, column in (("places", "place"), ("topics", "topic")):
            assert rows_of(query.state(name)) == counts(TABLES, column)
    finally:
        query.stop()
    eventually(lambda: not active(spark))


def test_mistakes_and_sessions_without_room(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES[:1])

    def fails(key, rows, state):
        raise ValueError("no such thing")

    app = weir.source(stream(spark, folder, POSTS)).process("topic", fails, name="topics")
    query = app.start(checkpoint, servers=2, trigger=NOW, execution="live")
    with pytest.raises(OperatorError, match="no such thing"):
        query.await_termination()
    eventually(lambda: not active(spark))
    plain = two_counts(stream(spark, folder, POSTS))
    with pytest.raises(EngineError, match="need 5 task slots, and there are 4"):
        plain.start(f"{checkpoint}-2", servers=4, trigger=NOW, execution="live")
    assert not Path(f"{checkpoint}-2").exists()
    auto = plain.start(f"{checkpoint}-3", servers=4, trigger=NOW, execution="auto")
    auto.await_termination()
    assert "as step jobs: 4 live servers and a source need 5 task slots, and there are 4" in auto.describe()
    assert ways(auto) == ["jobs"]
    with pytest.raises(weir.errors.TopologyError, match="did you mean 'live'"):
        plain.start(checkpoint, servers=2, execution="life")
