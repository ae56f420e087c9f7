"""Weight grouping on Spark: near servers get more, and a replay routes by what its plan says."""

from __future__ import annotations

import shutil

import pytest

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, write_batches
from weir.engine.checkpoint import CheckpointLayout
from weir.faults import watching
from weir.state.storage import Storage

SCALE = weir.Weighted().scale


def sent(checkpoint, name):
    """Return who sent how many rows to whom, and with which weights, in a batch."""
    progress = CheckpointLayout(Storage(str(checkpoint))).read_commit(f"commits/{name}").progress
    edge = progress.edges["spread → topics"]
    return edge.local, edge.remote, progress.weights, progress.operators["topics"].pairs


@pytest.mark.faults
def test_near_servers_get_more_and_a_replay_routes_the_same(spark, tmp_path, checkpoint):
    tables = [posts(1500, seed) for seed in range(3)]
    folder = write_batches(tmp_path / "data", tables)
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(emit="rows"), name="places", routing=weir.Weighted(weir.Hash()))
        .map_batches(lambda b: b, name="spread", routing=weir.Weighted(control=None))
        .keyed("topic", weir.Count(), name="topics", routing=weir.Weighted(weir.Hash()))
    )
    copy = tmp_path / "copy"

    def look(point, batch):
        """Keep the checkpoint as it is before anything of batch 2 is committed."""
        if (point, batch) == ("job-done", 2):
            shutil.copytree(checkpoint, copy)

    with watching(look):
        # on live servers a batch that runs again may send rows elsewhere: it only ever runs again as a whole
        query = app.start(checkpoint, servers=3, trigger=NOW, execution="jobs")
        query.await_termination()
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    first, _, last = query.recent_progress
    # from a source, all servers are equally far
    assert first.weights["source → places"] == {"source": [SCALE] * 3}
    assert first.operators["places"].imbalance < 1.05
    assert len(last.places) == 3
    weights = last.weights["places → spread"]
    for server in range(3):
        mine = weights[str(server)]
        assert mine[server] == SCALE == max(mine)
    # complete rounds are in proportion; a last one that is not may add a few rows per server
    share = weights["0"][0] / sum(weights["0"])
    assert last.edges["places → spread"].local / 1500 == pytest.approx(share, abs=0.05)
    plan = query._driver.ledger.planned(last.batch)
    assert len(plan.network.places) == 3
    assert set(plan.feedback) == {"places", "spread", "topics"}

    again = app.start(str(copy), servers=3, trigger=NOW, execution="jobs")
    again.await_termination()
    assert rows_of(again.state("topics")) == counts(tables, "topic")
    assert sent(copy, "000000000002-0000") == sent(checkpoint, "000000000002-0000")
