"""Weight grouping on real Spark: merged results are plain Spark's, slow servers get less and get it back."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
import pytest

import weir
from support import POSTS, counted, posts, rows_of, stream, write_batches

NOW = {"availableNow": True}
SCALE = weir.Weighted().scale


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_batches(
        tmp_path_factory.mktemp("weighted") / "posts", [posts(3000, seed) for seed in range(2)]
    )


@pytest.mark.parametrize("profile", ["paper", "measure"])
def test_results_are_plain_sparks_and_near_servers_get_more(spark, folder, checkpoint, profile):
    near = weir.Weighted(profile=profile, control=None)
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .map_batches(lambda b: b, name="spread", routing=near)
        .keyed(
            "topic", weir.Count(), name="topics", routing=weir.Weighted(weir.Hash(), profile, control=None)
        )
    )
    query = app.start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("places")) == counted(spark, folder, "place")
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")
    first, last = query.recent_progress
    assert len(last["places"]) == 3
    edge = last["edges"]["places → spread"]
    weights = last["weights"]["places → spread"]
    for server in range(3):
        mine = weights[str(server)]
        others = [w for i, w in enumerate(mine) if i != server]
        assert mine[server] == SCALE >= max(others)
        assert profile == "measure" or 2 * max(others) < SCALE
    share = weights["0"][0] / sum(weights["0"])
    # complete rounds are in proportion; a last one that is not may add a few rows per server
    assert edge["local"] / 3000 == pytest.approx(share, abs=0.05)
    if profile == "measure":
        assert last["probe"]["node"]["measured"]
        assert last["probe"]["rack"]["why"] == "no two servers are so far apart"
        plans = [query._driver.ledger.planned(p["batch"]) for p in (first, last)]
        assert plans[0].network.profile == plans[1].network.profile
        measured = plans[0].network.profile["latency_s"][1]
        assert measured == last["probe"]["node"]["latency_s"] != 20e-6


def test_the_first_hop_is_routed_in_python_where_all_servers_are_equally_far(spark, folder, checkpoint):
    app = weir.source(stream(spark, folder, POSTS)).keyed(
        "place", weir.Count(), name="places", routing=weir.Weighted(weir.Hash())
    )
    query = app.start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("places")) == counted(spark, folder, "place")
    assert query.progress["distance"]["source"]["rows"] == 0
    assert query.recent_progress[0]["weights"]["source → places"] == {"source": [SCALE] * 3}
    assert query.recent_progress[0]["operators"]["places"]["imbalance"] < 1.05


def test_an_operator_that_cannot_merge_is_refused(spark, folder, checkpoint):
    app = weir.source(stream(spark, folder, POSTS)).process(
        "place", lambda key, rows, state: None, name="custom", routing=weir.Weighted(weir.Hash())
    )
    with pytest.raises(
        weir.errors.GroupingError, match=r"'custom': WG on the edge source → custom .* merge"
    ) as error:
        app.start(checkpoint, servers=2)
    assert "Hash" in str(error.value)


@dataclass
class Seen:
    rows: int = 0


class Slowed(weir.Process):
    """Every row takes time; on server 0 more of it, as long as a file says so."""

    state = Seen
    output = {"topic": "string"}

    def __init__(self, marker):
        self.marker = marker
        super().__init__()

    def process(self, key, rows, state):
        from pathlib import Path

        from pyspark import TaskContext

        state.rows += len(rows)
        slow = TaskContext.get().partitionId() == 0 and Path(self.marker).exists()
        time.sleep(len(rows) * (8e-3 if slow else 1e-3))

    def merge(self, one, other):
        return Seen(one.rows + other.rows)


def test_a_slowed_server_loses_weight_and_a_recovered_one_gets_it_back(spark, tmp_path, checkpoint):
    rows = [f"k{i}" for i in range(50)] * 10
    folder = write_batches(tmp_path / "data", [pa.table({"topic": rows})] * 9)
    marker = tmp_path / "slow"
    marker.touch()
    control = weir.routing.DynamicWeights(alpha=2, delta=16)
    app = weir.source(stream(spark, folder, "topic string")).keyed(
        "topic", Slowed(str(marker)), name="served", routing=weir.Weighted(weir.Hash(), control=control)
    )

    def sink(frame, batch):
        if batch == 3:
            marker.unlink()

    query = app.start(checkpoint, servers=2, sink=sink, trigger=NOW)
    query.await_termination()
    weights = [p["weights"]["source → served"]["source"] for p in query.recent_progress]
    assert weights[:2] == [[SCALE, SCALE]] * 2  # nobody judges by the first batch, in which workers warm up
    shares = [slow / (slow + fast) for slow, fast in weights]
    assert min(shares[2:6]) < 0.25
    assert shares[-1] > 1.5 * min(shares[2:6])
    slow, fast = query.recent_progress[2]["operators"]["served"]["execution"]
    assert slow > 6 * fast
    assert rows_of(query.state("served")) == [(k, 10 * 9) for k in sorted(set(rows))]


def test_overflow_of_a_hot_key_is_dealt_out_by_weights(spark, tmp_path, checkpoint):
    """Place and topic are both hot: where its rows are is one server, which cannot carry them all."""
    hot = ["p0"] * 1200 + [f"p{i % 30}" for i in range(800)]
    topics = ["t0"] * 1200 + [f"t{i % 200}" for i in range(800)]
    data = write_batches(
        tmp_path / "posts", [pa.table({"place": hot, "topic": topics, "n": range(2000)})] * 4
    )

    def run(split, folder):
        app = (
            weir.source(stream(spark, data, POSTS))
            .keyed("place", weir.Count(), name="places")
            .keyed("topic", weir.Count(), name="topics")
        )
        routing = weir.Locality(period=None, split_hot=split)
        query = app.start(checkpoint + folder, servers=3, routing=routing, trigger=NOW)
        query.await_termination()
        assert rows_of(query.state("topics")) == counted(spark, data, "topic")
        return query.progress

    stays = run(True, "stay")
    dealt = run(weir.Weighted(weir.routing.LocalOrShuffle(), control=None, near=0.5), "dealt")
    assert stays["operators"]["topics"]["imbalance"] > 1.5
    assert dealt["operators"]["topics"]["imbalance"] < 1.35
    mine = dealt["weights"]["places → topics"]
    assert all(weights[int(server)] == max(weights) for server, weights in mine.items())
