"""The driver dies after a batch has run: the replay reads places, profile, times and counters from the plan."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from weighted_app import start

from support import posts, rows_of, run_app, write_batches
from weir.engine.documents import BatchPlan
from weir.engine.ledger import read_commit
from weir.state.storage import Storage

APP = Path(__file__).with_name("weighted_app.py")


def sent(checkpoint, name):
    """Who sent how many rows to whom, and with which weights, in a batch."""
    progress = read_commit(Storage(str(checkpoint)), name).progress
    edge = progress["edges"]["spread → topics"]
    return edge["local"], edge["remote"], progress["weights"], progress["operators"]["topics"]["pairs"]


@pytest.mark.faults
def test_a_replay_routes_the_same(spark, tmp_path):
    tables = [posts(1500, seed) for seed in range(3)]
    data = write_batches(tmp_path / "data", tables)
    checkpoint = tmp_path / "checkpoint"
    # it dies before anything of batch 2 is committed; two replays of that batch, from copies, must be alike
    died = run_app(APP, data, str(checkpoint), fault="job-done:2", timeout=600)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    plan = msgspec.convert(
        Storage(str(checkpoint)).read_document("plans/000000000002-0000", "plan"), BatchPlan
    )
    assert plan.network.profile["latency_s"][1] != 20e-6
    assert len(plan.network.places) == 3
    assert set(plan.times) == {"spread", "topics"}
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    expected = Counter(topic for table in tables for topic in table["topic"].to_pylist())
    for folder in (checkpoint, copy):
        query = start(spark, data, str(folder))
        assert rows_of(query.state("topics")) == sorted(expected.items(), key=repr)
    assert sent(checkpoint, "000000000002-0000") == sent(copy, "000000000002-0000")
