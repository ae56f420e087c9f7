"""Checkpoints that are damaged, newer, of another application, or of another shape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import weir
from support import POSTS, counted, posts, rows_of, stream, watch_fsync, write_batches
from weir.engine.ledger import Ledger, latest_commit
from weir.hashing import hash_columns
from weir.state.storage import Storage

NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    """A checkpoint after two batches, and its data; tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    write_batches(folder / "data", [posts(600, s) for s in range(2)])
    query = app(spark, folder).start(str(folder / "checkpoint"), servers=3, trigger=NOW)
    query.await_termination()
    return folder


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy", copy_function=shutil.copy2)
    folder = tmp_path / "copy"
    # Spark names its files by path in its own log, so the data stays where it was
    shutil.rmtree(folder / "data")
    (folder / "data").symlink_to(made / "data")
    return folder


def app(spark, folder, **options):
    source = weir.source(stream(spark, (folder / "data").resolve(), POSTS))
    return source.keyed("place", weir.Count(), name="places", **options).keyed(
        "topic", weir.Count(), name="topics"
    )


def test_a_plan_stands_on_what_is_on_disk(spark, tmp_path, monkeypatch):
    synced = watch_fsync(monkeypatch, tmp_path / "checkpoint")
    write_batches(tmp_path / "data", [posts(100, s) for s in range(2)])
    go_on(spark, tmp_path)
    for batch in range(2):
        plan = next(i for i, name in enumerate(synced) if name.startswith(f"plans/{batch:012d}"))
        for what in (f"source/offsets/{batch}", f"source/sources/0/{batch}", "source/offsets"):
            assert what in synced[:plan]
        assert any(name.startswith(f"commits/{batch:012d}") for name in synced[plan:])


def go_on(spark, folder, application=None, **options):
    options = {"servers": 3, "trigger": NOW, **options}
    query = (application or app(spark, folder)).start(str(folder / "checkpoint"), **options)
    query.await_termination()
    return query


def files(folder, pattern):
    return sorted((folder / "checkpoint").glob(pattern))


def snapshot(folder):
    return {p: p.read_bytes() for p in files(folder, "**/*") if p.is_file() and "source" not in p.parts}


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
def test_damage_is_named_and_nothing_is_overwritten(spark, copy, pattern, damage, says):
    victim = files(copy, pattern)[-1]
    spoil(victim, damage)
    before = snapshot(copy)
    with pytest.raises(weir.errors.CheckpointError, match=says) as caught:
        go_on(spark, copy)
    assert victim.name in str(caught.value)
    assert snapshot(copy) == before


@pytest.mark.parametrize(
    ("damage", "says"), [("flip", "damaged"), ("truncate", "damaged"), ("delete", "missing")]
)
def test_damaged_state_is_met_by_the_batch_that_wants_it(spark, tmp_path, damage, says):
    write_batches(tmp_path / "data", [posts(300, 1)])
    go_on(spark, tmp_path)
    victim = files(tmp_path, "state/topics/*/*")[-1]
    spoil(victim, damage)
    write_batches(tmp_path / "data", [posts(300, 2)])
    before = snapshot(tmp_path)
    with pytest.raises(weir.errors.CheckpointError, match=says) as caught:
        go_on(spark, tmp_path)
    assert victim.name in str(caught.value)
    after = snapshot(tmp_path)
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


def test_another_application_is_refused_with_the_difference(spark, copy):
    source = weir.source(stream(spark, (copy / "data").resolve(), POSTS))
    other_key = source.keyed("topic", weir.Count(), name="places").keyed("topic", weir.Count(), name="topics")
    before = snapshot(copy)
    with pytest.raises(weir.errors.CheckpointMismatch, match="operator 'places' has another key now"):
        go_on(spark, copy, other_key)
    source = weir.source(stream(spark, (copy / "data").resolve(), POSTS))
    other_kind = source.keyed("place", weir.Aggregate(count="sum(n)"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    with pytest.raises(weir.errors.CheckpointMismatch, match="operator 'places' has another definition now"):
        go_on(spark, copy, other_kind)
    source = weir.source(stream(spark, (copy / "data").resolve(), POSTS))
    fewer = source.keyed("place", weir.Count(), name="places")
    with pytest.raises(
        weir.errors.CheckpointMismatch, match="operator 'topics', which the application no longer has"
    ):
        go_on(spark, copy, fewer)
    bounded = weir.source(spark.read.schema(POSTS).parquet(str((copy / "data").resolve())))
    with pytest.raises(weir.errors.CheckpointMismatch, match="belongs to a streaming run"):
        bounded.keyed("place", weir.Count(), name="places").run(str(copy / "checkpoint"), servers=3)
    assert snapshot(copy) == before
    given_up = go_on(spark, copy, fewer, drop_state=["topics"])
    assert rows_of(given_up.state("places")) == counted(spark, (copy / "data").resolve(), "place")


@pytest.mark.parametrize("servers", [1, 5])
def test_another_number_of_servers_is_migrated(spark, copy, servers):
    query = go_on(spark, copy, servers=servers)
    # the stream brought nothing new, so the state is read through the commit that the migration left, if any
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counted(spark, (copy / "data").resolve(), column)


def test_added_operators_start_empty_and_changed_groupings_move_state(spark, tmp_path):
    data = tmp_path / "data"
    write_batches(data, [posts(500, 1)])
    folder = tmp_path
    go_on(spark, folder)
    write_batches(data, [posts(500, 2)])
    sample = hash_columns([posts(500, 1)["place"].combine_chunks()])
    heavy = app(spark, folder, routing=weir.routing.HeavyKeys.learn(sample, 3))
    query = go_on(spark, folder, heavy)
    assert rows_of(query.state("places")) == counted(spark, data, "place")
    write_batches(data, [posts(500, 3)])
    relearnt = app(spark, folder, routing=weir.routing.HeavyKeys.learn(sample[:40], 3))
    more = relearnt.keyed("n", weir.Count(), name="numbers")
    query = go_on(spark, folder, more)
    assert rows_of(query.state("places")) == counted(spark, data, "place")
    assert rows_of(query.state("topics")) == counted(spark, data, "topic")
    assert query.state("numbers").agg({"count": "sum"}).first()[0] == 500


def test_two_writers_and_leftovers_of_a_dead_one(tmp_path, copy):
    storage = Storage(str(copy / "checkpoint"))
    last = latest_commit(storage)
    with pytest.raises(weir.errors.CheckpointError, match="Two queries share this checkpoint"):
        storage.write_document(f"commits/{last.batch:012d}-{last.epoch:04d}", "commit", last)
    (copy / "checkpoint/commits/000000000009-0000.dead.tmp").write_bytes(b"half a comm")
    assert latest_commit(storage).batch == last.batch


def test_old_files_are_deleted_and_everything_named_stays(spark, tmp_path):
    data = tmp_path / "data"
    write_batches(data, [posts(200, s) for s in range(12)])
    query = app(spark, tmp_path).start(str(tmp_path / "checkpoint"), servers=2, trigger=NOW, retain=2)
    query.await_termination()
    storage = Storage(str(tmp_path / "checkpoint"))
    (Path(storage.root) / "commits/000000000001-0000.dead.tmp").write_bytes(b"half")
    ledger: Ledger = query._driver.ledger
    orphan = "state/topics/000000000003/s0-1-zombie.arrow"
    storage.write(orphan, b"a task that came too late")
    assert ledger.clean() >= 1
    assert not storage.exists(orphan)
    assert len(storage.names("commits")) == 2
    living = {r.name for servers in ledger.last.manifest.values() for refs in servers for r in refs}
    assert living <= set(storage.files("state"))
    assert len(storage.files("state")) < 12 * 2 * 2
    assert rows_of(query.state("topics")) == counted(spark, data, "topic")
    assert np.mean([len(r) for r in ledger.last.manifest["topics"]]) <= 16
