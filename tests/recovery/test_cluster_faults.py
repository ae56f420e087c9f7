"""Tasks that crash or lose their executor: the result is plain Python's all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import counts, grouped, posts, run_app, write_batches

APP = Path(__file__).with_name("cluster_app.py")


@pytest.mark.cluster
@pytest.mark.faults
def test_crashing_workers_and_killed_executors_change_nothing(tmp_path):
    tables = [posts(1000, seed) for seed in range(4)]
    data = write_batches(tmp_path / "data", tables)
    done = run_app(APP, data, str(tmp_path), timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {a["scenario"]: a for a in map(json.loads, done.stdout.splitlines())}

    groups = grouped(tables, "topic").items()
    topics = sorted([topic, len(rows), sum(r["n"] for r in rows)] for (topic,), rows in groups)
    answer = answers["faults"]
    assert answer["places"] == sorted(map(list, counts(tables, "place")))
    assert answer["topics"] == topics
    assert answer["left"] > 0, "rows went through files, too"
    # executors that see another place under the checkpoint's name than the driver refuse to work
    assert "/proc/self/cwd/unshared: on host" in answers["unshared"]["error"]
    assert "all executors share" in answers["unshared"]["error"]
    # the faults did happen
    crashes = ("crashed-1-0", "crashed-2-0", "crashed-2-1")
    for marker in (*crashes, "killed-between", "killed-after-reading", "killed-late"):
        assert (tmp_path / marker).exists(), marker
