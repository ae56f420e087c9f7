"""The history that outlives commits: complete while it is young, coarse when it is old, and bounded."""

from __future__ import annotations

import pytest

import weir
from support import posts, two_counts
from weir.engine.batch import history
from weir.engine.batch.history import (
    CHUNKS,
    FAN,
    LEVELS,
    POINTS,
    Point,
    add,
    chunk_names,
    downsample,
    read_chunk,
)
from weir.engine.checkpoint import CheckpointLayout
from weir.errors import CheckpointError
from weir.state.storage import Storage
from weir.testing import start
from weir.watch.reader import CheckpointReader


@pytest.fixture(scope="module")
def commit():
    with start(two_counts(), servers=2) as query:
        query.feed(posts(100, 0))
        return CheckpointLayout(query._driver.storage).latest_commit()


def numbered(commit, batch):
    commit.progress.batch = batch
    return type(commit)(**{f: getattr(commit, f) for f in commit.__struct_fields__} | {"batch": batch})


def test_every_batch_is_in_the_history_or_in_a_commit(checkpoint):
    rows = [50 + 10 * batch for batch in range(34)]
    with start(two_counts(), checkpoint, servers=2, retain=3) as query:
        for batch, count in enumerate(rows):
            query.feed(posts(count, batch))
            if batch == 20:
                query.restart()
    reader = CheckpointReader(checkpoint)
    assert len(Storage(checkpoint).names("commits")) < 15  # most of them are gone
    assert [(p.batch, p.rows) for p in reader.points] == list(enumerate(rows))
    assert [m["batch"] for m in reader.marks if m["kind"] == "restarted"] == [21]
    # all phases are known of every batch but the last of each run
    assert all(p.seconds[3] > 0 for p in reader.points if p.batch not in (20, 33))


def test_it_is_bounded_and_recent_batches_are_whole(commit, checkpoint):
    storage, size = Storage(checkpoint), 10
    batches = size * (CHUNKS + 2) * FAN
    for first in range(0, batches, size):
        add(
            storage, [numbered(commit, b) for b in range(first, first + size)], numbered(commit, first + size)
        )
    names = chunk_names(storage)
    points = [p for name in names for p in read_chunk(storage, name).points]
    assert sum(p.batches for p in points) == batches  # nothing is missing
    assert points[-1].batch == batches - 1
    assert sum(p.rows for p in points) == 100 * batches
    assert all(p.batches == 1 for p in points[-size * CHUNKS * FAN // 2 :])
    assert points[0].batches == FAN  # the oldest are coarse
    assert len(names) <= CHUNKS * LEVELS
    assert all(len(read_chunk(storage, name).points) <= max(POINTS, size) for name in names)


def test_a_clean_up_that_was_cut_short_is_done_again(commit, checkpoint, monkeypatch):
    storage = Storage(checkpoint)

    def chunk(first):
        commits = [numbered(commit, b) for b in range(first, first + 2)]
        add(storage, commits, numbered(commit, first + 2))

    for first in range(0, 2 * (CHUNKS - 1), 2):
        chunk(first)
    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "delete", lambda self, name: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # dies when the merged chunk is written
            chunk(2 * CHUNKS - 2)
    chunk(0)  # these are known already
    chunk(2 * CHUNKS)
    batches = [p.batch for name in chunk_names(storage) for p in read_chunk(storage, name).points]
    assert batches == list(range(2 * CHUNKS + 2))


def test_a_damaged_chunk_costs_its_points_and_nothing_else(commit, checkpoint, tmp_path):
    storage = Storage(checkpoint)
    for first in range(CHUNKS):
        add(storage, [numbered(commit, first)], numbered(commit, first + 1))
        if first == 3:
            (tmp_path / "checkpoint" / "history" / str(chunk_names(storage)[1])).write_bytes(b"damaged")
            with pytest.raises(CheckpointError, match="damaged"):
                read_chunk(storage, chunk_names(storage)[1])
    points = [p for name in chunk_names(storage) for p in read_chunk(storage, name).points]
    assert sum(p.batches for p in points) == CHUNKS - 1


def test_a_damaged_commit_that_is_about_to_go_stops_nobody(checkpoint, tmp_path, caplog):
    with start(two_counts(), checkpoint, servers=2, retain=2) as query:
        for batch in range(12):
            query.feed(posts(50, batch))
            if batch == 4:
                (tmp_path / "checkpoint" / "commits" / "000000000003-0000").write_bytes(b"damaged")
                query.restart()  # otherwise the driver has the commit at hand
            if batch == 5:
                (tmp_path / "checkpoint" / "history").mkdir()
                (tmp_path / "checkpoint" / "history" / "notes.txt").write_text("whose is this?")
    assert [p.batch for p in CheckpointReader(checkpoint).points] == [0, 1, 2, *range(4, 12)]
    assert "a batch will be missing from the history" in caplog.text


def test_thinning_out_adds_up():
    points = [
        Point(batch=b, rows=b, edges={"a → b": [b, 1]}, imbalance={"a": 1 + b / 100}) for b in range(95)
    ]
    thin = downsample(points, 10)
    assert len(thin) == 10
    assert sum(p.rows for p in thin) == sum(range(95))
    assert sum(p.edges["a → b"][1] for p in thin) == 95
    assert thin[0].imbalance["a"] == 1 + thin[0].batch / 100  # the worst remains
    assert history.downsample(points[:5], 10) == points[:5]


def test_marks_tell_of_moves_scalings_and_refusals(checkpoint):
    routing = weir.Locality(period=1)
    with start(two_counts(), checkpoint, servers=2, routing=routing) as query:
        for batch in range(3):
            query.feed(posts(400, batch))
            query.reconfigure(wait=True)
        query.scale_out(1)
        query.feed(posts(400, 3))
    marks = CheckpointReader(checkpoint).marks
    moved = [m for m in marks if m["kind"] == "reconfigured"]
    assert moved[0]["forecast"]["moved"] == query.decisions[0].forecast.moved > 0
    (scaled,) = [m for m in marks if m["kind"] == "scaled"]
    assert (scaled["batch"], scaled["from"], scaled["to"]) == (3, 2, 3)
    assert "scale out" in scaled["why"]
