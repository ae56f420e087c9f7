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
    rivals.RandomChoices(),
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
    assert query.progress.operators["places"].imbalance < 1.6
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
    assert len(homes_of(checkpoint, "places")) == query.progress.state_keys["places"]


@pytest.mark.parametrize("grouping", SPLITTING, ids=lambda g: g.name)
def test_before_an_operator_that_cannot_merge_it_is_refused(grouping):
    app = weir.source(POSTS).process(
        "place", lambda k, r, s: None, name=f"p{grouping.name}", routing=grouping
    )
    with pytest.raises(weir.errors.GroupingError, match="cannot merge partial states"):
        start(app, servers=2)
