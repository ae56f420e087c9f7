"""Files as a source: read on the server they are assigned to, each row once, or a clear error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from support import rows_of
from weir.operators.file_reader import CHUNK_ROWS, read_file
from weir.operators.read import Read

POSTS = "place string, topic string, n long"


def write_parts(folder: Path, batches: int, parts: int = 4, rows: int = 300, strays: float = 0.1) -> str:
    """Files by place: each folder holds posts of its own places, with a share of strays from all others."""
    rng = np.random.default_rng(batches)
    for batch in range(batches):
        for part in range(parts):
            of = np.where(rng.random(rows) < strays, rng.integers(0, parts, rows), part)
            place = rng.integers(0, 10, rows) * parts + of
            table = pa.table(
                {
                    "place": pa.array([f"place {p}" for p in place]),
                    "topic": pa.array([f"topic {(7 * p + t) % 60}" for p, t in zip(place, of, strict=True)]),
                    "n": pa.array(rng.integers(0, 1000, rows)),
                    "unread": pa.array(["x" * 20] * rows),
                }
            )
            path = folder / f"part={part}" / f"{batch}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            at = 1_700_000_000 + 100 * batch + part
            os.utime(path, (at, at))
    return str(folder)


PLACES = weir.Table.of({f"place {p}": p % 4 for p in range(40)})


def counts(stream):
    return stream.keyed("place", weir.Count(), name="places", routing=PLACES).keyed(
        "topic", weir.Aggregate(total="sum(n)"), name="topics"
    )


def check(spark, query, folder):
    plain = spark.read.parquet(folder)
    assert rows_of(query.state("places")) == rows_of(plain.groupBy("place").count())
    topics = plain.groupBy("topic").sum("n")
    assert rows_of(query.state("topics")) == rows_of(topics)


def test_rows_read_where_their_key_lives_do_not_travel(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=2, strays=0.0)
    reader = spark.readStream.option("maxFilesPerTrigger", 4)
    place = {f"part={p}": p for p in range(4)}
    app = counts(weir.files(reader, folder, schema=POSTS, place=place))
    query = app.start(checkpoint, servers=4, trigger={"availableNow": True})
    query.await_termination()
    check(spark, query, folder)
    assert [p["rows"] for p in query.recent_progress] == [1200, 1200]
    for progress in query.recent_progress:
        assert progress["edges"]["files → places"]["local"] == 1200
        assert progress["edges"]["files → places"]["remote"] == 0
        assert progress["edges"]["files → places"]["bytes"] == 0
        assert progress["operators"]["files"]["imbalance"] == 1.0
    # what nobody reads is not read, and what only Spark's listing carries goes no further
    assert query.topology.by_name["files"].rows_out.names == ["place", "topic", "n"]


def test_read_on_the_wrong_server_every_row_travels_and_the_result_is_the_same(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "odd name é %20", batches=1, strays=0.0)
    place = {f"part={p}": (p + 1) % 4 for p in range(4)}
    query = counts(weir.files(spark.read, folder, place=place)).run(checkpoint, servers=4)
    check(spark, query, folder)
    edge = query.progress["edges"]["files → places"]
    assert edge["local"] == 0
    assert edge["remote"] == 1200


def test_files_beside_another_source_and_columns_from_the_path(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=1)
    plain = spark.read.parquet(folder)
    files = weir.files(spark.read, folder, schema="part int, place string", by=r"part=(\d+)/")
    table = weir.source(plain.select("part", "place"), "table")
    parts = files.union(table).keyed("part", weir.Count(), name="parts", routing=weir.PartialKey())
    places = files.keyed(["place", "part"], weir.Count(), name="places")
    query = weir.Application(parts, places).run(checkpoint, servers=3)
    assert rows_of(query.state("parts")) == rows_of(plain.union(plain).groupBy("part").count())
    assert rows_of(query.state("places")) == rows_of(plain.groupBy("place", "part").count())
    assert query.progress["rows"] == 2400


def test_a_damaged_file_stops_the_query_by_name_and_mended_it_goes_on(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=1)
    broken = tmp_path / "posts" / "part=2" / "0.parquet"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-40])

    def start():
        app = counts(weir.files(spark.readStream, folder, schema=POSTS))
        query = app.start(checkpoint, servers=4, trigger={"availableNow": True})
        query.await_termination()
        return query

    with pytest.raises(weir.errors.SourceError, match=r"part=2/0.parquet: cannot be read as parquet"):
        start()
    broken.write_bytes(whole)
    check(spark, start(), folder)


def test_a_file_that_is_gone_when_its_batch_runs_is_named(spark, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=1)
    app = counts(weir.files(spark.read, folder, schema=POSTS))
    (tmp_path / "posts" / "part=1" / "0.parquet").unlink()
    with pytest.raises(weir.errors.SourceError, match=r"part=1/0.parquet: is gone"):
        app.run(checkpoint, servers=4)


def test_files_without_folders_are_refused_with_a_remedy(spark, tmp_path, checkpoint):
    flat = tmp_path / "flat"
    flat.mkdir()
    pq.write_table(pa.table({"place": ["a"]}), flat / "x.parquet")
    app = weir.files(spark.read, str(flat)).keyed("place", weir.Count())
    with pytest.raises(weir.errors.SourceError, match='by="file"'):
        app.run(checkpoint, servers=2)
    app = weir.files(spark.read, str(flat), by="file").keyed("place", weir.Count())
    assert rows_of(app.run(checkpoint + "2", servers=2).state("place")) == [("a", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "foldr"}, "pattern with one"),
        ({"by": "("}, "no pattern"),
        ({"place": {"part=0": 7}}, "names instance 7"),
        ({"place": "near"}, "expected"),
        ({"format": "parket"}, "did you mean 'parquet'"),
        ({"schema": "place strin"}, "did you mean 'string'"),
    ],
)
def test_mistakes_are_said_before_anything_runs(spark, tmp_path, options, message):
    options = {"schema": POSTS, **options}
    with pytest.raises(weir.errors.TopologyError, match=message):
        weir.Application(
            weir.files(spark.read, str(tmp_path), **options).keyed("place", weir.Count())
        ).topology(4)


def test_readers_and_folders_that_cannot_be_used(spark, tmp_path):
    with pytest.raises(weir.errors.TopologyError, match="spark.readStream or spark.read"):
        weir.files(spark, str(tmp_path), schema=POSTS)
    with pytest.raises(weir.errors.SourceError, match="no file yet"):
        weir.files(spark.read, str(tmp_path))


WANTED = pa.schema([("a", pa.int64()), ("day", pa.int32())])


def _file(folder: Path, table: pa.Table, format: str = "parquet") -> str:
    path = folder / "day=7" / f"x.{format}"
    path.parent.mkdir(exist_ok=True)
    if format == "parquet":
        pq.write_table(table, path, row_group_size=1000)
    else:
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table)
    return str(path)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_chunks_of_chosen_columns_widened_and_from_the_path(tmp_path, format):
    rows = 2 * CHUNK_ROWS + 5
    numbers = pa.array(np.arange(rows), pa.int32())
    path = _file(tmp_path, pa.table({"b": pa.nulls(rows, pa.string()), "a": numbers}), format)
    batches = list(read_file(path, format, WANTED))
    assert max(b.num_rows for b in batches) <= CHUNK_ROWS
    table = pa.Table.from_batches(batches)
    assert table.schema == WANTED
    assert table["a"].to_pylist() == list(range(rows))
    assert set(table["day"].to_pylist()) == {7}
    only_path = pa.schema([("day", pa.string())])
    assert sum(b.num_rows for b in read_file(path, format, only_path)) == rows


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"b": [1]}), "no column 'a'"),
        (pa.table({"a": ["1"]}), "column 'a' is string, where schema= says int64"),
        (pa.table({"a": [1.5]}), "column 'a' is double"),
    ],
)
def test_a_file_of_other_columns_is_refused_by_name(tmp_path, table, message, format):
    path = _file(tmp_path, table, format)
    with pytest.raises(weir.errors.SourceError, match=rf"x\.{format}: .*{message}"):
        list(read_file(path, format, WANTED))


def test_a_file_that_changed_or_went_after_it_was_listed_is_refused(tmp_path):
    path = _file(tmp_path, pa.table({"a": [1]}))
    info = os.stat(path)
    listed = {"size": info.st_size, "modified": info.st_mtime_ns // 1000}
    assert sum(b.num_rows for b in read_file("file:" + path, "parquet", WANTED, **listed)) == 1
    os.utime(path, ns=(info.st_mtime_ns, info.st_mtime_ns + 2_000_000))
    with pytest.raises(weir.errors.SourceError, match="was changed after it was listed"):
        list(read_file(path, "parquet", WANTED, **listed))
    os.unlink(path)
    with pytest.raises(weir.errors.SourceError, match="is gone"):
        list(read_file(path, "parquet", WANTED, **listed))
    with pytest.raises(weir.errors.SourceError, match="is gone"):
        list(read_file(path, "parquet", WANTED))


def test_what_a_path_says_must_be_of_the_columns_type(tmp_path):
    path = _file(tmp_path, pa.table({"a": [1]}))
    with pytest.raises(weir.errors.SourceError, match="'7' is no date32"):
        list(read_file(path, "parquet", pa.schema([("a", pa.int64()), ("day", pa.date32())])))
    with pytest.raises(weir.errors.TopologyError):
        Read(pa.schema([]))
