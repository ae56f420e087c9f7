"""Files as a source: read on the server they are assigned to, each row once, or a clear error."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from support import POSTS, counts, places_and_topics, rows_of, sums, write_parts
from weir.engine.batch.source_batching import SourceBatching, next_input
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.documents import BatchPlan, Input
from weir.faults import watching
from weir.flow import parts_of
from weir.graph.declare import LISTED
from weir.operators.read import CHUNK_ROWS, FileFeed, Read, list_files, read_file
from weir.state.storage import Storage
from weir.testing import run, start


def batches_of(folder: str) -> list[list[Path]]:
    """Return the files of each batch that write_parts has written."""
    files = sorted(Path(folder).rglob("*.parquet"), key=lambda path: (int(path.stem), path))
    return [list(batch) for _, batch in groupby(files, key=lambda path: path.stem)]


def check(query, folder):
    table = pq.read_table(folder, partitioning="hive")
    assert rows_of(query.state("places")) == counts(table, "place")
    assert rows_of(query.state("topics")) == sums(table, "topic", "n")


def test_rows_read_where_their_key_lives_do_not_travel(tmp_path):
    folder = write_parts(tmp_path / "posts", batches=2, strays=0.0)
    place = {f"part={p}": p for p in range(4)}
    app = places_and_topics(weir.files(None, folder, schema=POSTS, assignment=place))
    query = run(app, batches_of(folder), servers=4)
    check(query, folder)
    assert [p.rows for p in query.recent_progress] == [1200, 1200]
    for progress in query.recent_progress:
        assert progress.edges["files → places"].local == 1200
        assert progress.edges["files → places"].remote == 0
        assert progress.edges["files → places"].bytes == 0
        assert progress.operators["files"].imbalance == 1.0
    # what nobody reads is not read, and what only the listing carries goes no further
    assert query.topology.by_name["files"].rows_out.names == ["place", "topic", "n"]


def test_read_on_the_wrong_server_every_row_travels_and_the_result_is_the_same(tmp_path):
    folder = write_parts(tmp_path / "odd name é %20", batches=1, strays=0.0)
    place = {f"part={p}": (p + 1) % 4 for p in range(4)}
    query = run(places_and_topics(weir.files(None, folder, assignment=place)), batches_of(folder), servers=4)
    check(query, folder)
    edge = query.progress.edges["files → places"]
    assert edge.local == 0
    assert edge.remote == 1200


def test_files_beside_another_source_and_columns_from_the_path(tmp_path):
    folder = write_parts(tmp_path / "posts", batches=1)
    plain = pq.read_table(folder, partitioning="hive").select(["part", "place"])
    files = weir.files(None, folder, schema="part int, place string", by=r"part=(\d+)/")
    table = weir.source("part int, place string", "table")
    parts = files.union(table).keyed("part", weir.Count(), name="parts", routing=weir.PartialKey())
    places = files.keyed(["place", "part"], weir.Count(), name="places")
    (paths,) = batches_of(folder)
    query = run(weir.Application(parts, places), [{"files": paths, "table": plain}], servers=3)
    assert rows_of(query.state("parts")) == counts([plain, plain], "part")
    assert rows_of(query.state("places")) == counts(plain, "place", "part")
    assert query.progress.rows == 2400


def test_a_damaged_file_stops_the_query_by_name_and_mended_it_goes_on(tmp_path):
    folder = write_parts(tmp_path / "posts", batches=1)
    broken = tmp_path / "posts" / "part=2" / "0.parquet"
    whole, (paths,) = broken.read_bytes(), batches_of(folder)
    broken.write_bytes(whole[:-40])
    query = start(places_and_topics(weir.files(None, folder, schema=POSTS)), servers=4)
    with pytest.raises(weir.errors.SourceError, match=r"part=2/0.parquet: cannot be read as parquet"):
        query.feed(paths)
    broken.write_bytes(whole)
    query.restart()
    query.feed(paths)
    check(query, folder)


def test_a_file_that_is_gone_when_its_batch_runs_is_named(tmp_path):
    folder = write_parts(tmp_path / "posts", batches=1)
    gone = tmp_path / "posts" / "part=1" / "0.parquet"
    (paths,) = batches_of(folder)

    def listed(source):
        """Reads the listing, then removes a file of it."""
        rows = source.listing(paths)
        gone.unlink()
        return rows

    stream = weir.files(None, folder, schema=POSTS)
    source = stream.ends[0].inputs[0]
    object.__setattr__(stream.ends[0], "inputs", (replace(source, listing=lambda paths: listed(source)),))
    with pytest.raises(weir.errors.SourceError, match=r"part=1/0.parquet: is gone"):
        run(places_and_topics(stream), [paths], servers=4)


def test_files_without_folders_are_refused_with_a_remedy(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    pq.write_table(pa.table({"place": ["a"]}), flat / "x.parquet")
    app = weir.files(None, str(flat)).keyed("place", weir.Count())
    with pytest.raises(weir.errors.SourceError, match='by="file"'):
        run(app, [[flat / "x.parquet"]], servers=2)
    app = weir.files(None, str(flat), by="file").keyed("place", weir.Count())
    assert rows_of(run(app, [[flat / "x.parquet"]], servers=2).state("place")) == [("a", 1)]


@pytest.mark.parametrize(
    "faults", [["job-done:1"], ["plan-written:1", "commit-written:1", "step-started:102"]]
)
def test_a_crash_while_partitions_are_read_at_new_places(tmp_path, checkpoint, faults):
    folder = write_parts(tmp_path / "posts", batches=3)
    app = (
        weir.files(None, folder, schema=POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", weir.Aggregate(total="sum(n)"), name="topics")
    )
    routing = weir.Locality(period=1, forecast=None)
    query = start(app, checkpoint, servers=3, routing=routing, faults=faults)
    for paths in batches_of(folder):
        query.feed(paths)
        query.reconfigure(wait=True)  # so that keys and partitions are on the move in the next batch
    check(query, folder)
    # the batch that died was one in which files were read by a learnt table; its replay used the same
    plan = Storage(checkpoint).read_document("plans/000000000001-0000", "plan")
    planned = msgspec.convert(plan, BatchPlan)
    assert planned.tables["files"].files[0].rows == 4
    assert (
        CheckpointLayout(Storage(checkpoint)).read_commit("commits/000000000001-0000").tables
        == planned.tables
    )
    assert [p.rows for p in query.recent_progress][-2:] == [1200, 1200]
    assert len(query.routing_table("files")) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "foldr"}, "pattern with one"),
        ({"by": "("}, "no pattern"),
        ({"assignment": {"part=0": 7}}, "names instance 7"),
        ({"assignment": "near"}, "expected"),
        ({"format": "parket"}, "did you mean 'parquet'"),
        ({"schema": "place strin"}, "did you mean 'string'"),
    ],
)
def test_mistakes_are_said_before_anything_runs(tmp_path, options, message):
    options = {"schema": POSTS, **options}
    with pytest.raises(weir.errors.TopologyError, match=message):
        parts_of(weir.files(None, str(tmp_path), **options).keyed("place", weir.Count())).topology(4)


def test_a_folder_without_files_has_no_columns(tmp_path):
    with pytest.raises(weir.errors.SourceError, match="no file yet"):
        weir.files(None, str(tmp_path))
    with pytest.raises(weir.errors.TopologyError, match="pattern of folders"):
        weir.files(None, f"{tmp_path}/*/posts")


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


def test_a_listing_is_cut_into_batches_that_keep_to_their_limit(tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=3)
    rounds = batches_of(folder)
    limit = 2 * max(path.stat().st_size for files in rounds for path in files)
    app = places_and_topics(weir.files(None, folder, schema=POSTS, max_bytes_per_batch=limit))
    faults = ["plan-written:1", "commit-written:2", "job-done:4"]
    query = start(app, checkpoint, servers=4, target_batch="1000 s", faults=faults)
    for files in rounds:
        query.feed(files)
    assert query.pending_faults == []
    check(query, folder)
    assert query.progress.batch + 1 == 6  # the four files of a round are two batches
    assert query.progress.rows == 600
    assert query.progress.sources["files"]["lag"] == 0
    query.restart(target_batch=None)
    query.feed(rounds[0])
    assert [p.rows for p in query.recent_progress[-2:]] == [600, 600]


def half_read(tmp_path, checkpoint):
    """Return a query that has died between the two batches of its first round, its application's maker, its files."""
    folder = write_parts(tmp_path / "posts", batches=1)
    (files,) = batches_of(folder)
    limit = 2 * max(path.stat().st_size for path in files)

    def app(limit=limit):
        return places_and_topics(weir.files(None, folder, schema=POSTS, max_bytes_per_batch=limit))

    with pytest.raises(weir.testing.Crash), watching(_dies_before_the_second_plan):
        start(app(), checkpoint, servers=4)._driver.batch({f"files{LISTED}": list_files(files, "folder")}, 0)
    return app, files, folder


def _dies_before_the_second_plan(point, batch):
    if (point, batch) == ("plan-written", 1):
        raise weir.testing.Crash


@pytest.mark.parametrize("limit", [None, 1, 10**9])
def test_a_round_goes_on_with_another_limit_where_it_was_left(tmp_path, checkpoint, limit):
    app, files, folder = half_read(tmp_path, checkpoint)
    query = start(app(limit), checkpoint, servers=5)
    query.feed(files, number=0)
    check(query, folder)


def test_a_round_that_was_read_before_files_were_cut_up_is_not_read_again(tmp_path):
    feed, files = FileFeed(1), list_files(batches_of(write_parts(tmp_path / "posts", batches=1))[0], "folder")
    assert feed.size(feed.begin(None, 7, files, again=True)) == 0
    assert feed.size(feed.begin({"tick": 5, "done": 2}, 7, files, again=True)) == 0
    assert feed.size(feed.begin({"tick": 7, "done": 2}, 7, files, again=True)) > 0
    assert feed.size(feed.begin({"tick": 5, "done": 2}, 7, files, again=False)) > 0


def test_a_batch_that_was_planned_before_files_were_cut_up_reads_them_all(tmp_path):
    feed, files = FileFeed(1), list_files(batches_of(write_parts(tmp_path / "posts", batches=1))[0], "folder")
    source_batching = SourceBatching({"files": feed})
    source_batching.begin(None, 0, {"files": files})
    source_batching._limits["files"] = None
    planned = next_input(source_batching, None, True, Input({}))
    assert sorted(planned.listing["files"]["path"]) == sorted(files["path"].to_pylist())
    assert feed.size(planned.positions["files"]) == 0


@pytest.mark.parametrize("change", ["comes", "goes", "is touched"])
def test_a_round_goes_on_only_with_the_files_that_it_began_with(change, tmp_path, checkpoint):
    folder = write_parts(tmp_path / "posts", batches=1, parts=6)
    (files,) = batches_of(folder)
    for number, path in enumerate(files):
        os.utime(path, (1_700_000_000 + number,) * 2)
    limit = 2 * max(path.stat().st_size for path in files)
    app = places_and_topics(weir.files(None, folder, schema=POSTS, max_bytes_per_batch=limit))
    query = start(app, checkpoint, servers=4)
    died = []

    def change_files(point, batch):
        if point == "commit-written" and not died:
            died.append(batch)
            raise KeyboardInterrupt

    with watching(change_files), pytest.raises(KeyboardInterrupt):
        query.feed(files)
    listed = list(files)
    if change == "comes":
        listed.append(files[0].with_name("new.parquet"))
        listed[-1].write_bytes(files[0].read_bytes())
        os.utime(listed[-1], (1_600_000_000,) * 2)
    elif change == "goes":
        listed.pop(0)
    else:
        os.utime(files[0], (1_800_000_000,) * 2)
    again = start(app, checkpoint, servers=4)
    with pytest.raises(weir.errors.SourceError, match="2 files .* one of them was changed"):
        again.feed(listed, number=0)
    os.utime(files[0], (1_700_000_000,) * 2)
    again.feed(files, number=0)
    for path in set(listed) - set(files):
        path.unlink()
    check(again, folder)


def test_a_target_needs_a_source_that_can_be_cut():
    with pytest.raises(weir.WeirError, match=r"weir\.kafka and weir\.files"):
        run(weir.source(POSTS).keyed("place", weir.Count()), [], servers=2, target_batch="1 s")
    with pytest.raises(weir.WeirError, match="a positive duration"):
        weir.Options(servers=2, target_batch=0)
