"""Checkpoints that are damaged, newer, of another application, or of another shape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, two_counts, watch_fsync, write_batches
from weir.engine.checkpoint import CheckpointLayout
from weir.hashing import hash_columns
from weir.state.storage import Storage
from weir.testing import run, start
from weir_evaluation import routing as rivals

TABLES = [posts(600, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkpoint after two batches; tests work on copies."""
    folder = tmp_path_factory.mktemp("finished") / "checkpoint"
    run(two_counts(), TABLES, str(folder), servers=3)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copy2))


def go_on(checkpoint, tables, application=None, **options):
    """Go on from a checkpoint, with more batches if there are any."""
    options = {"servers": 3, **options}
    with start(application or two_counts(), str(checkpoint), **options) as query:
        for table in tables:
            query.feed(table)
    return query


def files(folder, pattern):
    return sorted(folder.glob(pattern))


def snapshot(folder):
    return {p: p.read_bytes() for p in files(folder, "**/*") if p.is_file()}


@pytest.mark.parametrize(
    ("pattern", "damage", "says"),
    [
        ("commits/*", "flip", "damaged or truncated"),
        ("commits/*", "truncate", "damaged or truncated"),
        ("commits/*", "empty", "damaged in its first line"),
        ("commits/*", "newer", "newer Weir"),
        ("weir", "flip", "damaged"),
    ],
)
def test_damage_is_named_and_nothing_is_overwritten(copy, pattern, damage, says):
    victim = files(copy, pattern)[-1]
    spoil(victim, damage)
    before = snapshot(copy)
    with pytest.raises(weir.errors.CheckpointError, match=says) as caught:
        go_on(copy, [])
    assert victim.name in str(caught.value)
    assert snapshot(copy) == before


@pytest.mark.parametrize(
    ("damage", "says"), [("flip", "damaged"), ("truncate", "damaged"), ("delete", "missing")]
)
def test_damaged_state_is_met_by_the_batch_that_wants_it(copy, damage, says):
    victim = files(copy, "state/topics/*/*")[-1]
    spoil(victim, damage)
    before = snapshot(copy)
    with pytest.raises(weir.errors.CheckpointError, match=says) as caught:
        go_on(copy, [posts(300, 2)])
    assert victim.name in str(caught.value)
    after = snapshot(copy)
    assert {p: after.get(p) for p in before} == before
    assert not [p for p in after if "commits" in p.parts and p not in before]


def spoil(victim, damage):
    data = victim.read_bytes()
    if damage == "flip":
        middle = len(data) - 20 if victim.name == "weir" else len(data) // 2
        victim.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])
    elif damage == "truncate":
        victim.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "newer":
        head, body = data.split(b"\n", 1)
        victim.write_bytes(json.dumps({**json.loads(head), "weir": 99}).encode() + b"\n" + body)
    else:
        victim.unlink()


def test_another_application_is_refused_with_the_difference(copy):
    source = weir.source(POSTS)
    other_key = source.keyed("topic", weir.Count(emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    before = snapshot(copy)
    with pytest.raises(weir.errors.CheckpointMismatch, match="operator 'places' has another key now"):
        go_on(copy, [], other_key)
    other_kind = source.keyed("place", weir.Aggregate(count="sum(n)", emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    with pytest.raises(weir.errors.CheckpointMismatch, match="operator 'places' has another definition now"):
        go_on(copy, [], other_kind)
    fewer = source.keyed("place", weir.Count(), name="places")
    with pytest.raises(
        weir.errors.CheckpointMismatch, match="operator 'topics', which the application no longer has"
    ):
        go_on(copy, [], fewer)
    with pytest.raises(weir.errors.CheckpointMismatch, match="the application has this operator"):
        go_on(copy, [], fewer, drop_state=["topics", "places"])
    assert snapshot(copy) == before
    table = posts(300, 2)
    given_up = go_on(copy, [table], fewer, drop_state=["topics"])
    assert rows_of(given_up.state("places")) == counts([*TABLES, table], "place")


@pytest.mark.parametrize("servers", [1, 5])
@pytest.mark.parametrize("faults", [[], ["plan-written:2"], ["job-done:2"]])
def test_another_number_of_servers_takes_the_state_over(copy, servers, faults):
    query = go_on(copy, [], servers=servers)
    # no batch has come, so the state is read through the commit that there was
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counts(TABLES, column)
    table = posts(300, 2)
    query = go_on(copy, [table], servers=servers, faults=faults)
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counts([*TABLES, table], column)
    assert len(query.progress.servers) == servers


def test_added_operators_start_empty_and_changed_groupings_move_state(checkpoint):
    tables = [posts(500, seed) for seed in (1, 2, 3)]
    go_on(checkpoint, tables[:1])
    sample = hash_columns([tables[0]["place"].combine_chunks()])
    heavy = two_counts(places=rivals.HeavyKeys.learn(sample, 3))
    query = go_on(checkpoint, tables[1:2], heavy)
    assert rows_of(query.state("places")) == counts(tables[:2], "place")
    relearnt = two_counts(places=rivals.HeavyKeys.learn(sample[:40], 3))
    query = go_on(checkpoint, tables[2:], relearnt.keyed("n", weir.Count(), name="numbers"))
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert sum(query.state("numbers")["count"].to_pylist()) == 500


def test_two_writers_and_leftovers_of_a_dead_one(copy):
    storage = Storage(str(copy))
    last = CheckpointLayout(storage).latest_commit()
    with pytest.raises(weir.errors.CheckpointError, match="Two queries share this checkpoint"):
        storage.write_document(f"commits/{last.batch:012d}-{last.epoch:04d}", "commit", last)
    (copy / "commits/000000000009-0000.dead.tmp").write_bytes(b"half a comm")
    assert CheckpointLayout(storage).latest_commit().batch == last.batch


def test_old_files_are_deleted_and_everything_named_stays(checkpoint):
    tables = [posts(200, seed) for seed in range(12)]
    query = go_on(checkpoint, tables, servers=2, retain=2)
    storage = Storage(checkpoint)
    (Path(storage.root) / "commits/000000000001-0000.dead.tmp").write_bytes(b"half")
    ledger = query._driver.ledger
    orphan = "state/topics/000000000003/s0-1-zombie.arrow"
    storage.write(orphan, b"a task that came too late")
    ledger.checkpoint.delete_unfinished()  # as the driver does before it has old files deleted
    assert ledger.clean() >= 1
    assert not storage.exists(orphan)
    assert len(storage.names("commits")) == 2
    living = {r.name for servers in ledger.last.manifest.values() for refs in servers for r in refs}
    assert living <= set(storage.files("state"))
    assert len(storage.files("state")) < 12 * 2 * 2
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert np.mean([len(r) for r in ledger.last.manifest["topics"]]) <= 16


def test_a_checkpoint_of_spark_migrated_and_on_disk_before_its_plan(spark, tmp_path, checkpoint, monkeypatch):
    synced = watch_fsync(monkeypatch, tmp_path / "checkpoint")
    data = write_batches(tmp_path / "data", [posts(100, seed) for seed in range(2)])

    def on_spark(servers):
        query = two_counts(stream(spark, data)).start(checkpoint, servers=servers, trigger=NOW)
        query.await_termination()
        return query

    on_spark(3)
    for batch in range(2):
        plan = next(i for i, name in enumerate(synced) if name.startswith(f"plans/{batch:012d}"))
        for what in (f"source/offsets/{batch}", f"source/sources/0/{batch}", "source/offsets"):
            assert what in synced[:plan]
        assert any(name.startswith(f"commits/{batch:012d}") for name in synced[plan:])
    bounded = weir.source(spark.read.schema(POSTS).parquet(data)).keyed("place", weir.Count(), name="places")
    before = snapshot(Path(checkpoint))
    with pytest.raises(weir.errors.CheckpointMismatch, match="belongs to a streaming run"):
        bounded.run(checkpoint, servers=3)
    assert snapshot(Path(checkpoint)) == before
    tables = [posts(100, seed) for seed in range(3)]
    write_batches(tmp_path / "data", tables[2:])
    query = on_spark(2)
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counts(tables, column)


def test_rows_that_one_of_two_sinks_has_not_got_are_not_forgotten_with_it(tmp_path):
    """The second sink fails on batch 1, when the first has it; then the application comes back without the second."""
    got, away = {"one": {}, "other": {}}, [True]
    tables = [posts(300, seed) for seed in range(3)]

    def one(table, batch):
        got["one"][batch] = rows_of(table)

    def other(table, batch):
        if batch == 1 and away[0]:
            raise ConnectionError("away")
        got["other"][batch] = rows_of(table)

    checkpoint = str(tmp_path / "checkpoint")
    with start(two_counts(), checkpoint, servers=2, sink={"places": [one, other]}) as query:
        query.feed(tables[0])
        with pytest.raises(ConnectionError, match="away"):
            query.feed(tables[1])
    assert sorted(got["other"]) == [0]
    with (
        pytest.raises(
            weir.errors.CheckpointMismatch, match="sinks of 'places', which have not been delivered"
        ),
        start(two_counts(), checkpoint, servers=2, sink={"places": one}) as query,
    ):
        query.feed(tables[2])
    away[0] = False
    with start(two_counts(), checkpoint, servers=2, sink={"places": [one, other]}) as query:
        query.feed(tables[2])
    assert got["other"] == got["one"]
    assert sorted(got["one"]) == [0, 1, 2]
    # all is delivered: now it may go
    with start(two_counts(), checkpoint, servers=2, sink={"places": one}) as query:
        query.feed(tables[0])
    assert rows_of(query.state("places")) == counts([*tables, tables[0]], "place")


def test_rows_of_a_sink_that_is_gone_may_be_given_up(tmp_path):
    def fails(table, batch):
        raise ConnectionError("away")

    got, checkpoint = [], str(tmp_path / "checkpoint")

    def one(table, batch):
        got.append(batch)

    with (
        pytest.raises(ConnectionError),
        start(two_counts(), checkpoint, servers=2, sink={"places": [one, fails]}) as query,
    ):
        query.feed(TABLES[0])
    with pytest.raises(weir.errors.CheckpointMismatch, match=r'forget=\{"undelivered": \[\'places\'\]\}'):
        start(two_counts(), checkpoint, servers=2, sink={"places": one}).feed(TABLES[1])
    given_up = {"undelivered": ["places"]}
    with start(two_counts(), checkpoint, servers=2, sink={"places": one}, forget=given_up) as query:
        query.feed(TABLES[1])
        assert rows_of(query.state("places")) == counts(TABLES, "place")
    assert got == [0, 0, 1]  # a function gets a batch again whose delivery has not ended
