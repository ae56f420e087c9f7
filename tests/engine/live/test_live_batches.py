"""Live servers in this process: whole batches are right, whatever waits, splits, moves, spills or fails."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import POSTS, Rises, counts, posts, rises_in_python, rows_of, sums, two_counts
from weir import logs
from weir.engine.live import inbox, sender
from weir.engine.local.in_process import LiveThreads
from weir.testing import LocalQuery, run, start

pytestmark = pytest.mark.usefixtures("few_starts")

TABLES = [posts(3000, seed) for seed in range(3)]
TOPICS = weir.Table.of({f"topic {t}": (t // 10) % 3 for t in range(200)})


@dataclass
class Tally:
    rows: int = 0


def ways(query):
    return [progress.execution for progress in query.recent_progress]


@pytest.mark.parametrize(
    ("places", "topics"),
    [
        (None, {}),
        (TOPICS, {"routing": TOPICS}),
        (weir.Shuffle(), {"routing": weir.PartialKey()}),
        (weir.PartialKey(), {"routing": weir.Shuffle()}),
        (weir.Consistent(), {"routing": weir.Weighted(weir.Hash())}),
    ],
    ids=["hash", "table", "split", "split twice", "by load"],
)
def test_counts_are_right_whatever_the_grouping(places, topics):
    query = run(two_counts(places=places, **topics), TABLES, servers=3, execution="live")
    assert rows_of(query.state("places")) == counts(TABLES, "place")
    assert rows_of(query.state("topics")) == counts(TABLES, "topic")
    assert set(ways(query)) == {"live"}
    assert [p.rows for p in query.recent_progress[:3]] == [3000] * 3


def test_counts_are_right_when_all_is_encrypted(monkeypatch):
    monkeypatch.setattr(LocalQuery, "_live_runner", partial(LiveThreads, limit=2000, sealed=True))
    query = run(two_counts(routing=weir.PartialKey()), TABLES, servers=3, execution="live")
    assert rows_of(query.state("topics")) == counts(TABLES, "topic")
    assert set(ways(query)) == {"live"}


def test_branches_unions_processes_and_sinks():
    web, app = weir.source(POSTS, "web"), weir.source(POSTS, "app")
    big = app.filter_batches(lambda b: pc.greater(b.column("n"), 500), name="big", routing=weir.Shuffle())
    topics = (
        web.union(big)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", Rises(order_by="n"), name="topics")
    )
    pairs = web.keyed(["place", "topic"], weir.Count(), name="pairs", parallelism=2)
    batches = [{"web": posts(800, 2 * i), "app": posts(800, 2 * i + 1)} for i in range(3)]
    ends = {}
    sink = {"pairs": lambda table, batch: ends.update({row[:2]: row for row in rows_of(table)})}
    query = run(weir.Application(topics, pairs), batches, servers=3, sink=sink, execution="live")
    webs = [b["web"] for b in batches]
    both = [pa.concat_tables([b["web"], b["app"].filter(pc.greater(b["app"]["n"], 500))]) for b in batches]
    assert {r["topic"]: r["rises"] for r in query.state("topics").to_pylist()} == rises_in_python(both)
    assert sorted(ends.values(), key=repr) == counts(webs, "place", "topic")
    assert set(ways(query)) == {"live"}


def test_servers_come_and_go_and_keys_move():
    with start(
        two_counts(), servers=2, routing=weir.Locality(period=1, forecast=None), execution="live"
    ) as query:
        steer = {
            0: lambda: query.reconfigure(wait=True),
            1: lambda: query.scale_out(1),
            3: lambda: query.scale_in(1),
        }
        tables = [posts(1000, seed) for seed in range(6)]
        for number, table in enumerate(tables):
            query.feed(table)
            steer.get(number, list)()
        assert rows_of(query.state("topics")) == counts(tables, "topic")
        assert set(ways(query)) == {"live"}
        assert [p.scaled["to"] if p.scaled else 0 for p in query.recent_progress] == [0, 0, 3, 0, 2, 0]
        assert query.recent_progress[1].moved_keys


def test_functions_can_tell_which_server_they_work_for_also_where_servers_came_later():
    seen = set()

    def note(batch):
        told = logs.about.get()
        seen.add((told["batch"], told["server"]))
        return batch

    app = weir.source(POSTS).map_batches(note, routing=weir.Shuffle()).count("place")
    with start(app, servers=2, execution="live") as query:
        for steer in (lambda: query.scale_out(2), lambda: query.scale_in(2), list):
            query.feed(TABLES[0])
            steer()
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)}


def test_split_keys_are_merged_once_while_servers_come_and_go():
    tables = [posts(1000, seed) for seed in range(8)]
    app = two_counts(places=weir.Hash(), routing=weir.PartialKey())
    with start(app, servers=4, execution="live") as query:
        for number, table in enumerate(tables):
            if number == 2:
                query.scale_in(2)
            if number == 4:
                query.scale_out(1)
            query.feed(table)
        query.finish()
        assert set(ways(query)) == {"live"}
        assert rows_of(query.state("places")) == counts(tables, "place")
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_a_change_of_servers_that_fails_live_happens_once_as_jobs():
    tables = [posts(1000, seed) for seed in range(4)]
    with start(two_counts(), servers=2, execution="live", faults=["step-started:201"]) as query:
        for number, table in enumerate(tables):
            if number == 2:
                query.scale_out(2)
            query.feed(table)
        assert ways(query) == ["live", "live", "jobs", "live"]
        assert query.recent_progress[2].scaled["to"] == 4
        assert rows_of(query.state("places")) == counts(tables, "place")
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_a_batch_that_fails_live_runs_again_as_jobs():
    with start(two_counts(), servers=3, execution="live", faults=["step-started:102"]) as query:
        for table in TABLES:
            query.feed(table)
        assert ways(query) == ["live", "jobs", "live"]
        assert "TaskFailed" in query.recent_progress[1].ran_again
        assert rows_of(query.state("topics")) == counts(TABLES, "topic")


def test_mistakes_of_users_are_told_as_in_jobs():
    def fails(key, rows, state):
        raise ValueError("no such thing")

    app = weir.source(POSTS).process("topic", fails, name="topics")
    with (
        start(app, servers=2, execution="live") as query,
        pytest.raises(weir.errors.OperatorError, match="no such"),
    ):
        query.feed(TABLES[0])


def test_rows_that_do_not_fit_memory_wait_in_files(monkeypatch):
    monkeypatch.setattr(LocalQuery, "_live_runner", partial(LiveThreads, limit=2000, sealed=False))
    monkeypatch.setattr(sender, "BLOB_BYTES", 4000)
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="p")
        .keyed("topic", weir.Aggregate(t="sum(n)"), name="t")
    )
    query = run(app, TABLES, servers=3, execution="live")
    assert rows_of(query.state("t")) == sums(TABLES, "topic", "n")
    assert set(ways(query)) == {"live"}
    assert sum(s.spilled for p in query.recent_progress for s in p.servers) > 0
    assert max(query.progress.operators["t"].queued) > 0


def test_a_full_disk_under_the_files_ends_the_batch_and_it_runs_again(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inbox.os, "posix_fallocate", full)
    monkeypatch.setattr(LocalQuery, "_live_runner", partial(LiveThreads, limit=0, sealed=False))
    query = run(two_counts(), TABLES[:1], servers=2, execution="live")
    assert ways(query) == ["jobs"]
    assert "No space left" in query.progress.ran_again
    assert rows_of(query.state("topics")) == counts(TABLES[:1], "topic")


def test_what_is_explained(capsys):
    run(two_counts(), TABLES[:1], servers=2, execution="live").explain()
    assert "live servers" in capsys.readouterr().out


def test_a_server_that_waits_for_others_is_not_taken_for_congested():
    """Rows of ``topics`` are there at once on both servers, but one of them is long at work on ``slow``."""

    def slow(batch):
        time.sleep(0.4)
        return pc.less(batch.column("n"), -1)  # nothing passes

    stream_ = weir.source(POSTS)
    busy = stream_.filter_batches(slow, name="slow", routing=weir.Shuffle(), parallelism=1)
    app = stream_.union(busy).keyed("topic", Rises(), name="topics")
    query = run(app, TABLES[:1], servers=2, execution="live")
    first = query.recent_progress[0]
    assert first.execution == "live"
    assert first.operators["slow"].busy > 0.3
    assert None not in first.operators["topics"].waiting
    assert max(first.operators["topics"].waiting) < 0.2


begun, in_time = threading.Event(), []


def waits(key, rows, state):
    in_time.append(begun.wait(20))
    state.rows += len(rows)


def begins(key, rows, state):
    begun.set()
    state.rows += len(rows)


def test_nobody_waits_for_an_operator_that_nothing_leaves():
    """``slow`` has all its rows in the first step, and only returns when ``topics`` has begun, in the second."""
    begun.clear()
    in_time.clear()
    stream = weir.source(POSTS)
    alone = stream.keyed("place", weir.Process(waits, state=Tally), name="slow", parallelism=1)
    places = stream.keyed("place", weir.Count(emit="rows"), name="places")
    app = weir.Application(alone, places.keyed("topic", weir.Process(begins, state=Tally), name="topics"))
    query = run(app, TABLES[:2], servers=2, execution="live")
    assert set(ways(query)) == {"live"}
    assert in_time
    assert all(in_time)
    assert rows_of(query.state("slow")) == rows_of(query.state("places")) == counts(TABLES[:2], "place")
    assert rows_of(query.state("topics")) == counts(TABLES[:2], "topic")
