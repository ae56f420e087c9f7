"""Tables of Spark's catalogs: what needs no connector here, the rest in processes that have one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import sink_app

import weir.testing
from weir.engine.checkpoint import write_table
from weir.errors import EngineError, SinkError, TopologyError, UnknownColumn
from weir.sinks import SparkTable
from weir.spark.state import output_frame
from weir.state.storage import Storage
from weir_evaluation.connectors import environment
from weir_evaluation.jars import NoJars

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def connectors():
    try:
        return environment()
    except NoJars as error:
        pytest.skip(str(error))


@pytest.mark.long
def test_tables_of_both_connectors(connectors):
    """Run table_cases.py."""
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / "table_cases.py")]
    done = subprocess.run(command, env=connectors, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture
def opened(spark):
    """Open a sink for rows of some columns."""

    def open_sink(sink):
        sink.prepare(lambda: spark.createDataFrame([], "place string, n long"))
        sink.open("q", "places", pa.schema([("place", pa.string()), ("n", pa.int64())]), True)

    return open_sink


def test_a_table_that_is_not_there(opened):
    with pytest.raises(
        SinkError, match=r"no such table. Make it: CREATE TABLE shop \(`place` string, `n` bigint\)"
    ):
        opened(SparkTable("shop"))


def test_a_format_that_cannot_note_batches(opened, spark, tmp_path):
    spark.sql(f"CREATE TABLE parquet_rows (place string, n bigint) USING parquet LOCATION '{tmp_path}'")
    try:
        with pytest.raises(
            TopologyError, match="format='parquet' is not supported.*known: 'delta', 'iceberg'"
        ):
            opened(SparkTable("parquet_rows"))
    finally:
        spark.sql("DROP TABLE parquet_rows")
    with pytest.raises(TopologyError, match="did you mean 'iceberg'"):
        SparkTable("t", "iceburg")


def test_columns_that_do_not_fit(spark):
    rows = spark.createDataFrame([], "place string, n long, gone boolean")
    sink = SparkTable("t", keys=["place"], deleted="gone")
    table = spark.createDataFrame([], "m string, N long, Place string")
    assert sink._fitted(rows, table).dtypes == [
        ("m", "string"),
        ("N", "bigint"),
        ("Place", "string"),
        ("gone", "boolean"),
    ]
    for columns, why in (
        ("place string", "the table has no column 'n'"),
        ("place string, n int", "'n' is bigint and there int"),
        ("place int, n long", "'place' is string and there int"),
    ):
        with pytest.raises(SinkError, match=why):
            sink._fitted(rows, spark.createDataFrame([], columns))
    with pytest.raises(UnknownColumn):
        SparkTable("t", keys=["other"]).open("q", "o", pa.schema([("place", pa.string())]), True)


def test_the_last_row_of_each_key_in_the_order_of_the_batch(spark, tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    tables = [pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]}), pa.table({"k": ["c", "b"], "n": [4, None]})]
    files = [write_table(storage, f"{i}", table) for i, table in enumerate(tables)]
    for little in (1 << 20, 0):  # read by the driver, and by tasks
        monkeypatch.setattr("weir.spark.state.LITTLE", little)
        rows = output_frame(spark, storage, files, tables[0].schema, order="weir_order")
        last = SparkTable("t", keys=["k"])._last_of_each(rows)
        assert sorted(map(tuple, last.collect())) == [("a", 3), ("b", None), ("c", 4)]


def test_without_spark_there_is_none():
    with pytest.raises(EngineError, match="no Spark here"):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=1, sink=SparkTable("t"))
