"""Groupings on Spark: partial states of split keys are merged."""

from __future__ import annotations

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, write_batches
from truth import count_and_top_by

TABLES = [posts(1500, seed) for seed in range(3)]


def test_partial_states_of_split_keys_are_merged(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES)
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(emit="rows"), name="places", routing=weir.Consistent())
        .keyed("topic", weir.Aggregate(n="count", top="max(n)"), name="topics", routing=weir.PartialKey())
    )  # fmt: skip
    delivered = {}
    sink = lambda f, b: delivered.update({b: rows_of(f)})  # noqa: E731
    query = app.start(checkpoint, servers=3, sink=sink, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("places")) == counts(TABLES, "place")
    expected = count_and_top_by(TABLES, "topic")
    assert rows_of(query.state("topics")) == expected
    assert rows_of(weir.read_state(checkpoint, "topics")) == expected
    for batch, rows in delivered.items():
        touched = set(TABLES[batch]["topic"].to_pylist())
        assert rows == [row for row in count_and_top_by(TABLES[: batch + 1], "topic") if row[0] in touched]
    # by hash it is 2.04; how far servers differ here depends on the time that each was seen to be busy
    assert query.progress.operators["places"].imbalance < 1.9
    assert query._driver.ledger.last.counters
