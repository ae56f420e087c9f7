"""Tasks that fail, run twice, or lose their executor: the result is plain Spark's all the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from support import posts, run_app, write_batches

APP = Path(__file__).with_name("cluster_app.py")


@pytest.mark.cluster
@pytest.mark.faults
def test_failing_speculative_and_killed_tasks_change_nothing(tmp_path):
    tables = [posts(2500, seed) for seed in range(4)]
    data = write_batches(tmp_path / "data", tables)
    done = run_app(APP, data, str(tmp_path), timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {a["scenario"]: a for a in map(json.loads, done.stdout.splitlines())}

    places, rows, totals = Counter(), Counter(), Counter()
    for table in tables:
        for place, topic, n in zip(*(table[c].to_pylist() for c in ("place", "topic", "n")), strict=True):
            places[place] += 1
            rows[topic] += 1
            totals[topic] += n
    for name in (
        "undisturbed",
        "flaky",
        "speculation",
        "executor dies in a step",
        "executor dies between steps",
        "executor dies when others are done",
        "executor dies after reading files",
    ):
        assert answers[name]["places"] == sorted(map(list, places.items())), name
        assert answers[name]["topics"] == sorted([t, rows[t], totals[t]] for t in rows), name
        assert answers[name]["left"] > 0, f"{name}: rows went through files, too"
    # the faults did happen
    assert (tmp_path / "killed-in-batch").exists()
    assert (tmp_path / "killed-between").exists()
    assert (tmp_path / "killed-late").exists()
    assert (tmp_path / "killed-after-reading").exists()
