"""The driver dies while servers read files, and partitions are about to be read elsewhere: each row counts once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from support import posts, run_app, write_batches
from weir.engine.documents import BatchPlan
from weir.engine.ledger import read_commit
from weir.state.storage import Storage

APP = Path(__file__).with_name("files_app.py")


def run(data, checkpoint, fault=None):
    return run_app(APP, data, checkpoint, fault=fault, timeout=240)


@pytest.mark.faults
def test_killed_in_a_batch_that_reads_partitions_at_new_places(tmp_path):
    tables = []
    for part in range(4):
        made = [posts(300, 10 * part + batch) for batch in range(3)]
        write_batches(tmp_path / "data" / f"part={part}", made)
        tables += made
    data, checkpoint = str(tmp_path / "data"), str(tmp_path / "checkpoint")
    died = run(data, checkpoint, "job-done:1")
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    planned = Storage(checkpoint).read_document("plans/000000000001-0000", "plan")
    done = run(data, checkpoint)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])

    places, totals = Counter(), Counter()
    for table in tables:
        for place, topic, n in zip(*(table[c].to_pylist() for c in ("place", "topic", "n")), strict=True):
            places[place] += 1
            totals[topic] += n
    assert answer["places"] == sorted(map(list, places.items()))
    assert answer["topics"] == sorted(map(list, totals.items()))
    # the batch that died was one in which files were read by a learnt table; its replay used the same
    import msgspec

    plan = msgspec.convert(planned, BatchPlan)
    assert plan.tables["files"].files[0].rows == 4
    again = read_commit(Storage(checkpoint), "000000000001-0000")
    assert again.tables == plan.tables
    assert [rows for _, rows in answer["progress"]][-2:] == [1200, 1200]
    assert answer["files"] == 4
