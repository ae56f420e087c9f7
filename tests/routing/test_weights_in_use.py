"""Weight grouping in a running query: merged results are right, slow servers get less and get it back."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pyarrow as pa
import pytest

import weir
from support import POSTS, counts, posts, rows_of, two_counts
from truth import told_time
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.local.in_process import InProcessRunner
from weir.faults import watching
from weir.state.storage import Storage
from weir.testing import run, start
from weir_evaluation.routing import DynamicWeights

SCALE = weir.Weighted().scale


def test_results_are_right_and_near_servers_get_more():
    tables = [posts(3000, seed) for seed in range(2)]
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(lambda b: b, name="spread", routing=weir.Weighted(control=None))
        .keyed("topic", weir.Count(), name="topics", routing=weir.Weighted(weir.Hash(), control=None))
    )
    query = run(app, tables, servers=3)
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    last = query.progress
    assert len(last.places) == 3
    weights = last.weights["places → spread"]
    for server in range(3):
        mine = weights[str(server)]
        others = [w for i, w in enumerate(mine) if i != server]
        assert mine[server] == SCALE > 2 * max(others)
    share = weights["0"][0] / sum(weights["0"])
    # complete rounds are in proportion; a last one that is not may add a few rows per server
    assert last.edges["places → spread"].local / 3000 == pytest.approx(share, abs=0.05)


def test_from_a_source_all_servers_are_equally_far():
    tables = [posts(3000, seed) for seed in range(2)]
    app = weir.source(POSTS).keyed("place", weir.Count(), name="places", routing=weir.Weighted(weir.Hash()))
    query = run(app, tables, servers=3)
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert query.recent_progress[0].weights["source → places"] == {"source": [SCALE] * 3}
    assert query.recent_progress[0].operators["places"].imbalance < 1.05


def test_an_operator_that_cannot_merge_is_refused():
    app = weir.source(POSTS).process(
        "place", lambda key, rows, state: None, name="custom", routing=weir.Weighted(weir.Hash())
    )
    with pytest.raises(
        weir.errors.GroupingError, match=r"'custom': Weighted \('WG'\) on the edge source → custom .* merge"
    ) as error:
        start(app, servers=2)
    assert "Hash" in str(error.value)


@dataclass
class Seen:
    rows: int = 0


class Timed(weir.Process):
    """Every row takes as long as a function says."""

    state = Seen
    output = {"topic": "string"}

    def __init__(self, pass_time):
        self.pass_time = pass_time
        super().__init__()

    def process(self, key, rows, state):
        state.rows += len(rows)
        self.pass_time(len(rows))

    def merge(self, one, other):
        return Seen(one.rows + other.rows)


def test_a_slowed_server_loses_weight_and_a_recovered_one_gets_it_back(monkeypatch):
    running, run_step = {"server": -1, "slowed": 0}, InProcessRunner._step

    def step(self, job, number, server, inbox):
        running["server"] = server
        return run_step(self, job, number, server, inbox)

    monkeypatch.setattr(InProcessRunner, "_step", step)
    keys = [f"k{i}" for i in range(50)]
    with told_time() as clock:

        def pass_time(rows):
            clock.sleep(rows * (8e-3 if running["server"] == running["slowed"] else 1e-3))

        control = DynamicWeights(alpha=2, delta=16)
        app = weir.source("topic string").keyed(
            "topic", Timed(pass_time), name="served", routing=weir.Weighted(weir.Hash(), control=control)
        )
        query = start(app, servers=2)
        for batch in range(9):
            if batch == 4:
                running["slowed"] = None
            query.feed(pa.table({"topic": keys * 10}))
    weights = [p.weights["source → served"]["source"] for p in query.recent_progress]
    assert weights[:2] == [[SCALE, SCALE]] * 2  # nobody judges by the first batch, in which workers warm up
    shares = [slow / (slow + fast) for slow, fast in weights]
    assert min(shares[2:6]) < 0.25
    assert shares[-1] > 1.5 * min(shares[2:6])
    slow, fast = query.recent_progress[2].operators["served"].execution
    assert slow > 6 * fast
    assert rows_of(query.state("served")) == [(k, 10 * 9) for k in sorted(keys)]


def test_overflow_of_a_hot_key_is_dealt_out_by_weights():
    """Place and topic are both hot: where its rows are is one server, which cannot carry them all."""
    hot = ["p0"] * 1200 + [f"p{i % 30}" for i in range(800)]
    topics = ["t0"] * 1200 + [f"t{i % 200}" for i in range(800)]
    tables = [pa.table({"place": hot, "topic": topics, "n": range(2000)})] * 4

    def last_batch(split):
        query = run(two_counts(), tables, servers=3, routing=weir.Locality(period=None, split_hot=split))
        assert rows_of(query.state("topics")) == counts(tables, "topic")
        return query.progress

    stays = last_batch(True)
    dealt = last_batch(weir.Weighted(weir.routing.LocalOrShuffle(), control=None, near=0.5))
    assert stays.operators["topics"].imbalance > 1.5
    assert dealt.operators["topics"].imbalance < 1.35
    mine = dealt.weights["places → topics"]
    assert all(weights[int(server)] == max(weights) for server, weights in mine.items())


def sent(checkpoint, name):
    """Return who sent how many rows to whom, and with which weights, in a batch."""
    progress = CheckpointLayout(Storage(str(checkpoint))).read_commit(f"commits/{name}").progress
    edge = progress.edges["spread → topics"]
    return edge.local, edge.remote, progress.weights, progress.operators["topics"].pairs


@pytest.mark.faults
def test_a_replay_routes_by_the_places_times_and_counters_of_its_plan(tmp_path, checkpoint):
    tables = [posts(1500, seed) for seed in range(3)]
    app = (
        weir.source(POSTS)
        .map_batches(lambda batch: batch, name="spread", routing=weir.Weighted())
        .keyed("topic", weir.Count(), name="topics", routing=weir.Weighted(weir.Hash()))
    )
    copies = [tmp_path / "one", tmp_path / "two"]

    def copy(point, batch):
        """Keep the checkpoint as it is before anything of batch 2 is committed."""
        if (point, batch) == ("job-done", 2):
            for folder in copies:
                shutil.copytree(checkpoint, folder)

    with watching(copy):
        run(app, tables, checkpoint, servers=3)
    for folder in copies:
        query = start(app, str(folder), servers=3)
        plan = query._driver.ledger.planned(2)
        assert len(plan.network.places) == 3
        assert set(plan.feedback) == {"spread", "topics"}
        query.feed(tables[2])
        assert rows_of(query.state("topics")) == counts(tables, "topic")
        assert sent(folder, "000000000002-0000") == sent(checkpoint, "000000000002-0000")
