"""A fork of a checkpoint goes on as a replay of the same rows would, however far the first query goes."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os

import pyarrow as pa
import pytest

import weir
import weir.testing
from support import NOW, POSTS, Rises, posts, rows_of, stream, two_counts, write_batches
from weir.cli.main import main
from weir.engine.checkpoint import CheckpointLayout, files_of
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointError
from weir.state.storage import Storage
from weir.testing import start

ROWS = [posts(300, seed) for seed in range(16)]
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def application():
    """Counts, sums that are learnt to live together, and a function whose result depends on the order of rows."""
    rows = weir.source(POSTS)
    places = rows.count("place", name="places", emit="rows")
    return weir.Application(
        places.aggregate("topic", total="sum(n)", name="topics"),
        rows.keyed("topic", Rises(), name="rises"),
    )


def states(query):
    return {name: rows_of(query.state(name)) for name in ("places", "topics", "rises")}


def replayed(rows, **settings):
    with start(application(), servers=3, seed=1, **settings) as query:
        for batch in rows:
            query.feed(batch)
        return states(query)


@pytest.mark.parametrize("routing", [None, weir.Locality(period=1, forecast=None), weir.PartialKey()])
def test_a_fork_equals_a_replay_however_far_the_first_query_goes(tmp_path, routing):
    blue, green = str(tmp_path / "blue"), str(tmp_path / "green")
    app = two_counts(places=routing, routing=routing)
    with start(app, blue, servers=3, retain=1) as query:
        for batch in ROWS[:3]:
            query.feed(batch)
        assert weir.fork(blue, green) == 2
        for batch in ROWS[3:]:
            query.feed(batch)
        query._driver.ledger.clean()
        with start(app, green, servers=2) as forked:  # with other servers, too
            for batch in ROWS[3:5]:
                forked.feed(batch)
            went_on = {name: rows_of(forked.state(name)) for name in ("places", "topics")}
        first = {name: rows_of(query.state(name)) for name in ("places", "topics")}
    for rows, got in ((ROWS[:5], went_on), (ROWS, first)):
        with start(app, servers=3) as truth:
            for batch in rows:
                truth.feed(batch)
            assert got == {name: rows_of(truth.state(name)) for name in ("places", "topics")}
    assert inspect(green)["health"]["ok"]
    assert inspect(blue)["health"]["ok"]


def test_order_sums_and_windows_go_on_and_the_fork_can_be_forked(tmp_path):
    folders = [str(tmp_path / name) for name in ("a", "b", "c")]
    with start(application(), folders[0], servers=3, retain=1, seed=1) as query:
        for batch in ROWS[:4]:
            query.feed(batch)
    for number, (old, new) in enumerate(itertools.pairwise(folders), 4):
        weir.fork(old, new)
        with start(application(), new, servers=3, seed=1) as query:
            query.feed(ROWS[number])
            assert states(query) == replayed(ROWS[: number + 1])
    with start(application(), folders[0], servers=3) as query:
        assert states(query) == replayed(ROWS[:4])


def test_files_are_linked_not_copied_and_each_clean_up_deletes_only_its_own(tmp_path):
    blue, green = tmp_path / "blue", tmp_path / "green"
    with start(two_counts(), str(blue), servers=2, retain=1) as query:
        query.feed(ROWS[0])
        weir.fork(str(blue), str(green))
        linked = [f for f in CheckpointLayout(Storage(str(green))).data_files() if f.startswith("state/")]
        assert linked
        assert all(os.stat(green / f).st_nlink == 2 for f in linked)
        for batch in ROWS[1:12]:
            query.feed(batch)
        query._driver.ledger.clean()
        assert any(
            os.stat(green / f).st_nlink == 1 for f in linked
        )  # the first query has merged and deleted its own
    assert inspect(str(green))["health"]["damaged"] == []


def test_sinks_take_a_fork_for_another_query_and_get_only_what_comes_after(tmp_path):
    blue, green = str(tmp_path / "blue"), str(tmp_path / "green")
    table = [str(tmp_path / "one"), str(tmp_path / "other")]
    app = weir.source(POSTS).count("topic", name="topics")
    with start(app, blue, servers=2, sink=table[0]) as query:
        query.feed(ROWS[0])
        query.feed(ROWS[1])
        weir.fork(blue, green)
    with start(app, green, servers=2, sink=table[1]) as forked:
        forked.feed(ROWS[2])
        assert {batch for _, batch, _ in forked.deliveries} == {2}
        assert sorted(os.listdir(table[1]))[-1] == "batch_id=2"
        assert forked.id == query.id  # by which routers hash
        assert forked._driver.ledger.query != query._driver.ledger.query
    with (
        start(app, green, servers=2, sink=table[0]) as forked,
        pytest.raises(CheckpointError, match="another checkpoint"),
    ):
        forked.feed(ROWS[3])


def test_a_batch_that_was_not_delivered_stays_the_first_querys(tmp_path):
    blue, green = str(tmp_path / "blue"), str(tmp_path / "green")
    app = weir.source(POSTS).count("topic", name="topics")

    def refuses(rows, batch):
        if batch == 1:
            raise RuntimeError("the sink is away")

    with start(app, blue, servers=2, sink=refuses) as query:
        query.feed(ROWS[0])
        with pytest.raises(RuntimeError, match="away"):
            query.feed(ROWS[1])
    weir.fork(blue, green)
    with start(app, green, servers=2) as forked:
        forked.feed(ROWS[2])
        assert [batch for _, batch, _ in forked.deliveries] == [2]
        assert sum(r[1] for r in rows_of(forked.state("topics"))) == 900
    with start(app, blue, servers=2, sink=lambda rows, batch: None) as query:
        query.feed(ROWS[1], number=1)
        assert [batch for _, batch, _ in query.deliveries] == [1]


def test_windows_and_positions_of_files_go_on(tmp_path):
    blue, green = str(tmp_path / "blue"), str(tmp_path / "green")
    schema = "place string, time timestamp"
    app = weir.source(schema).count("place", name="pages", window=weir.tumbling("time", "1 minute"))
    rows = [
        [{"place": "FR", "time": NOON + dt.timedelta(seconds=20 * i + s)} for s in (0, 1)] for i in range(9)
    ]

    def closed(query):
        return [(r["window_start"], r["count"]) for r in query.output("pages").to_pylist()]

    with start(app, blue, servers=2) as query:
        for batch in rows[:4]:
            query.feed(batch)
        weir.fork(blue, green)
        before = closed(query)
        for batch in rows[4:]:
            query.feed(batch)
        truth = closed(query)
    with start(app, green, servers=2) as forked:
        for batch in rows[4:]:
            forked.feed(batch)
        assert before + closed(forked) == truth


@pytest.mark.parametrize("kills_at", range(12))
def test_a_fork_that_is_cut_off_is_refused_and_can_be_made_again(tmp_path, monkeypatch, kills_at):
    blue, green = str(tmp_path / "blue"), tmp_path / "green"
    with start(two_counts(), blue, servers=2) as query:
        query.feed(ROWS[0])
    done = [0]

    def dying(method):
        def call(storage, *arguments):
            if storage.location == str(green):
                if done[0] == kills_at:
                    raise KeyboardInterrupt
                done[0] += 1
            return method(storage, *arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("take", "write", "write_document", "delete"):
            patch.setattr(Storage, name, dying(getattr(Storage, name)))
        try:
            weir.fork(blue, str(green))
        except KeyboardInterrupt:
            assert done[0] == kills_at
    if (green / "weir").exists():
        with start(two_counts(), str(green), servers=2) as forked:
            assert rows_of(forked.state("topics")) == rows_of(query.state("topics"))
    elif kills_at:  # something is there already
        with pytest.raises(CheckpointError, match=r"a fork that was cut off|there are commits"):
            start(two_counts(), str(green), servers=2)
        with pytest.raises(CheckpointError, match="not empty"):
            weir.fork(blue, str(green))


def test_clean_up_that_is_faster_than_the_fork_makes_it_begin_with_a_later_commit(tmp_path, monkeypatch):
    blue, green = str(tmp_path / "blue"), str(tmp_path / "green")
    take, raced = Storage.take, [0]
    with start(two_counts(), blue, servers=2, retain=1) as query:
        for batch in ROWS[:3]:
            query.feed(batch)

        def racing(target, source, name):
            if raced[0] < 9:  # so many batches that what the commit names has been merged, and cleaned away
                raced[0] += 1
                query.feed(ROWS[3])
                query._driver.ledger.clean()
            take(target, source, name)

        monkeypatch.setattr(Storage, "take", racing)
        batch = weir.fork(blue, green)
        assert raced[0] == 9
        assert batch > 2
    with start(two_counts(), green, servers=2) as forked:
        assert sum(r[1] for r in rows_of(forked.state("topics"))) == 300 * (batch + 1)


def test_what_cannot_be_forked_says_why(tmp_path):
    with pytest.raises(CheckpointError, match="no batch has been committed"):
        weir.fork(str(tmp_path / "nothing"), str(tmp_path / "new"))
    with start(two_counts(), str(tmp_path / "blue"), servers=2) as query:
        query.feed(ROWS[0])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match="not empty"):
        weir.fork(str(tmp_path / "blue"), str(tmp_path / "full"))


def test_the_command(tmp_path, capsys):
    with start(two_counts(), str(tmp_path / "blue"), servers=2) as query:
        query.feed(ROWS[0])
    assert main(["fork", str(tmp_path / "blue"), str(tmp_path / "green"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"checkpoint": str(tmp_path / "green"), "batch": 0}
    assert main(["fork", str(tmp_path / "blue"), str(tmp_path / "green")]) == 1


def test_a_fork_on_another_file_system_is_a_copy(tmp_path, monkeypatch):
    with start(two_counts(), str(tmp_path / "blue"), servers=2) as query:
        query.feed(ROWS[0])
        with monkeypatch.context() as patch:
            patch.setattr("weir.state.local_files.LocalFiles.link", lambda *_: False)
            weir.fork(str(tmp_path / "blue"), str(tmp_path / "green"))
    commit = CheckpointLayout(Storage(str(tmp_path / "green"))).commit_of()
    assert all(os.stat(tmp_path / "green" / ref.name).st_nlink == 1 for ref in files_of(commit))
    with start(two_counts(), str(tmp_path / "green"), servers=2) as forked:
        assert rows_of(forked.state("places")) == rows_of(query.state("places"))


def test_on_spark_both_go_on_with_their_own_offsets(spark, tmp_path):
    folder, blue, green = tmp_path / "in", str(tmp_path / "blue"), str(tmp_path / "green")
    write_batches(folder, ROWS[:2])
    query = two_counts(stream(spark, folder)).start(blue, servers=2, execution="jobs")
    query.process_all_available()
    weir.fork(blue, green)
    write_batches(folder, ROWS[2:4])
    forked = two_counts(stream(spark, folder)).start(green, servers=2, trigger=NOW, execution="jobs")
    forked.await_termination()
    query.process_all_available()
    query.stop()
    truth = rows_of(pa.concat_tables(ROWS[:4]).group_by("topic").aggregate([([], "count_all")]))
    for name in (blue, green):
        assert rows_of(weir.read_state(name, "topics", spark)) == truth
    assert sum(r["count"] for r in weir.read_state(green, "topics", spark, batch=1).collect()) == 600
