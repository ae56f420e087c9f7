"""Nexmark's stream is the same for a seed, and its queries say the same on Weir and in Spark SQL."""

from __future__ import annotations

import argparse

import pyarrow.compute as pc
import pytest
from rich.console import Console

from weir_evaluation.bench import nexmark
from weir_evaluation.bench.nexmark.generate import Shape, events, write

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"


def test_the_stream_is_the_same_for_a_seed_and_keeps_its_proportions():
    shape = Shape(20_000, 5_000, seed=4)
    one, again = events(shape, 5_000, 10_000), events(shape, 5_000, 10_000)
    assert one == again
    assert one != events(Shape(20_000, 5_000, seed=5), 5_000, 10_000)
    assert {name: t.num_rows for name, t in one.items()} == {"persons": 100, "auctions": 300, "bids": 4600}
    last = pc.max(one["auctions"]["id"]).as_py()
    assert pc.max(one["bids"]["auction"]).as_py() <= last, "nobody bids for what is not there yet"
    assert pc.max(one["auctions"]["seller"]).as_py() <= pc.max(one["persons"]["id"]).as_py()


def compared(spark, folder, name, systems):
    shape = Shape(6_000, 3_000, rate=200)
    rows = write(folder / "data", shape)
    args = argparse.Namespace(batches=2, servers=2, system=systems)
    result = nexmark._query(spark, folder, nexmark.QUERIES[name], shape, rows, args, Console(quiet=True))
    assert result["equal"]
    assert min(result["rows_out"].values()) >= 5
    return result


@pytest.mark.long
def test_a_query_says_the_same_on_weir_and_in_sql(spark, tmp_path):
    result = compared(spark, tmp_path, "q8", ["weir", "spark_sql"])
    assert result["weir"] > 0
    assert result["spark_python"] is None


@pytest.mark.long
@pytest.mark.parametrize("name", nexmark.QUERIES)
def test_every_query_says_the_same_on_all_systems(spark, tmp_path, name):
    spark.conf.set(STATE_STORE, nexmark.ROCKSDB)  # Spark's operators for Python code need it
    try:
        compared(spark, tmp_path, name, None)
    finally:
        spark.conf.unset(STATE_STORE)
