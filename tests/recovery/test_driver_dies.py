"""The driver dies at every step of a batch, with state on the move; what was promised still holds.

In this process for every point, grouping and number of servers; with a real SIGKILL and Spark's own recovery once.
"""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_app import Totals

import weir
from support import POSTS, counts, dicts, grouped, posts, rows_of, run_app, two_counts, write_batches
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.documents import BatchPlan
from weir.state.storage import Storage
from weir.testing import Crash, start
from weir_evaluation import routing as rivals

APP = Path(__file__).with_name("killed_app.py")
FAULTS = ("plan-written", "job-done", "commit-written", "sink-delivered")


def totals(tables):
    """Return the rows and the sum of numbers of each topic, in plain Python."""
    groups = grouped(tables, "topic").items()
    return sorted((topic, len(rows), sum(r["n"] for r in rows)) for (topic,), rows in groups)


def check_deliveries(deliveries, tables):
    """Every delivery of a batch is the same, and has the totals so far of the topics in that batch."""
    by_batch = defaultdict(list)
    for batch, rows in deliveries:
        by_batch[batch].append(sorted(tuple(row) for row in rows))
    assert sorted(by_batch) == list(range(len(tables)))
    for batch, contents in by_batch.items():
        assert all(c == contents[0] for c in contents), f"batch {batch} was delivered with different rows"
        last = {}
        for topic, n, total in contents[0]:
            last[topic] = max(last.get(topic, (0, 0)), (n, total))
        so_far = {topic: (n, total) for topic, n, total in totals(tables[: batch + 1])}
        assert last == {row["topic"]: so_far[row["topic"]] for row in dicts(tables[batch])}
    return {batch: len(contents) for batch, contents in by_batch.items()}


def test_dead_at_every_step_of_a_batch_and_started_again(checkpoint):
    tables = [posts(700, seed) for seed in range(3)]
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", Totals(), name="topics")
    )
    faults = ["plan-written:0", "job-done:1", "commit-written:1", "sink-delivered:2"]
    deaths = [2]

    def sink(rows, batch):
        if batch in deaths:  # after the delivery, before it is on record
            deaths.remove(batch)
            raise Crash

    routing = weir.Locality(period=1, forecast=None)
    query = start(app, checkpoint, servers=3, routing=routing, faults=faults, sink=sink)
    for table in tables:
        query.feed(table)
        query.reconfigure(wait=True)  # so that state is on the move in the next batch
    assert query.pending_faults == []
    assert query.progress.batch == 2
    # the batch that died twice was one in which state moved
    assert (
        CheckpointLayout(Storage(checkpoint)).read_commit("commits/000000000001-0000").progress.moved_keys > 0
    )
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert sorted(rows_of(query.state("topics"))) == totals(tables)
    times = check_deliveries([(batch, rows_of(table)) for _, batch, table in query.deliveries], tables)
    # only a death between a delivery and its record repeats a batch
    assert times == {0: 1, 1: 1, 2: 2}


GROUPINGS = [
    None,
    weir.Shuffle(),
    weir.PartialKey(),
    weir.Consistent(),
    weir.Weighted(weir.PartialKey()),
    weir.Weighted(weir.Hash()),
    weir.Table.of({f"topic {t}": 0 for t in range(60)}),
    rivals.DChoices(),
    rivals.WChoices(),
    weir.Locality(period=1, forecast=None),
]


@st.composite
def stories(draw):
    """Draw groupings of the two operators, servers, and what happens to each of three batches."""
    routings = draw(st.tuples(st.sampled_from(GROUPINGS[:-1]), st.sampled_from(GROUPINGS)))
    faults = draw(
        st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 2)), max_size=4, unique=True).map(
            lambda chosen: [f"{point}:{batch}" for point, batch in chosen]
        )
    )
    again = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), max_size=3))
    faults += [f"step-started:{100 * batch + step}" for batch, step in again]
    scaling = draw(st.lists(st.sampled_from([0, 0, 1, 2, -1]), min_size=3, max_size=3))
    return routings, faults, scaling, draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 99))


@settings(max_examples=40)
@given(stories())
def test_whatever_dies_wherever_rows_go_the_answer_is_pythons(story):
    (places, topics), faults, scaling, servers, seed = story
    tables = [posts(200, seed + batch) for batch in range(3)]
    app = two_counts(places=places, routing=topics)
    query = start(app, servers=servers, faults=faults, seed=seed, source_tasks=1 + seed % 3)
    for table, by in zip(tables, scaling, strict=True):
        query.feed(table)
        with suppress(weir.errors.EngineError):  # no rates: the driver has just been started again
            if by > 0:
                query.scale_out(by)
            elif by < 0 and query.topology.servers > 1:
                query.scale_in(-by)
    query.finish()
    assert query.pending_faults == []
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    first: dict[int, list] = {}
    for _, batch, table in query.deliveries:
        assert rows_of(table) == first.setdefault(batch, rows_of(table))
    last = {topic: count for batch in sorted(first) for topic, count in first[batch]}
    assert sorted(last.items(), key=repr) == counts(tables, "topic")


@pytest.mark.faults
@pytest.mark.long
def test_killed_while_state_moves_and_after_a_server_has_come(tmp_path):
    batches = [[posts(150, 10 * part + batch) for part in range(4)] for batch in range(4)]
    for part in range(4):
        write_batches(tmp_path / "data" / f"part={part}", [batch[part] for batch in batches])
    checkpoint, deliveries = str(tmp_path / "checkpoint"), tmp_path / "deliveries"
    arguments = (APP, str(tmp_path / "data"), checkpoint, str(deliveries))
    for fault, servers in (("job-done:1", 2), ("commit-written:2", 3)):
        died = run_app(*arguments, fault=fault, timeout=240)
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
        assert CheckpointLayout(Storage(checkpoint)).latest_commit().servers == servers
    done = run_app(*arguments, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    tables = [table for batch in batches for table in batch]
    assert sorted(map(tuple, answer["places"]), key=repr) == counts(tables, "place")
    assert sorted(map(tuple, answer["topics"])) == totals(tables)
    assert (answer["batches"], answer["rows"], answer["servers"], answer["files"]) == (4, 600, 3, 4)

    # the batch that died was one in which keys moved and files were read by a learnt table; its replay used the same
    storage = Storage(checkpoint)
    plan = msgspec.convert(storage.read_document("plans/000000000001-0000", "plan"), BatchPlan)
    commit = CheckpointLayout(storage).read_commit("commits/000000000001-0000")
    assert plan.tables["files"].files[0].rows == 4
    assert commit.tables == plan.tables
    assert commit.progress.moved_keys > 0

    files = [(int(f.name.split("-")[0]), json.loads(f.read_text())) for f in deliveries.iterdir()]
    united = [pa.concat_tables(batch) for batch in batches]
    times = check_deliveries(files, united)
    assert times[0] == times[1] == 1
