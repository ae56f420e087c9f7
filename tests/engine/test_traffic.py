"""What progress says of rows and bytes by distance, of the age of rows, and of times per server."""

from __future__ import annotations

import pytest

import weir
from support import POSTS, counts, posts, rows_of
from truth import told_time
from weir.testing import run


@pytest.fixture(scope="module")
def tables():
    return [posts(3000, seed) for seed in range(2)]


def by_distance(traffic):
    return {name: counts["rows"] for name, counts in traffic.items()}


def spread_app(spread):
    return (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(spread, name="spread", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )


@pytest.mark.parametrize(
    ("hosts", "racks", "apart"),
    [
        (["one"], None, "node"),
        (["one", "two", "three"], None, "rack"),
        (["one", "two", "three"], {"one": "/a", "two": "/b", "three": "/c"}, "any"),
    ],
)
def test_rows_by_distance_add_up_to_all_rows(tables, hosts, racks, apart):
    query = run(spread_app(lambda b: b), tables, servers=3, hosts=hosts, racks=racks)
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    for progress in query.recent_progress:
        hops = [progress.edges[edge] for edge in ("places → spread", "spread → topics")]
        assert progress.rows == 3000
        assert progress.rows_local + progress.rows_exchanged == 2 * 3000
        for edge in progress.edges.values():
            assert sum(c["rows"] for c in edge.distance.values()) == 3000
        for edge in hops:
            assert edge.distance["process"] == {"rows": edge.local, "bytes": 0}
            assert edge.distance[apart]["rows"] == edge.remote
            assert edge.distance[apart]["bytes"] > 0
        # what source tasks send has a distance, too
        total = by_distance(progress.distance)
        assert sum(total.values()) == 3 * 3000
        assert total["process"] == progress.rows_local
        exchanged = sum(edge.distance[apart]["bytes"] for edge in hops)
        assert progress.bytes_exchanged == exchanged


def test_partial_states_on_their_way_home_have_a_distance(tables):
    app = weir.source(POSTS).keyed("place", weir.Count(), name="places", routing=weir.PartialKey())
    for progress in run(app, tables, servers=3).recent_progress:
        assert sum(by_distance(progress.distance).values()) == 3000
        partials = progress.partials
        sent = partials["process"]["rows"] + partials["node"]["rows"]
        assert sent == progress.operators["places"].pairs
        assert partials["process"]["bytes"] == 0 < partials["node"]["bytes"]


def test_markers_tell_how_old_rows_are_at_each_operator_and_at_the_sink(tables):
    with told_time() as clock:

        def slowly(batch):
            clock.sleep(0.3)
            return batch

        progress = run(spread_app(slowly), tables, servers=2).progress
    ages = {name: op.latency for name, op in progress.operators.items()}
    assert all(age["p50"] <= age["p95"] <= age["p99"] for age in ages.values())
    assert ages["places"]["p50"] + 0.25 < ages["spread"]["p50"] <= ages["topics"]["p99"]
    assert ages["topics"]["p50"] <= progress.sinks["topics"]["p99"] * 1.1
    # older than the whole job nothing can be (a bucket is 9 % wide)
    assert progress.sinks["topics"]["p99"] < progress.seconds.job * 1.1
    slow = progress.operators["spread"]
    assert all(wait > 0.14 for wait in slow.waiting)  # half of the call
    for execution in slow.execution:
        assert execution > 0.3 / 3000
    assert sum(s.rows for s in progress.servers) == 3 * 3000
