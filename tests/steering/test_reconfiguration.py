"""Locality-aware routing on real Spark: tables change, state moves, nothing is lost or doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from support import POSTS, Rises, counted, posts, rises_in_python, rows_of, stream, write_batches
from weir.engine.ledger import latest_commit, read_commit
from weir.state.segment import H1, StateView
from weir.state.storage import Storage

NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tables = [posts(4000, seed, places=40, topics=400) for seed in range(7)]
    return write_batches(tmp_path_factory.mktemp("steering") / "posts", tables)


def two_counts(spark, folder):
    return (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Count(), name="topics")
    )


def reconfiguring(query_of, when=(1, 3)):
    """Starts a query and asks for a reconfiguration after the given batches, from inside the sink."""
    holder = {}
    ready = threading.Event()

    def sink(frame, batch):
        ready.wait(60)  # the first batch may be done before start() has returned
        if batch in when:
            holder["query"].reconfigure(wait=True)

    holder["query"] = query_of(sink)
    ready.set()
    holder["query"].await_termination()
    return holder["query"]


def owners(checkpoint, name):
    """Which server holds which key, from the committed segments."""
    storage = Storage(checkpoint)
    commit = latest_commit(storage)
    found = {}
    for server, refs in enumerate(commit.manifest[name]):
        for h in StateView(storage, refs, _schema(commit, name)).everything()[H1].to_pylist():
            assert h not in found, f"key {h} lives on servers {found[h]} and {server}"
            found[h] = server
    return found


def _schema(commit, name):
    from weir.engine.readable import state_schema

    return state_schema(commit.signature["operators"][name])


@pytest.mark.parametrize("new_keys", ["company", "first_seen", "hash"])
def test_locality_rises_results_stay_right_and_every_key_has_one_home(spark, folder, checkpoint, new_keys):
    routing = weir.Locality(period=3, new_keys=new_keys)
    app = two_counts(spark, folder)
    query = reconfiguring(
        lambda sink: app.start(checkpoint, servers=3, routing=routing, sink=sink, trigger=NOW)
    )
    first, last = query.recent_progress[0], query.progress
    if new_keys != "first_seen":
        assert first["locality"] == pytest.approx(1 / 3, abs=0.15)
    assert last["locality"] > 0.55
    assert last["table_version"] >= 1
    assert sum(p["moved_keys"] for p in query.recent_progress) > 0
    assert rows_of(query.state("places")) == counted(spark, folder, "place")
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")
    for name in ("places", "topics"):
        table = query.routing_table(name)
        living = owners(checkpoint, name)
        hashes = np.array(sorted(living), np.uint64)
        np.testing.assert_array_equal(table.route(hashes), [living[int(h)] for h in hashes])
        assert query.progress["state_keys"][name] == len(living)
    adopted = [d for d in query.decisions if d["adopted"]]
    assert adopted
    assert adopted[-1]["outcome"]["batches"] >= 1


def test_order_sensitive_state_behind_a_stateless_operator_and_a_branch_move_too(spark, folder, checkpoint):
    places = weir.source(stream(spark, folder, POSTS), "posts").keyed("place", weir.Count(), name="places")
    rises = places.map_batches(lambda b: b, name="same").keyed("topic", Rises(order_by="n"), name="rises")
    numbers = places.keyed(["topic", "place"], weir.Aggregate(n="count", top="max(n)"), name="numbers")
    app = weir.Application(rises, numbers)
    query = reconfiguring(
        lambda sink: app.start(
            checkpoint, servers=3, routing=weir.Locality(period=2), sink={"numbers": sink}, trigger=NOW
        )
    )
    assert sum(p["moved_keys"] for p in query.recent_progress) > 0
    frame = spark.read.schema(POSTS).parquet(folder)
    frame.createOrReplaceTempView("steered")
    expected = spark.sql("select topic, place, count(*), max(n) from steered group by topic, place")
    assert rows_of(query.state("numbers")) == rows_of(expected)

    tables = [pq.read_table(p) for p in sorted(Path(folder).iterdir())]
    counted_rises = {r["topic"]: r["rises"] for r in query.state("rises").collect()}
    assert counted_rises == rises_in_python(tables)


def test_a_restart_goes_on_with_the_tables_it_had(spark, tmp_path, checkpoint):
    data = tmp_path / "posts"
    write_batches(data, [posts(3000, s, 40, 400) for s in range(4)])
    routing = weir.Locality(period=2)
    query = reconfiguring(
        lambda sink: two_counts(spark, data).start(
            checkpoint, servers=3, routing=routing, sink=sink, trigger=NOW
        ),
        when=(1,),
    )
    before = query.routing_table("topics")
    assert len(before)
    write_batches(data, [posts(3000, s, 40, 400) for s in range(4, 6)])
    again = two_counts(spark, data).start(checkpoint, servers=3, routing=routing, trigger=NOW)
    again.await_termination()
    assert again.recent_progress[1]["batch"] == 4
    assert again.recent_progress[1]["locality"] > 0.5
    assert rows_of(again.state("topics")) == counted(spark, data, "topic")
    owners(checkpoint, "topics")
    # and with another number of servers the state is laid out anew and learning begins again
    write_batches(data, [posts(3000, 9, 40, 400)])
    wider = two_counts(spark, data).start(checkpoint, servers=5, routing=routing, trigger=NOW)
    wider.await_termination()
    assert rows_of(wider.state("topics")) == counted(spark, data, "topic")
    assert rows_of(wider.state("places")) == counted(spark, data, "place")
    assert len(set(owners(checkpoint, "topics").values())) == 5


def test_hot_keys_of_operators_that_merge_are_shared_out(spark, tmp_path, checkpoint):
    rng = np.random.default_rng(3)

    def batch(seed):
        topics = np.where(rng.random(4000) < 0.6, 0, rng.integers(1, 300, 4000))
        places = rng.integers(0, 30, 4000)
        return pa.table({"place": [f"p{p}" for p in places], "topic": [f"t{t}" for t in topics], "n": topics})

    data = write_batches(tmp_path / "posts", [batch(s) for s in range(5)])
    query = reconfiguring(
        lambda sink: two_counts(spark, data).start(
            checkpoint, servers=3, routing=weir.Locality(period=2, split_hot=True), sink=sink, trigger=NOW
        )
    )
    assert query.recent_progress[0]["operators"]["topics"]["imbalance"] > 1.6
    assert query.progress["operators"]["topics"]["imbalance"] < 1.3
    assert rows_of(query.state("topics")) == counted(spark, data, "topic")


def test_a_table_of_something_else_is_refused(spark, folder, checkpoint, tmp_path):
    from weir.routing.table import Table

    keys = pa.table({"place": pa.array([1, 2, 3])})
    Table.from_keys(keys, np.array([0, 1, 2]), n=3, operator="places").save(tmp_path / "places.arrow")
    app = two_counts(spark, folder)
    start = {"places": str(tmp_path / "places.arrow")}
    query = app.start(checkpoint, servers=3, routing=weir.Locality(start=start), trigger=NOW)
    with pytest.raises(weir.errors.CheckpointMismatch, match="make a table from this application's data"):
        query.await_termination()
    other = app.start(checkpoint + "2", servers=2, routing=weir.Locality(start=start), trigger=NOW)
    with pytest.raises(weir.errors.CheckpointMismatch, match="is for 3 servers, not for 2"):
        other.await_termination()


def test_tables_made_offline_are_there_from_the_first_batch(spark, folder, checkpoint, tmp_path):
    from weir.routing.table import Table

    start = {}
    for name, column, count in (("places", "place", 40), ("topics", "topic", 400)):
        keys = pa.table({column: [f"{column} {i}" for i in range(count)]})
        homes = np.array([(i if column == "place" else i // 10) % 3 for i in range(count)])
        Table.from_keys(keys, homes, n=3, operator=name).save(tmp_path / f"{name}.arrow")
        start[name] = str(tmp_path / f"{name}.arrow")
    query = two_counts(spark, folder).start(
        checkpoint, servers=3, routing=weir.Locality(start=str(tmp_path)), trigger=NOW
    )
    query.await_termination()
    assert query.recent_progress[0]["locality"] > 0.7
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")
    assert read_commit(Storage(checkpoint), "000000000000-0000").table_version == 1


def test_reconfigure_without_learning_is_refused(spark, folder, checkpoint):
    query = two_counts(spark, folder).start(checkpoint, servers=2, trigger=NOW)
    query.await_termination()
    with pytest.raises(weir.errors.EngineError, match="nothing to reconfigure"):
        query.reconfigure()
