"""``weir state``, and ``batch=`` of ``read_state`` and ``query.state``: what a checkpoint holds."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow.parquet as pq
import pytest

import weir
import weir.testing
from support import dicts
from weir.cli.main import main
from weir.errors import CheckpointError, EngineError, ParameterError
from weir.testing import start

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [{"place": f"p{i % 7}", "topic": f"t{i % 3}", "n": i, "time": NOON} for i in range(42)]
SCHEMA = "place string, topic string, n int, time timestamp"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Four batches of an application that keeps counts per place and topic, and the last row per number."""
    folder = str(tmp_path_factory.mktemp("state") / "ckpt")
    rows = weir.source(SCHEMA)
    pairs = rows.aggregate(["place", "topic"], n="count", last="max(time)", name="pairs")
    app = weir.Application(pairs, rows.count("n", name="numbers"))
    with start(app, folder, servers=3, retain=3) as query:
        for _ in range(4):
            query.feed(ROWS)
        query.feed(ROWS[:6])
    return folder


def shown(capsys, *arguments, code=0):
    assert main(["state", *map(str, arguments), "--json"]) == code
    out = capsys.readouterr()
    return json.loads(out.out) if code == 0 else out.err


def test_without_an_operator_it_says_which_there_are(checkpoint, capsys):
    result = shown(capsys, checkpoint)
    assert result["operators"]["pairs"] == {"kind": "Aggregate", "key": ["place", "topic"], "keys": 21}
    assert main(["state", checkpoint]) == 0
    assert "place, topic" in capsys.readouterr().out


def test_all_keys_and_the_state_of_one(checkpoint, capsys):
    everything = shown(capsys, checkpoint, "pairs")["rows"]
    assert len(everything) == 21
    assert shown(capsys, checkpoint, "pairs", "--key", "p1", "t1")["rows"] == [
        {"place": "p1", "topic": "t1", "n": 9, "last": "2024-01-01T12:00:00Z"}
    ]
    assert shown(capsys, checkpoint, "numbers", "--key", "41")["rows"] == [{"n": 41, "count": 4}]
    assert shown(capsys, checkpoint, "numbers", "--key", "77")["rows"] == []


@pytest.mark.parametrize(
    ("condition", "keeps"),
    [
        ("n == 9", lambda r: r["n"] == 9),
        (
            "place in ['p1', 'p3'] and topic != 't0'",
            lambda r: r["place"] in ("p1", "p3") and r["topic"] != "t0",
        ),
        ("not (place == 'p1' or topic == 't1')", lambda r: r["place"] != "p1" and r["topic"] != "t1"),
        ("last > '2024-01-01T11:59:00Z' and 8 < n", lambda r: r["n"] > 8),
        ("place is None", lambda r: False),
    ],
)
def test_a_condition_picks_rows(checkpoint, capsys, condition, keeps):
    everything = shown(capsys, checkpoint, "pairs")["rows"]
    assert shown(capsys, checkpoint, "pairs", "--where", condition)["rows"] == [
        r for r in everything if keeps(r)
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["paris"], "did you mean 'pairs'"),
        (["pairs", "--key", "p1"], "the key of 'pairs' is place, topic: 2 values, not 1"),
        (["numbers", "--key", "many"], "n='many' is no int32"),
        (["pairs", "--where", "m > 3"], "no column 'm'"),
        (["pairs", "--where", "n >"], "Write it as"),
        (["pairs", "--where", "n > 'x'"], "Write it as"),
        (["pairs", "--where", "print(n)"], "Write it as"),
        (["pairs", "--batch", "99"], "Retained are batches"),
        (["pairs", "--parquet", "/no/such/folder/x.parquet"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_said(checkpoint, capsys, arguments, says):
    assert says in " ".join(shown(capsys, checkpoint, *arguments, code=1).split())


def test_rows_are_limited_for_people_and_written_to_parquet(checkpoint, capsys, tmp_path):
    assert main(["state", checkpoint, "pairs"]) == 0
    assert "the first 20 rows" in capsys.readouterr().out
    assert len(shown(capsys, checkpoint, "pairs", "--limit", 4)["rows"]) == 4
    file = tmp_path / "pairs.parquet"
    assert shown(capsys, checkpoint, "pairs", "--parquet", file, "--where", "n > 8")["rows"] == len(
        pq.read_table(file)
    )
    assert pq.read_schema(file).names == ["place", "topic", "n", "last"]


def test_the_state_that_any_retained_batch_left(checkpoint, capsys):
    for batch, times in ((1, 2), (2, 3), (3, 4)):
        assert {r["count"] for r in shown(capsys, checkpoint, "numbers", "--batch", batch)["rows"]} == {times}
    with start(weir.source(SCHEMA).count("n", name="numbers"), servers=2, retain=2) as query:
        for batch in range(12):
            query.feed(ROWS)
            assert {r["count"] for r in dicts(query.state("numbers", batch=batch))} == {batch + 1}
        assert query.state("numbers", batch=9)["count"][0].as_py() == 10
        with pytest.raises(
            CheckpointError, match=r"after batch 3 is not there. Retained are batches 8, 9, 10, 11"
        ):
            query.state("numbers", batch=3)
        with pytest.raises(EngineError, match="no operator 'paris'"):
            query.state("paris", batch=9)


def test_a_condition_is_checked_before_state_is_read(checkpoint):
    from weir.cli.state import parsed

    with pytest.raises(ParameterError):
        parsed("a == 1", weir.source("b long").ends[0].schema)
