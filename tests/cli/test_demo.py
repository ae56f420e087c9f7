"""The demo in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from weir.cli.demo import Posts, Topic, Trending
from weir.engine.inspect.inspection import inspect


def test_posts_are_skewed_have_communities_and_drift():
    posts = Posts(20_000, drift=0.02, seed=1)
    first = posts.next()
    homes = posts.home.copy()
    assert len(set(first["place"].to_pylist())) > 30
    counts = first["topic"].value_counts().to_pylist()
    assert max(c["counts"] for c in counts) > 20 * 20_000 / len(posts.names)
    for _ in range(10):
        last = posts.next()
    assert 0.05 < (posts.home != homes).mean() < 0.35
    assert set(last["topic"].to_pylist()) - set(first["topic"].to_pylist())
    assert Posts(500, seed=3).next().equals(Posts(500, seed=3).next())


def test_files_are_dated_in_their_order(tmp_path):
    Posts(100).write(tmp_path, 3)
    files = sorted(tmp_path.iterdir(), key=lambda p: p.stat().st_mtime)
    assert [pq.read_table(f)["minute"][0].as_py() for f in files] == [0, 1, 2]


def test_a_topic_trends_once_a_minute_however_its_rows_are_cut():
    class Row:
        def __init__(self, minute):
            self.minute, self.text = minute, "text"

    def told(*calls):
        state, out = Topic(), []
        for minute, rows in calls:
            out += Trending(least=10, times=3).process("a", [Row(minute)] * rows, state)
        return [(minute, posts) for _, minute, posts, _, _ in out], state

    out, state = told((0, 5), (1, 5), (2, 5), (3, 4), (3, 20), (3, 20), (4, 5))
    assert out == [(3, 24)]
    assert state.posts == 64
    assert told((0, 5), (1, 5), (2, 5), (3, 44))[0] == [(3, 44)]


def demo(*options, **environment):
    command = [sys.executable, "-m", "weir.cli.main", "demo", "--json", "--no-page", *options]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def test_the_first_run_on_a_new_machine_shows_what_the_demo_is_for(tmp_path):
    kept = tmp_path / "kept"
    size = ["--batches", "7", "--by-hash", "2", "--rows", "4000", "--servers", "4", "--seconds", "250"]
    done = demo(*size, "--keep", str(kept), NUMBA_CACHE_DIR=str(tmp_path / "nothing is compiled"))
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["check"]["equal"] is True
    assert result["check"]["rows"] == result["rows"] == 28_000
    assert [b["batch"] for b in result["batches"]] == list(range(7))
    hashed, learnt = result["summary"]["hash"], result["summary"]["learnt"]
    assert learnt["locality"] > 2 * hashed["locality"]
    assert "compiling, once per installation" in done.stderr
    assert "batch   6" in done.stderr
    assert "Traceback" not in done.stderr
    health = inspect(str(kept / "checkpoint"))["health"]
    assert health["ok"]
    assert health["planned"] is None


@pytest.mark.parametrize(
    ("batches", "why"),
    [("2", "give the demo more --batches"), ("9", "within 0 s; give the demo more --seconds")],
)
def test_a_demo_that_can_show_nothing_fails(batches, why):
    done = demo("--batches", batches, "--by-hash", "1", "--rows", "200", "--seconds", "0.2")
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stdout == ""
