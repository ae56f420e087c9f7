"""Files listed by Spark: each once, in a stream or in what is there now, and errors of servers that name them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from support import NOW, POSTS, counts, places_and_topics, rows_of, sums, write_parts
from weir.flow import parts_of

AT = pa.schema([("path", pa.string()), ("modified", pa.int64())])


def check(query, folder):
    table = pq.read_table(folder, partitioning="hive")
    assert rows_of(query.state("places")) == counts(table, "place")
    assert rows_of(query.state("topics")) == sums(table, "topic", "n")


def test_a_damaged_file_stops_the_stream_by_name_and_mended_it_goes_on(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=2, strays=0.0)
    broken = tmp_path / "posts" / "part=2" / "1.parquet"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-40])

    def start():
        reader = spark.readStream.option("maxFilesPerTrigger", 4)
        app = places_and_topics(
            weir.files(reader, folder, schema=POSTS, assignment={f"part={p}": p for p in range(4)})
        )
        query = app.start(checkpoint, servers=4, trigger=NOW)
        query.await_termination()
        return query

    with pytest.raises(weir.errors.SourceError, match=r"part=2/1.parquet: cannot be read as parquet"):
        start()
    broken.write_bytes(whole)
    query = start()
    check(query, folder)
    assert [p.rows for p in query.recent_progress] == [1200, 1200]
    for progress in query.recent_progress:
        assert progress.edges["files → places"].local == 1200
        assert progress.edges["files → places"].remote == 0
        assert progress.edges["files → places"].bytes == 0
        assert progress.operators["files"].imbalance == 1.0


def test_what_is_there_now_beside_another_source(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "odd name é %20", batches=1)
    plain = spark.read.parquet(folder)
    files = weir.files(spark.read, folder, schema="part int, place string", by=r"part=(\d+)/")
    table = weir.source(plain.select("part", "place"), "table")
    parts = files.union(table).keyed("part", weir.Count(), name="parts", routing=weir.PartialKey())
    places = files.keyed(["place", "part"], weir.Count(), name="places")
    query = weir.Application(parts, places).run(checkpoint, servers=3)
    assert rows_of(query.state("parts")) == rows_of(plain.union(plain).groupBy("part").count())
    assert rows_of(query.state("places")) == rows_of(plain.groupBy("place", "part").count())
    assert query.progress.rows == 2400


def test_a_file_that_is_gone_when_its_batch_runs_is_named(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=1)
    app = places_and_topics(weir.files(spark.read, folder))
    (tmp_path / "posts" / "part=1" / "0.parquet").unlink()
    with pytest.raises(weir.errors.SourceError, match=r"part=1/0.parquet: is gone"):
        app.run(checkpoint, servers=4)


def test_partitions_as_spark_finds_them(spark, tmp_path):
    folder = write_parts(tmp_path / "odd name é %20", batches=1)
    paths = sorted(Path(folder).rglob("*.parquet"))
    for by in ("folder", "file", r"part=(\d+)/"):
        listed = parts_of(weir.files(spark.read, folder, by=by)).frames["files (paths)"]
        here = parts_of(weir.files(None, folder, by=by)).listings["files (paths)"](paths)
        assert rows_of(listed.select("path", "partition", "bytes")) == rows_of(
            here.select(["path", "partition", "bytes"])
        )
        at = listed.selectExpr("path", "unix_micros(modified)")
        assert rows_of(at) == rows_of(here.select(["path", "modified"]).cast(AT))


def test_readers_that_cannot_be_used(spark, tmp_path):
    with pytest.raises(weir.errors.TopologyError, match="spark.readStream or spark.read"):
        weir.files(spark, str(tmp_path), schema=POSTS)
    with pytest.raises(weir.errors.SourceError, match="no file yet"):
        weir.files(spark.read, str(tmp_path))
