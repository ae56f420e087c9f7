"""Advice with Spark: both readers count the same, tables that Spark knows, and tables that start a query."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from recorded import planted, stream_of, write
from weir.advise import advise
from weir.advise.counts import Question, count_files, open_files
from weir.errors import UnknownColumn, WeirError
from weir.hashing import hash_columns

pytestmark = pytest.mark.usefixtures("few_starts")


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    table = stream_of(*planted(5_000))
    return write(tmp_path_factory.mktemp("advise") / "communities.parquet", table)


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

    table, gone = with_nulls(stream_of(*planted(2_000)))
    path = str(tmp_path / f"rows.{'csv' if kind == 'csv' else 'parquet'}")
    if kind == "csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), path)
    operators = {"places": ["place"], "both": ["topic", "n"]}
    dataset = open_files(path)
    question = Question(path, operators, "time", slices=6)
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


def test_a_table_that_spark_knows(spark, communities):
    spark.read.parquet(str(communities)).createOrReplaceTempView("posts_advised")
    there = advice("table:posts_advised", time="time")
    assert there["reader"] == "spark"
    assert there["table"] == advice(communities, time="time")["table"]
    unordered = advice("table:posts_advised")
    assert unordered["drift"] is None
    assert "no_time" in {piece["code"] for piece in unordered["recommendation"]["advice"]}
    with pytest.raises(UnknownColumn, match="did you mean 'topic'"):
        advice("table:posts_advised", keys=["place", "topik"])
    with pytest.raises(WeirError, match="did you mean 'posts_advised'"):
        advice("table:posts_advise")
