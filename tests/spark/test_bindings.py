"""A checkpoint belongs to one record of its source, and a sink's folder to one checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, two_counts, write_batches
from weir.errors import CheckpointMismatch


@pytest.fixture
def folder(tmp_path):
    return write_batches(tmp_path / "posts", [posts(200, 1)])


def test_a_source_folder_that_was_deleted_is_refused_and_nothing_is_skipped(
    spark, folder, tmp_path, checkpoint
):
    first = two_counts(stream(spark, folder)).start(checkpoint, servers=2, trigger=NOW)
    first.await_termination()
    before = rows_of(first.state("topics"))
    kept = tmp_path / "kept"
    shutil.move(Path(checkpoint) / "source", kept)
    write_batches(tmp_path / "posts", [posts(200, 2)])
    query = two_counts(stream(spark, folder)).start(checkpoint, servers=2, trigger=NOW)
    with pytest.raises(CheckpointMismatch, match="'source'"):
        query.await_termination()
    assert rows_of(weir.read_state(checkpoint, "topics")) == before
    # with the record back in its place, the stream goes on where it was
    shutil.rmtree(Path(checkpoint) / "source")
    shutil.move(kept, Path(checkpoint) / "source")
    again = two_counts(stream(spark, folder)).start(checkpoint, servers=2, trigger=NOW)
    again.await_termination()
    assert rows_of(again.state("topics")) == counts([posts(200, 1), posts(200, 2)], "topic")


def test_a_fresh_checkpoint_does_not_overwrite_what_another_has_written(spark, folder, tmp_path):
    frame, out = spark.read.schema(POSTS).parquet(folder), str(tmp_path / "out")
    two_counts(frame).run(str(tmp_path / "one"), servers=2, sink=out)
    written = rows_of(spark.read.parquet(out))
    with pytest.raises(CheckpointMismatch, match="batches of another checkpoint"):
        two_counts(frame).run(str(tmp_path / "two"), servers=2, sink=out)
    assert rows_of(spark.read.parquet(out)) == written
