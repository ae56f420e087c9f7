"""A run over history that is left open, and a stream that goes on from it: together the stream alone."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import weir
import weir.testing
from support import NOW, POSTS, counted, posts, rows_of, stream, two_counts, write_batches
from weir.errors import CheckpointMismatch
from weir.testing import run, start

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "place string, time timestamp"
ROWS = [
    [{"place": f"p{(7 * i + s) % 3}", "time": NOON + dt.timedelta(seconds=25 * i + 5 * s)} for s in range(4)]
    for i in range(12)
]
POINTS = ("plan-written", "job-done", "commit-written", "sink-delivered")


def application():
    rows = weir.source(SCHEMA, "posts")
    windows = rows.count("place", name="pages", window=weir.tumbling("time", "1 minute"))
    sessions = rows.count("place", name="visits", window=weir.session("time", "20 seconds"))
    return weir.Application(windows, sessions, rows.count("place", name="places"))


def told(query):
    return {
        name: rows_of(query.output(name).select(["place", "window_start", "count"]))
        for name in ("pages", "visits")
    }


@pytest.fixture(scope="module")
def alone():
    with start(application(), servers=2) as query:
        for batch in ROWS:
            query.feed(batch)
        query.finish()
        return told(query), rows_of(query.state("places"))


@pytest.mark.parametrize("point", [None, *POINTS])
@pytest.mark.parametrize("history", [1, 5])
def test_back_fill_and_stream_equal_the_stream_alone(tmp_path, alone, point, history):
    whole = [row for batch in ROWS[:history] for row in batch]  # a run takes all of it at once
    faults = [] if point is None else [f"{point}:0", f"{point}:1", "commit-replaced:0"]
    checkpoint = str(tmp_path / "ckpt")
    past = run(application(), [whole], checkpoint, servers=3, keep_open=True, faults=faults[::2])
    assert past.pending_faults == []
    with start(application(), checkpoint, servers=2, faults=faults[1:2]) as query:
        for batch in ROWS[history:]:
            query.feed(batch)
        query.finish()
        assert rows_of(query.state("places")) == alone[1]
        after = told(query)
    for name, rows in told(past).items():
        assert sorted([*rows, *after[name]], key=repr) == alone[0][name]


def test_files_that_the_run_has_read_are_passed_over(tmp_path):
    def app():
        return weir.files(None, str(tmp_path / "in"), schema=POSTS, name="posts", by="file").count(
            "place", name="places"
        )

    tables = [posts(100, seed) for seed in range(4)]
    write_batches(tmp_path / "in", tables[:2])
    paths = [str(path) for path in sorted((tmp_path / "in").iterdir())]
    run(app(), [paths], str(tmp_path / "ckpt"), servers=2, keep_open=True).stop()
    write_batches(tmp_path / "in", tables[2:])
    paths = [str(path) for path in sorted((tmp_path / "in").iterdir())]
    with start(
        app(), str(tmp_path / "ckpt"), servers=3, faults=["plan-written:1", "commit-written:1"]
    ) as query:
        for some in (paths[:3], paths[3:]):  # a stream lists all that is there, in one round or several
            query.feed(some)
        truth = rows_of(pa.concat_tables(tables).group_by("place").aggregate([([], "count_all")]))
        assert rows_of(query.state("places")) == truth
        assert query.progress.rows == 100


def test_a_run_that_has_closed_its_windows_cannot_be_gone_on_from(tmp_path):
    run(application(), ROWS[:2], str(tmp_path / "ckpt"), servers=2)
    query = start(application(), str(tmp_path / "ckpt"), servers=2)
    with pytest.raises(CheckpointMismatch, match="closed its windows"):
        query.finish(keep_open=True)


def test_on_spark_history_as_a_dataframe_then_a_stream(spark, tmp_path):
    old, new = [posts(200, seed) for seed in range(2)], [posts(200, seed) for seed in range(2, 4)]
    past, coming, ckpt = (
        write_batches(tmp_path / "past", old),
        write_batches(tmp_path / "coming", new),
        str(tmp_path / "c"),
    )
    two_counts(spark.read.parquet(past)).run(str(tmp_path / "ended"), servers=2)
    with pytest.raises(CheckpointMismatch, match="keep_open=True"):
        two_counts(stream(spark, coming)).start(str(tmp_path / "ended"), servers=2, trigger=NOW)
    two_counts(spark.read.parquet(past)).run(ckpt, servers=2, keep_open=True)
    query = two_counts(stream(spark, coming)).start(ckpt, servers=2, trigger=NOW, execution="jobs")
    query.await_termination()
    write_batches(tmp_path / "past", new)
    assert rows_of(query.state("topics")) == counted(spark, past, "topic")
