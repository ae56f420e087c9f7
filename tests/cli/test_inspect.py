"""``weir inspect``: what it says about sound checkpoints, and how it refuses others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weir
from support import posts, two_counts
from weir.cli.main import main
from weir.engine.inspect.inspection import inspect
from weir.state.storage import Storage
from weir.testing import start


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkpoint of three batches: a count with a sink behind a learnt count."""
    checkpoint = tmp_path_factory.mktemp("inspect") / "checkpoint"
    routing = weir.Locality(period=1, forecast=None)
    with start(two_counts(), str(checkpoint), servers=3, routing=routing) as query:
        for seed in range(3):
            query.feed(posts(1500, seed))
            query.reconfigure(wait=True)
    # an error while tables are computed does not stop a query: without this, tests would only miss the tables
    assert [d.error for d in query.decisions if d.error] == []
    assert query.progress.table_version > 0, query.decisions
    keys = {name: query.state(name).num_rows for name in ("places", "topics")}
    return checkpoint, keys, query.progress


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def report(capsys, *arguments):
    """Exit code, what was printed as JSON (None if nothing was), and standard error."""
    code = main(["inspect", *map(str, arguments), "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else None, shown.err


def latest_segment(checkpoint):
    commit = sorted((checkpoint / "commits").iterdir())[-1]
    body = json.loads(commit.read_bytes().partition(b"\n")[2])
    return checkpoint / body["manifest"]["topics"][0][0][0]


def test_a_sound_checkpoint_as_json(finished, capsys):
    checkpoint, keys, progress = finished
    code, result, errors = report(capsys, checkpoint)
    assert (code, errors) == (0, "")
    assert (result["mode"], result["servers"], result["batch"]) == ("in process", 3, 2)
    assert [b["batch"] for b in result["batches"]] == [0, 1, 2]
    last = result["batches"][-1]
    assert last["rows"] == 1500
    assert last["locality"] == progress.locality
    assert last["imbalance"] == {n: o.imbalance for n, o in progress.operators.items()}
    assert last["seconds"] > 0
    for name, operator in result["operators"].items():
        assert operator["keys"] == keys[name] == sum(s["keys"] for s in operator["servers"])
        assert len(operator["servers"]) == 3
        assert operator["bytes"] == sum(s["bytes"] for s in operator["servers"]) > 0
    assert result["operators"]["topics"]["key"] == ["topic"]
    assert result["tables"]["topics"]["keys"] > 0
    health = result["health"]
    assert health["ok"]
    assert health["files"] > 6
    assert health["damaged"] == health["wrong"] == []
    assert health["planned"] is health["undelivered"] is None
    assert health["orphans"]["files"] == 0


def test_for_people_and_in_a_hurry(finished, capsys):
    assert main(["inspect", str(finished[0])]) == 0
    shown = capsys.readouterr().out
    assert "in process run on 3 servers" in shown
    assert "topics: Aggregate by topic" in shown
    assert "have the length and checksum on record" in shown
    assert main(["inspect", str(finished[0]), "--quick", "--last", "1"]) == 0
    shown = capsys.readouterr().out
    assert "not read, as asked" in shown
    assert inspect(str(finished[0]), last=1, verify=False)["batches"][0]["batch"] == 2


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "missing"])
def test_a_damaged_segment_is_named(copy, capsys, how):
    segment = latest_segment(copy)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "missing":
        segment.unlink()
    else:
        segment.write_bytes({"flipped": bytes(data), "truncated": data[:-9], "emptied": b""}[how])
    code, result, _ = report(capsys, copy)
    assert code == 1
    (damage,) = result["health"]["damaged"]
    assert damage["file"] == str(segment.relative_to(copy))
    assert segment.name in damage["problem"]
    assert main(["inspect", str(copy)]) == 1
    assert "✗" in capsys.readouterr().out


def test_what_everything_hangs_on_must_be_readable(copy, capsys, tmp_path):
    def refused(says):
        code, result, errors = report(capsys, copy)
        assert (code, result) == (1, None)
        assert errors.startswith("weir: ")
        assert errors.count("\n") == 1
        assert says in errors

    commit = sorted((copy / "commits").iterdir())[-1]
    sound = commit.read_bytes()
    commit.write_bytes(sound[:-20])
    refused("damaged or truncated")
    commit.write_bytes(sound.replace(b'"weir": 2', b'"weir": 99', 1))
    refused("newer Weir")
    commit.write_bytes(b"")
    refused("not a Weir commit")
    commit.write_bytes(sound)
    (copy / "weir").unlink()
    refused("missing, although there are commits")
    copy = tmp_path
    refused("not a Weir checkpoint")
    copy = tmp_path / "nowhere"
    refused("no such folder")


def test_what_a_crash_leaves_behind_is_told(copy, capsys):
    """As if the driver had died after the plan of batch 3, before batch 2 was delivered, and a task had run twice."""
    plan = sorted((copy / "plans").iterdir())[-1]
    head, _, body = plan.read_bytes().partition(b"\n")
    del head
    following = {**json.loads(body), "batch": 3}
    Storage(str(copy)).write_document("plans/000000000003-0000", "plan", following)
    (copy / "delivered" / "000000000002").unlink()
    (copy / "state/topics/000000000001/s0-2-twice.arrow").write_bytes(b"x" * 10)
    (copy / "state/topics/000000000003").mkdir()
    (copy / "state/topics/000000000003/s0-2-early.arrow").write_bytes(b"x" * 20)
    (copy / "commits" / "000000000003-0000.abc.tmp").write_bytes(b"half a com")
    code, result, _ = report(capsys, copy)
    assert code == 0
    health = result["health"]
    assert (health["planned"], health["undelivered"]) == (3, 2)
    assert health["orphans"] == {"files": 1, "bytes": 10}
    assert health["in_flight"] == {"files": 1, "bytes": 20}
    main(["inspect", str(copy)])
    shown = capsys.readouterr().out
    assert "batch 3 is planned but not committed" in shown
    assert "the next start delivers it" in shown


def test_before_the_first_batch(tmp_path, capsys):
    Storage(str(tmp_path)).write_document(
        "weir", "checkpoint", {"id": "x", "mode": "streaming", "created": 0}
    )
    code, result, _ = report(capsys, tmp_path)
    assert code == 0
    assert result["batch"] is None
    assert result["batches"] == []
    assert main(["inspect", str(tmp_path)]) == 0
    assert "no batch has been committed yet" in capsys.readouterr().out


def test_no_number_is_cut_off_on_a_narrow_terminal(tmp_path):
    app = weir.source("place string, n long").keyed(
        "place", weir.Count(emit="rows"), name="a_rather_long_name_of_an_operator"
    )
    app = app.keyed("n", weir.Count(emit="rows"), name="and_another_name_that_is_long")
    rows = [{"place": f"p{i}", "n": i} for i in range(3000)] + [{"place": None, "n": 1}] * 1234
    with weir.testing.start(app, str(tmp_path), servers=3, routing=weir.Locality(period=1)) as query:
        for _ in range(3):
            query.feed(rows)
    environment = {**os.environ, "COLUMNS": "60", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "weir.cli.main", "inspect", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    assert "…" not in shown
    for number in ("4,234", "1,234", "3,000"):
        assert number in shown
