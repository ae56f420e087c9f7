"""Advice with Spark: both readers count the same, tables that Spark knows, and tables that start a query."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import weir
from recorded import planted, stream_of, write
from support import stream, write_batches
from weir.advise import advise
from weir.advise.counts import Question
from weir.advise.files import count_files, open_files
from weir.errors import UnknownColumn, WeirError
from weir.hashing import hash_columns


def advice(data, *, servers=4, keys=("place", "topic"), **options):
    return advise(data, keys=keys, servers=servers, **options)


def with_nulls(table):
    rng = np.random.default_rng(3)
    gone = pa.array(rng.random(len(table)) < 0.05)
    empty = pa.scalar(None, pa.string())
    return table.set_column(2, "topic", pa.compute.if_else(gone, empty, table["topic"])), int(
        pa.compute.sum(gone).as_py()
    )


def same(ours, theirs):
    assert (ours.rows, ours.nulls, ours.begins) == (theirs.rows, theirs.nulls, theirs.begins)
    assert len(ours.slices) == len(theirs.slices)
    for a, b in zip(ours.slices, theirs.slices, strict=True):
        assert a.rows == b.rows
        for kind in ("keys", "pairs"):
            for which, counts in getattr(a, kind).items():
                for side in ("left", "right", "count"):
                    np.testing.assert_array_equal(
                        getattr(counts, side), getattr(getattr(b, kind)[which], side)
                    )
    for a, b in zip(ours.keys, theirs.keys, strict=True):
        assert a.schema.types == b.schema.types
        assert set(hash_columns(a.columns).tolist()) == set(hash_columns(b.columns).tolist())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_both_readers_count_the_same(spark, tmp_path, kind):
    from weir.spark.counting import count_frame, open_frame

    table, gone = with_nulls(stream_of(*planted(3_000)))
    path = str(tmp_path / f"rows.{'csv' if kind == 'csv' else 'parquet'}")
    if kind == "csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), path)
    operators = {"places": ["place"], "both": ["topic", "n"]}
    dataset = open_files(path)
    question = Question(path, operators, "time", slices=10)
    ours = count_files(question, dataset)
    theirs = count_frame(question, open_frame(spark, path, dataset.schema))
    assert ours.nulls == {"places": 0, "both": gone, "time": 0}
    same(ours, theirs)
    assert ours.row_bytes == pytest.approx(theirs.row_bytes, rel=0.2)


def test_both_readers_keep_the_heaviest_pairs_within_the_same_bound(spark, communities):
    from weir.spark.counting import count_frame, open_frame

    question = Question(str(communities), {"a": ["place"], "b": ["topic"]}, "time", capacity=1_000, slices=5)
    ours = count_files(question, open_files(question.data))
    theirs = count_frame(question, open_frame(spark, question.data))
    for a, b in zip(ours.slices, theirs.slices, strict=True):
        left, right = a.pairs[0, 1].count, b.pairs[0, 1].count
        assert len(left) == len(right) == 200
        np.testing.assert_array_equal(np.sort(left), np.sort(right))


def test_a_table_that_spark_knows(spark, communities, advised):
    spark.read.parquet(str(communities)).createOrReplaceTempView("posts_advised")
    there = advice("table:posts_advised", time="time")
    assert there["reader"] == "spark"
    assert there["table"] == advised["table"]
    unordered = advice("table:posts_advised")
    assert unordered["drift"] is None
    assert "no_time" in {piece["code"] for piece in unordered["recommendation"]["advice"]}
    with pytest.raises(UnknownColumn, match="did you mean 'topic'"):
        advice("table:posts_advised", keys=["place", "topik"])
    with pytest.raises(WeirError, match="did you mean 'posts_advised'"):
        advice("table:posts_advise")


def test_tables_written_start_a_query_with_the_promised_locality(spark, tmp_path, checkpoint):
    table = stream_of(*planted(10_000))
    past, future = table.slice(0, 6_000), [table.slice(6_000, 2_000), table.slice(8_000)]
    out = tmp_path / "tables"
    result = advice(
        write(tmp_path / "past.parquet", past),
        out=out,
        operators=["places", "topics"],
        time="time",
        servers=3,
    )
    read = weir.Table.from_file(out / "topics.arrow", n=3)
    assert read.keys.column_names == ["topic"]
    assert read.lookup("t 5") in (0, 1, 2)
    rows = stream(
        spark, write_batches(tmp_path / "rows", future), "time timestamp, place string, topic string, n long"
    )
    query = (
        weir.source(rows)
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Count(), name="topics")
        .start(checkpoint, servers=3, routing=weir.Locality(start=str(out)), trigger={"availableNow": True})
    )
    query.await_termination()
    assert query.recent_progress[0]["locality"] == pytest.approx(result["table"]["locality"], abs=0.03)
    assert query.recent_progress[0]["locality"] > 0.85
