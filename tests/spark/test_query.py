"""What Spark decides about a query: sources, sinks, types, sessions, and wrong use."""

from __future__ import annotations

import datetime as dt
import decimal
import http.client
import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import weir
from support import NOW, POSTS, counted, counts, every_type, posts, rows_of, stream, two_counts, write_batches
from truth import eventually
from weir import testing
from weir.cli.main import main
from weir.engine.checkpoint import write_table
from weir.engine.inspect.inspection import inspect
from weir.events import BatchCommitted, Terminated
from weir.spark.state import output_frame
from weir.state.storage import Storage


@pytest.fixture(scope="module")
def tables():
    return [posts(600, seed) for seed in range(3)]


@pytest.fixture(scope="module")
def folder(tables, tmp_path_factory):
    return write_batches(tmp_path_factory.mktemp("query") / "posts", tables)


@pytest.fixture(scope="module")
def finished(spark, folder, tmp_path_factory):
    """A query that has counted the posts."""
    checkpoint = str(tmp_path_factory.mktemp("finished") / "checkpoint")
    query = two_counts(stream(spark, folder)).start(checkpoint, servers=3, trigger=NOW, watch=True)
    query.heard = []
    query.add_listener(query.heard.append)
    query.await_termination()
    return query


def test_every_row_goes_where_it_goes_in_this_process(spark, tables, folder, finished):
    here = testing.run(two_counts(), tables, servers=3)
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(finished.state(name)) == rows_of(here.state(name)) == counted(spark, folder, column)
    assert len(finished.recent_progress) == len(here.recent_progress) == 3
    for ours, theirs in zip(finished.recent_progress, here.recent_progress, strict=True):
        assert [s.rows for s in ours.servers] == [s.rows for s in theirs.servers]
        assert ours.state_keys == theirs.state_keys
        mine, other = (progress.edges["places → topics"] for progress in (ours, theirs))
        assert (mine.local, mine.remote) == (other.local, other.remote)


def test_its_page_goes_on_when_it_ends_and_the_end_is_told(finished):
    # the thread that waits for Spark's query says so
    eventually(lambda: isinstance(finished.heard[-1], Terminated))
    committed = [event.progress for event in finished.heard if isinstance(event, BatchCommitted)]
    assert committed[-1] is finished.progress
    assert finished.heard[-1] == Terminated(finished.checkpoint, None)
    host, token = finished.page.split("/")[2], finished.page.partition("token=")[2]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", "/api/now", headers={"authorization": f"Bearer {token}"})
    now = json.loads(connection.getresponse().read())
    assert (now["batch"], now["locality"]) == (2, finished.progress.locality)
    assert now["status"]["state"] == "finished"


def test_state_is_readable_from_elsewhere_by_path(spark, tables, finished):
    assert rows_of(weir.read_state(finished.checkpoint, "topics")) == counts(tables, "topic")
    with pytest.raises(weir.errors.EngineError, match="did you mean 'topics'"):
        weir.read_state(finished.checkpoint, "topcs")


def test_its_checkpoint_can_be_inspected(finished, capsys):
    report = inspect(finished.checkpoint)
    assert (report["mode"], report["servers"], report["batch"]) == ("streaming", 3, 2)
    assert report["health"]["ok"]
    assert main(["inspect", finished.checkpoint]) == 0
    assert "streaming run on 3 servers" in capsys.readouterr().out


def test_status_and_wrong_use(spark, folder, finished, checkpoint):
    assert finished.status["active"] is False
    assert finished.exception() is None
    with pytest.raises(weir.errors.EngineError, match="did you mean 'topics'"):
        finished.state("topic")
    app = two_counts(stream(spark, folder))
    with pytest.raises(weir.errors.TopologyError, match=r"use start\(…\) for streaming"):
        app.run(checkpoint, servers=2)
    bounded = weir.source(spark.read.schema(POSTS).parquet(folder)).keyed("place", weir.Count())
    with pytest.raises(weir.errors.TopologyError, match=r"use run\(…\) for bounded"):
        bounded.start(checkpoint, servers=2)
    with pytest.raises(weir.errors.TopologyError, match="must be a Spark DataFrame"):
        weir.source([1, 2, 3])
    with pytest.raises(weir.errors.TopologyError, match="sink for unknown operator 'topic'"):
        app.start(checkpoint, servers=2, sink={"topic": print})


def test_a_bounded_run_and_the_sinks(spark, tables, folder, tmp_path, checkpoint):
    frame = spark.read.schema(POSTS).parquet(folder)
    delivered = []
    sinks = {
        "topics": lambda f, batch: delivered.append((batch, rows_of(f))),
        "places": str(tmp_path / "out"),
    }
    query = two_counts(frame).run(checkpoint, servers=2, sink=sinks)
    assert delivered == [(0, counts(tables, "topic"))]
    written = spark.read.parquet(str(tmp_path / "out")).select("place", "count")
    assert rows_of(written) == counts(tables, "place")
    # a second run of the same checkpoint would do nothing, and says so; nothing is delivered twice
    with pytest.raises(weir.errors.CheckpointMismatch, match="a run has ended here"):
        two_counts(frame).run(checkpoint, servers=2, sink=sinks)
    assert len(delivered) == 1
    assert rows_of(weir.read_state(checkpoint, "topics")) == rows_of(query.state("topics"))


def test_two_streams_a_union_and_two_sinks(spark, tables, folder, tmp_path, checkpoint):
    others = [posts(500, 3), posts(500, 4)]
    web = weir.source(stream(spark, folder, files=2), "web")
    mobile = weir.source(stream(spark, write_batches(tmp_path / "mobile", others)), "mobile")
    big = mobile.filter_batches(lambda b: pc.greater(b.column("n"), 500), name="big")
    topics = web.union(big).keyed("topic", weir.Count(), name="topics")
    pairs = web.keyed(["place", "topic"], weir.Count(), name="pairs", parallelism=2)
    ends = {"topics": {}, "pairs": {}}
    sinks = {
        "topics": lambda f, b: ends["topics"].update({r[0]: r for r in rows_of(f)}),
        "pairs": lambda f, b: ends["pairs"].update({r[:2]: r for r in rows_of(f)}),
    }
    query = weir.Application(topics, pairs).start(checkpoint, servers=3, trigger=NOW, sink=sinks)
    query.await_termination()
    both = [*tables, *(table.filter(pc.greater(table["n"], 500)) for table in others)]
    assert rows_of(query.state("topics")) == counts(both, "topic")
    assert rows_of(query.state("pairs")) == counts(tables, "place", "topic")
    assert sorted(ends["topics"].values(), key=repr) == counts(both, "topic")
    assert sorted(ends["pairs"].values(), key=repr) == counts(tables, "place", "topic")


def test_every_type_of_key(spark, tmp_path, checkpoint):
    table = every_type()
    frame = spark.read.parquet(write_batches(tmp_path / "data", [table]))
    every = ["i", "l", "d", "t", "b", "y", "s"]
    app = (
        weir.source(frame)
        .keyed(every, weir.Count(emit="rows"), name="all")
        .keyed(["t", "y"], weir.Count(), name="two")
    )
    query = app.run(checkpoint, servers=3)
    here = testing.run(weir.source(table.schema).keyed(every, weir.Count(), name="all"), [table], servers=3)
    for name, key in (("all", every), ("two", ["t", "y"])):
        plain = frame.where("s is not null").groupBy(*key).count()
        assert rows_of(query.state(name)) == rows_of(plain), key
    assert query.progress.operators["all"].null_keys == table["s"].null_count
    assert query.progress.state_keys["all"] == here.progress.state_keys["all"]


def test_the_users_session_is_left_as_it_was(spark, folder, checkpoint):
    before = {r["key"]: r["value"] for r in spark.sql("SET").collect()}
    active = type(spark).getActiveSession()._jsparkSession
    frame = spark.read.schema(POSTS).parquet(folder)
    weir.source(frame).keyed("place", weir.Count()).run(checkpoint + "1", servers=2)
    one = weir.source(stream(spark, folder, files=3)).keyed("place", weir.Count())
    one.start(checkpoint + "2", servers=2, trigger=NOW).await_termination()
    assert {r["key"]: r["value"] for r in spark.sql("SET").collect()} == before
    assert type(spark).getActiveSession()._jsparkSession == active


def test_a_sink_gets_the_same_rows_whoever_reads_them(spark, tmp_path, monkeypatch):
    noon = dt.datetime(2024, 1, 1, 12, 30, tzinfo=dt.UTC)
    columns = {
        "text": pa.array(["a", None, "c"]),
        "bytes": pa.array([b"1", b"", None]),
        "yes": pa.array([True, None, False]),
        "small": pa.array([1, None, -3], pa.int8()),
        "int": pa.array([1, None, -3], pa.int32()),
        "real": pa.array([0.5, None, -0.0]),
        "day": pa.array([noon.date(), None, dt.date(1969, 7, 20)]),
        "time": pa.array([noon, None, noon - dt.timedelta(days=30_000)], pa.timestamp("us", "UTC")),
        "local": pa.array([noon.replace(tzinfo=None), None, None], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")], pa.decimal128(12, 2)),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "pair": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
    table, storage = pa.table(columns), Storage(str(tmp_path))
    files = [
        write_table(storage, f"outputs/{n}.arrow", part) for n, part in enumerate((table[:2], table[2:]))
    ]
    frames = []
    for little in (0, 1 << 20):
        monkeypatch.setattr("weir.spark.state.LITTLE", little)
        frames.append(output_frame(spark, storage, files, table.schema))
    by_tasks, here = frames
    assert "LocalRelation" in here._jdf.queryExecution().optimizedPlan().toString()
    assert [f.dataType for f in here.schema] == [f.dataType for f in by_tasks.schema]
    assert sorted(map(str, here.collect())) == sorted(map(str, by_tasks.collect()))
    assert here.count() == 3
    assert SparkSession._activeSession is spark


def test_a_second_query_on_the_same_checkpoint_is_refused_and_the_first_goes_on(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", [posts(100, 0)])
    app = two_counts(stream(spark, folder, POSTS))
    first = app.start(checkpoint, servers=2, execution="jobs")
    try:
        with pytest.raises(
            weir.errors.EngineError, match="a query of this program runs on this checkpoint; stop it first"
        ):
            app.start(checkpoint, servers=2, execution="jobs")
        first.process_all_available()
        assert first.is_active
        assert first.progress.rows == 100
    finally:
        first.stop()
    again = app.start(checkpoint, servers=2, execution="jobs", trigger={"availableNow": True})
    again.await_termination()


def test_columns_that_differ_in_case_alone_are_refused(spark):
    with pytest.raises(
        weir.errors.TopologyError, match="'place' and 'Place', that Spark does not tell apart"
    ):
        weir.source(spark.sql("select 1 as place, 2 as Place")).keyed("place", weir.Count()).run(
            "unused", servers=1
        )
