"""``weir.migrate_state`` and ``weir state migrate``: state that a changed program would refuse."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import weir
import weir.testing
from support import POSTS, posts, rows_of
from weir.cli.main import main
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointError, CheckpointMismatch, EngineError, ParameterError, TopologyError
from weir.faults import watching
from weir.testing import Crash, start

OLD, NEW = [posts(200, seed) for seed in range(3)], [posts(200, seed) for seed in range(5, 7)]


@dataclass
class Before:
    rows: int = 0
    text: str = ""
    numbers: weir.ListState[int] = field(default_factory=weir.ListState)


@dataclass
class After:
    seen: int = 0
    text: list[str] = field(default_factory=list)
    numbers: weir.ListState[int] = field(default_factory=weir.ListState)


def note_before(key, rows, state):
    for row in rows:
        state.rows += 1
        state.text = row.place
        state.numbers.append(row.n)


def note_after(key, rows, state):
    for row in rows:
        state.seen += 1
        state.text = [row.place]
        state.numbers.append(row.n)


def first():
    rows = weir.source(POSTS)
    return weir.Application(
        rows.process("topic", note_before, state=Before, order_by="n", name="topics"),
        rows.aggregate("place", total="sum(n)", average="mean(n)", name="places"),
        rows.count(["place", "topic"], name="pairs"),
        rows.count("topic", name="same"),
    )


def changed(rows=None):
    rows = weir.source(POSTS) if rows is None else rows
    return weir.Application(
        rows.process("topic", note_after, state=After, order_by="n", name="topics"),
        rows.aggregate("place", sum="sum(n)", average="mean(n)", name="places"),
        rows.count("place", name="pairs"),
        rows.count("topic", name="same"),
    )


def topics(rows):
    return [
        {"topic": r["topic"], "seen": r["rows"], "text": [r["text"]], "numbers": r["numbers"]}
        for r in rows.to_pylist()
    ]


def places(rows):
    return rows.rename_columns({"total": "sum"})


def pairs(rows):
    return rows.group_by("place").aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})


FUNCTIONS = {"topics": topics, "places": places, "pairs": pairs}


@pytest.fixture
def checkpoint(tmp_path):
    with start(first(), str(tmp_path / "ckpt"), servers=3) as query:
        for batch in OLD:
            query.feed(batch)
    return str(tmp_path / "ckpt")


def states(query):
    return {name: rows_of(query.state(name)) for name in ("topics", "places", "pairs", "same")}


def truth(batches):
    with start(changed(), servers=2) as query:
        for batch in batches:
            query.feed(batch)
        return states(query)


@pytest.mark.parametrize("servers", [2, 3, "auto"])
def test_fields_types_and_keys_change_as_if_the_new_program_had_run_from_the_beginning(checkpoint, servers):
    with pytest.raises(CheckpointMismatch, match="has another"):
        start(changed(), checkpoint, servers=servers)
    before, after = weir.migrate_state(changed(), checkpoint, FUNCTIONS)["pairs"]
    assert before > after
    with start(changed(), checkpoint, servers=servers) as query:
        assert states(query) == truth(OLD)
        for batch in NEW:
            query.feed(batch)
        assert states(query) == truth([*OLD, *NEW])
    assert inspect(checkpoint)["health"]["ok"]


@pytest.mark.parametrize(
    ("point", "after"),
    [("function", 0), ("initial-written", 0), ("initial-written", 3), ("commit-replaced", 0)],
)
def test_killed_in_the_middle_it_leaves_the_old_state_or_has_the_new_one(checkpoint, point, after):
    left, function = [after], FUNCTIONS["pairs"]

    def watch(reached, batch):
        if reached == point:
            if left[0] == 0:
                raise Crash
            left[0] -= 1

    def dying(rows):
        watch("function", 0)
        return function(rows)

    with watching(watch), pytest.raises(Crash):
        weir.migrate_state(changed(), checkpoint, {**FUNCTIONS, "pairs": dying})
    if point == "commit-replaced":
        app, names = changed(), ("places", "pairs")
    else:
        app, names = first(), ("places", "topics")
    with start(app, checkpoint, servers=3) as query:
        query.feed(NEW[0])
        with start(app, servers=2) as reference:
            for batch in [*OLD, NEW[0]]:
                reference.feed(batch)
            for name in names:
                assert rows_of(query.state(name)) == rows_of(reference.state(name))


def test_learnt_homes_and_servers_that_have_scaled(tmp_path):
    checkpoint, learning = str(tmp_path / "ckpt"), weir.Locality(period=1, forecast=None)
    with start(first(), checkpoint, servers=2, routing=learning) as query:
        for batch in OLD:
            query.feed(batch)
            query.reconfigure(wait=True)
        query.scale_out(1)
        query.feed(NEW[0])
    weir.migrate_state(changed(), checkpoint, FUNCTIONS)
    with start(changed(), checkpoint, routing=learning) as query:
        query.feed(NEW[1])
        assert states(query) == truth([*OLD, *NEW])


def test_a_query_that_runs_is_stopped_before_it_can_lose_anything(checkpoint):
    with start(first(), checkpoint, servers=3) as query:
        weir.migrate_state(changed(), checkpoint, FUNCTIONS)
        with pytest.raises(CheckpointError, match="another driver has taken over"):
            query.feed(NEW[0])
    with start(changed(), checkpoint, servers=3) as query:
        query.feed(NEW[0])
        assert states(query) == truth([*OLD, NEW[0]])


@pytest.mark.parametrize(
    ("functions", "error", "says"),
    [
        ({"paris": pairs}, ParameterError, "no operator 'paris'"),
        ({"pairs": 3}, ParameterError, "expected a function"),
        ({"pairs": lambda rows: rows["nothing"]}, EngineError, "the migration of 'pairs' failed"),
        ({"pairs": lambda rows: rows}, TopologyError, "'pairs', migrated state: column 'topic' says nothing"),
        ({"pairs": lambda rows: rows.drop_columns("topic")}, TopologyError, "keys come more than once"),
        ({"pairs": lambda rows: 7}, TopologyError, "no rows of named columns"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_has_changed(checkpoint, functions, error, says):
    with pytest.raises(error) as raised:
        weir.migrate_state(changed(), checkpoint, functions)
    assert says in str(raised.value)
    with start(first(), checkpoint, servers=3) as query:
        query.feed(NEW[0])
        assert sum(row[-1] for row in rows_of(query.state("same"))) == 800


def test_state_can_be_put_right_without_a_change_of_the_program(tmp_path):
    app = weir.source(POSTS).count("topic", name="topics")
    with start(app, str(tmp_path / "ckpt"), servers=1) as query:
        query.feed(OLD[0])
    only = pa.compute.field("topic") == "topic 1"
    weir.migrate_state(app, str(tmp_path / "ckpt"), {"topics": lambda rows: rows.filter(only)})
    with start(app, str(tmp_path / "ckpt"), servers=1) as query:
        assert query.state("topics")["topic"].to_pylist() == ["topic 1"]
        query.feed(OLD[1])


def test_the_command(checkpoint, tmp_path, monkeypatch, capsys):
    (tmp_path / "app.py").write_text(
        "import weir\nrows = weir.source('place string, topic string, n long')\n"
        "app = lambda: weir.Application(rows.count('place', name='pairs'))\nbad = 3\n"
        "on_spark = lambda spark: app() if spark == 'a session' else spark\n"
        "def pairs(old):\n    import pyarrow as pa\n"
        "    new = old.group_by('place').aggregate([('count', 'sum')])\n"
        "    return new.rename_columns({'count_sum': 'count'})\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["state", "migrate", checkpoint, "app.py:app", "pairs=app.py:pairs", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["pairs"]
    assert result["before"] > result["after"] == 20
    assert main(["state", checkpoint, "pairs", "--key", "place 1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    session, stopped = type("Session", (str,), {"stop": lambda self: stopped.append(self)}), []
    monkeypatch.setattr("weir.spark.session.service", lambda settings, name: session("a session"))
    assert main(["state", "migrate", checkpoint, "app.py:on_spark", "pairs=app.py:pairs"]) == 0
    assert stopped == ["a session"]
    capsys.readouterr()
    for arguments, says in (
        (["app.py:ap", "pairs=app.py:pairs"], "has no 'ap'; did you mean 'app'"),
        (["app.py:bad", "pairs=app.py:pairs"], "expected an application, or a function"),
        (["nowhere:app", "pairs=app.py:pairs"], "there is no module 'nowhere'"),
    ):
        assert main(["state", "migrate", checkpoint, *arguments]) == 1
        assert says in " ".join(capsys.readouterr().err.split())
