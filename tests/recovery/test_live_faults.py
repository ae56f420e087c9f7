"""Source tasks, servers and executors that die in live batches: the result is plain Python's all the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support import counts, grouped, posts, run_app, write_batches

APP = Path(__file__).with_name("live_app.py")


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.long
def test_a_source_task_a_server_and_an_executor_die(tmp_path):
    sizes = [2000, 70_000, 2000, 2000, 2000, 2000, 2000, 2000]
    tables = [
        posts(rows, seed)
        .set_column(2, "n", pa.array(np.arange(rows)))
        .append_column("batch", pa.array(np.full(rows, seed, np.int32)))
        for seed, rows in enumerate(sizes)
    ]
    data = write_batches(tmp_path / "data", tables)
    done = run_app(APP, data, str(tmp_path), timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    groups = grouped(tables, "topic").items()
    assert answer["places"] == sorted(map(list, counts(tables, "place")))
    assert answer["topics"] == sorted([t, len(rows), sum(r["n"] for r in rows)] for (t,), rows in groups)
    assert answer["killed"] == ["killed-executor", "killed-server", "killed-source"]
    # a batch that fails live runs again as jobs; the next one is live again
    assert answer["ways"][:6] == ["live", "jobs"] * 3
    assert [bool(why) for why in answer["why"][:6]] == [False, True] * 3
    assert answer["ways"][-1] == "live"
