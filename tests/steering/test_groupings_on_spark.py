"""Every grouping that splits keys, on real Spark: merged results are plain Spark's."""

from __future__ import annotations

import pytest

import weir
from support import POSTS, counted, posts, rows_of, stream, write_batches

NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_batches(
        tmp_path_factory.mktemp("groupings") / "posts", [posts(2000, seed) for seed in range(2)]
    )


@pytest.mark.parametrize(
    "grouping",
    [
        weir.PartialKey(),
        weir.routing.TwoChoices(),
        weir.routing.RandomChoices(),
        weir.routing.BoundedRing(),
        weir.routing.DChoices(),
        weir.routing.WChoices(),
        weir.Consistent(),
    ],
    ids=lambda g: g.name,
)
def test_partial_states_are_merged_and_counters_go_on(spark, folder, checkpoint, grouping):
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places", routing=grouping)
        .keyed("topic", weir.Aggregate(n="count", top="max(n)"), name="topics", routing=grouping)
    )
    updates = {}
    sink = lambda f, b: updates.update({r["topic"]: tuple(r) for r in f.collect()})  # noqa: E731
    query = app.start(checkpoint, servers=3, sink=sink, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("places")) == counted(spark, folder, "place")
    frame = spark.read.schema(POSTS).parquet(folder)
    frame.createOrReplaceTempView("grouped_posts")
    expected = rows_of(spark.sql("select topic, count(*), max(n) from grouped_posts group by topic"))
    assert rows_of(query.state("topics")) == expected
    assert sorted(updates.values(), key=repr) == expected
    assert query.progress["operators"]["places"]["imbalance"] < 1.6
    assert query._driver.ledger.last.counters


def test_a_splitting_grouping_before_an_operator_that_cannot_merge_is_refused(spark, folder, checkpoint):
    app = weir.source(stream(spark, folder, POSTS))
    for grouping in (
        weir.PartialKey(),
        weir.routing.TwoChoices(),
        weir.routing.RandomChoices(),
        weir.routing.BoundedRing(),
        weir.Consistent(),
        weir.routing.WChoices(),
        weir.routing.DChoices(),
    ):
        one = app.process("place", lambda k, r, s: None, name=f"p{grouping.name}", routing=grouping)
        with pytest.raises(weir.errors.GroupingError, match="cannot merge partial states"):
            one.start(checkpoint, servers=2)


@pytest.mark.parametrize("every", [2, 3])
def test_partial_states_may_wait_for_their_aggregation(spark, tmp_path, checkpoint, every):
    folder = write_batches(tmp_path / "posts", [posts(1000, seed) for seed in range(4)])
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Aggregate(n="count", top="max(n)"), name="topics", routing=weir.PartialKey(),
               aggregate_every=every)
    )  # fmt: skip
    delivered = {}
    sink = lambda f, b: delivered.update({b: f.count()})  # noqa: E731
    query = app.start(checkpoint, servers=3, sink=sink, trigger=NOW)
    query.await_termination()
    frame = spark.read.schema(POSTS).parquet(folder)
    frame.createOrReplaceTempView("waiting_posts")
    expected = rows_of(spark.sql("select topic, count(*), max(n) from waiting_posts group by topic"))
    assert rows_of(query.state("topics")) == expected
    assert rows_of(weir.read_state(checkpoint, "topics")) == expected
    assert [b for b, rows in sorted(delivered.items()) if rows] == [
        b for b in range(4) if (b + 1) % every == 0
    ]
    # nothing is lost when the shape changes while partial states wait
    write_batches(tmp_path / "posts", [posts(1000, 9)])
    wider = app.start(checkpoint, servers=4, trigger=NOW)
    wider.await_termination()
    frame = spark.read.schema(POSTS).parquet(folder)
    frame.createOrReplaceTempView("waiting_posts")
    expected = rows_of(spark.sql("select topic, count(*), max(n) from waiting_posts group by topic"))
    assert rows_of(wider.state("topics")) == expected


def test_waiting_without_splitting_is_refused(spark, folder, checkpoint):
    app = weir.source(stream(spark, folder, POSTS)).keyed("place", weir.Count(), aggregate_every=3)
    with pytest.raises(weir.errors.GroupingError, match="nothing to aggregate later"):
        app.start(checkpoint, servers=2)
