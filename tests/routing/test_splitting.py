"""Every grouping that splits keys: partial states are merged, and the merged results are right."""

from __future__ import annotations

import pytest

import weir
from support import POSTS, counts, posts, rows_of
from truth import count_and_top_by, homes_of
from weir.testing import run, start
from weir_evaluation import routing as rivals

SPLITTING = [
    weir.PartialKey(),
    rivals.TwoChoices(),
    weir.routing.RandomChoices(),
    rivals.BoundedRing(),
    rivals.DChoices(),
    rivals.WChoices(),
    weir.Consistent(),
]


@pytest.fixture(scope="module")
def tables():
    return [posts(2000, seed) for seed in range(2)]


@pytest.mark.parametrize("grouping", SPLITTING, ids=lambda g: g.name)
def test_partial_states_are_merged_and_counters_go_on(tables, grouping):
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places", routing=grouping)
        .keyed("topic", weir.Aggregate(n="count", top="max(n)"), name="topics", routing=grouping)
    )
    query = run(app, tables, servers=3, seed=5)
    assert rows_of(query.state("places")) == counts(tables, "place")
    expected = count_and_top_by(tables, "topic")
    assert rows_of(query.state("topics")) == expected
    updates = {row["topic"]: tuple(row.values()) for row in query.output("topics").to_pylist()}
    assert sorted(updates.values(), key=repr) == expected
    assert query.progress["operators"]["places"]["imbalance"] < 1.6
    assert query._driver.ledger.last.counters


@pytest.mark.parametrize("grouping", [weir.Shuffle(), weir.routing.LocalOrShuffle()], ids=lambda g: g.name)
@pytest.mark.parametrize("behind", ["the source", "a map"])
def test_keys_dealt_out_from_a_source_are_merged_on_one_server(tables, checkpoint, grouping, behind):
    stream = weir.source(POSTS)
    if behind == "a map":
        stream = stream.map_batches(lambda batch: batch, name="same")
    app = stream.keyed("place", weir.Count(), name="places", routing=grouping)
    query = start(app, checkpoint, servers=3)
    for batch, table in enumerate([*tables, tables[0]]):
        query.feed(table)
        if batch == 1:
            query.scale_out(1)
    assert rows_of(query.state("places")) == counts([*tables, tables[0]], "place")
    assert len(homes_of(checkpoint, "places")) == query.progress["state_keys"]["places"]


@pytest.mark.parametrize("grouping", SPLITTING, ids=lambda g: g.name)
def test_before_an_operator_that_cannot_merge_it_is_refused(grouping):
    app = weir.source(POSTS).process(
        "place", lambda k, r, s: None, name=f"p{grouping.name}", routing=grouping
    )
    with pytest.raises(weir.errors.GroupingError, match="cannot merge partial states"):
        start(app, servers=2)


@pytest.mark.parametrize("every", [2, 3])
def test_partial_states_may_wait_for_their_aggregation(checkpoint, every):
    tables = [posts(1000, seed) for seed in (*range(4), 9)]
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", weir.Aggregate(n="count", top="max(n)"), name="topics", routing=weir.PartialKey(),
               aggregate_every=every)
    )  # fmt: skip
    query = start(app, checkpoint, servers=3)
    for table in tables[:4]:
        query.feed(table)
    expected = count_and_top_by(tables[:4], "topic")
    assert rows_of(query.state("topics")) == expected
    delivered = {batch: table.num_rows for _, batch, table in query.deliveries}
    assert [b for b, rows in sorted(delivered.items()) if rows] == [
        b for b in range(4) if (b + 1) % every == 0
    ]
    # nothing is lost when the shape changes while partial states wait
    query.restart(servers=4)
    query.feed(tables[4])
    assert rows_of(query.state("topics")) == count_and_top_by(tables, "topic")


def test_waiting_without_splitting_is_refused():
    app = weir.source(POSTS).keyed("place", weir.Count(), aggregate_every=3)
    with pytest.raises(weir.errors.GroupingError, match="nothing to aggregate later"):
        start(app, servers=2)
