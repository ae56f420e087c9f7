"""Locality-aware routing in a running query: tables change, state moves, nothing is lost or doubled."""

from __future__ import annotations

from concurrent import futures
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import weir
from support import POSTS, Rises, counts, posts, rises_in_python, rows_of, two_counts
from truth import count_and_top_by, homes_of
from weir.engine.checkpoint import CheckpointLayout
from weir.routing.table import Table
from weir.state.storage import Storage
from weir.testing import run, start
from weir.watch.reader import CheckpointReader
from weir.watch.snapshot import snapshot

pytestmark = pytest.mark.usefixtures("few_starts")


@pytest.fixture(scope="module")
def tables():
    return [posts(4000, seed, places=40, topics=400) for seed in range(7)]


def reconfigured(query, tables, when=(1, 3)):
    """Feed a query, and reconfigure it after the given batches."""
    for table in tables:
        query.feed(table)
        if query.progress.batch in when:
            query.reconfigure(wait=True)
    return query


@pytest.mark.parametrize("new_keys", ["affinity", "first_seen", "hash"])
def test_locality_rises_results_stay_right_and_every_key_has_one_home(tables, checkpoint, new_keys):
    routing = weir.Locality(period=3, new_keys=new_keys)
    query = reconfigured(start(two_counts(), checkpoint, servers=3, routing=routing), tables)
    first, last = query.recent_progress[0], query.progress
    if new_keys != "first_seen":
        assert first.locality == pytest.approx(1 / 3, abs=0.15)
    assert last.locality > 0.55
    assert last.table_version >= 1
    assert sum(p.moved_keys for p in query.recent_progress) > 0
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counts(tables, column)
        homes = homes_of(checkpoint, name)
        hashes = np.array(sorted(homes), np.uint64)
        np.testing.assert_array_equal(
            query.routing_table(name).route(hashes), [homes[int(h)] for h in hashes]
        )
        assert query.progress.state_keys[name] == len(homes)
    adopted = [d for d in query.decisions if d.adopted]
    assert adopted
    assert adopted[-1].outcome["batches"] >= 1


def test_order_sensitive_state_behind_a_stateless_operator_and_a_branch_move_too(tables, checkpoint):
    places = weir.source(POSTS, "posts").keyed("place", weir.Count(emit="rows"), name="places")
    rises = places.map_batches(lambda b: b, name="same").keyed("topic", Rises(order_by="n"), name="rises")
    numbers = places.keyed(["topic", "place"], weir.Aggregate(n="count", top="max(n)"), name="numbers")
    app = weir.Application(rises, numbers)
    query = start(app, checkpoint, servers=3, routing=weir.Locality(period=2), seed=1)
    reconfigured(query, tables)
    assert sum(p.moved_keys for p in query.recent_progress) > 0
    assert rows_of(query.state("numbers")) == count_and_top_by(tables, "topic", "place")
    assert {r["topic"]: r["rises"] for r in query.state("rises").to_pylist()} == rises_in_python(tables)


@dataclass
class Number:
    n: int = 0


def numbered(key, rows, state):
    for row in rows:
        state.n += 1
        yield {"place": key, "topic": row.topic, "number": state.n}


def test_keys_come_together_behind_an_operator_that_makes_rows_of_its_own():
    """Its rows carry their key: that is who sends them, as with rows that only pass."""
    tables = [posts(2000, seed, places=60, topics=600) for seed in range(4)]
    schema = "place string, topic string, number long"
    app = weir.source(POSTS).process("place", numbered, name="places", state=Number, output=schema)
    app = app.keyed("topic", weir.Count(emit="rows"), name="topics")
    with start(app, servers=3, routing=weir.Locality(period=1, forecast=None)) as query:
        query.feed(tables[0])
        by_hash = query.progress.locality
        query.reconfigure(wait=True)
        for table in tables[1:]:
            query.feed(table)
        assert by_hash < 0.45
        assert query.progress.locality > by_hash + 0.2
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_a_restart_goes_on_with_the_tables_it_had(checkpoint):
    tables = [posts(3000, s, 40, 400) for s in (*range(6), 9)]
    query = start(two_counts(), checkpoint, servers=3, routing=weir.Locality(period=2))
    reconfigured(query, tables[:4], when=(1,))
    assert len(query.routing_table("topics"))
    query.restart()
    for table in tables[4:6]:
        query.feed(table)
    assert query.recent_progress[1].batch == 4
    assert query.recent_progress[1].locality > 0.5
    assert rows_of(query.state("topics")) == counts(tables[:6], "topic")
    homes_of(checkpoint, "topics")
    # and with another number of servers: learnt homes are kept until the next reconfiguration
    query.restart(servers=5)
    query.feed(tables[6])
    assert set(homes_of(checkpoint, "topics").values()) == {0, 1, 2}
    query.reconfigure(wait=True)
    tables.append(posts(3000, 10, 40, 400))
    query.feed(tables[7])
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert len(set(homes_of(checkpoint, "topics").values())) == 5


def test_hot_keys_of_operators_that_merge_are_shared_out(checkpoint):
    rng = np.random.default_rng(3)

    def batch():
        topics = np.where(rng.random(4000) < 0.6, 0, rng.integers(1, 300, 4000))
        places = rng.integers(0, 30, 4000)
        return pa.table({"place": [f"p{p}" for p in places], "topic": [f"t{t}" for t in topics], "n": topics})

    tables = [batch() for _ in range(5)]
    routing = weir.Locality(period=2, split_hot=True)
    query = reconfigured(start(two_counts(), checkpoint, servers=3, routing=routing), tables)
    assert query.recent_progress[0].operators["topics"].imbalance > 1.6
    assert query.progress.operators["topics"].imbalance < 1.3
    assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_a_table_of_something_else_is_refused(tables, checkpoint, tmp_path):
    keys = pa.table({"place": pa.array([1, 2, 3])})
    Table.from_keys(keys, np.array([0, 1, 2]), n=3, operator="places").save(tmp_path / "places.arrow")
    routing = weir.Locality(tables={"places": str(tmp_path / "places.arrow")})
    with pytest.raises(weir.errors.CheckpointMismatch, match="make a table from this application's data"):
        run(two_counts(), tables[:1], checkpoint, servers=3, routing=routing)
    with pytest.raises(weir.errors.CheckpointMismatch, match="is for 3 servers, not for 2"):
        run(two_counts(), tables[:1], checkpoint + "2", servers=2, routing=routing)


def test_tables_made_offline_are_there_from_the_first_batch(tables, checkpoint, tmp_path):
    for name, column, count in (("places", "place", 40), ("topics", "topic", 400)):
        keys = pa.table({column: [f"{column} {i}" for i in range(count)]})
        homes = np.array([(i if column == "place" else i // 10) % 3 for i in range(count)])
        Table.from_keys(keys, homes, n=3, operator=name).save(tmp_path / f"{name}.arrow")
    query = run(two_counts(), tables, checkpoint, servers=3, routing=weir.Locality(tables=str(tmp_path)))
    assert query.recent_progress[0].locality > 0.7
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert CheckpointLayout(Storage(checkpoint)).read_commit("commits/000000000000-0000").table_version == 1


def test_reconfigure_without_learning_is_refused(tables):
    query = run(two_counts(), tables[:1], servers=2)
    with pytest.raises(weir.errors.EngineError, match="nothing to reconfigure"):
        query.reconfigure()


def failing(_):
    raise MemoryError("no room for the graph")


@pytest.mark.parametrize(("proposal", "why"), [(failing, "failed: MemoryError: no room"), (None, None)])
def test_steering_that_does_not_happen_says_why(tables, checkpoint, monkeypatch, caplog, proposal, why):
    if proposal is not None:
        monkeypatch.setattr("weir.engine.steering.learning.propose", proposal)
    query = start(two_counts(), checkpoint, servers=3, routing=weir.Locality(period=1))
    for table in tables:
        query.feed(table)
        futures.wait([query._driver.learner._pool.submit(int)])
    said = query.progress.routing.stalled
    banner = [text for text in snapshot(CheckpointReader(checkpoint))["health"].details if "move" in text]
    if why is None:
        assert said is None
        assert banner == []
    else:
        assert why in said
        assert banner == [f"Keys do not move: {said}."]
        assert len([r for r in caplog.records if "stalls" in r.message]) == 1
