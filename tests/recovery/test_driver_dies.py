"""The driver is killed at every step of a batch, with state on the move; what was promised still holds."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from support import posts, run_app, write_batches
from weir.engine.ledger import read_commit
from weir.state.storage import Storage

APP = Path(__file__).with_name("counting_app.py")


def run(data, checkpoint, deliveries, fault=None):
    return run_app(APP, data, checkpoint, deliveries, fault=fault, timeout=240)


@pytest.mark.faults
def test_killed_at_every_step_of_a_batch_and_started_again(tmp_path):
    tables = [posts(700, seed) for seed in range(3)]
    data = write_batches(tmp_path / "data", tables)
    checkpoint, deliveries = str(tmp_path / "checkpoint"), str(tmp_path / "deliveries")
    for fault in ("plan-written:0", "job-done:1", "commit-written:1", "sink-delivered:2"):
        died = run(data, checkpoint, deliveries, fault)
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    done = run(data, checkpoint, deliveries)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])

    places, rows, totals = Counter(), Counter(), Counter()
    per_batch = defaultdict(list)
    for batch, table in enumerate(tables):
        touched = set()
        for place, topic, n in zip(*(table[c].to_pylist() for c in ("place", "topic", "n")), strict=True):
            places[place] += 1
            rows[topic] += 1
            totals[topic] += n
            touched.add(topic)
        per_batch[batch] = {t: (rows[t], totals[t]) for t in touched}
    assert answer["batches"] == 3
    # the batch that died twice was one in which state moved
    assert read_commit(Storage(checkpoint), "000000000001-0000").progress["moved_keys"] > 0
    assert answer["places"] == sorted(map(list, places.items()))
    assert answer["topics"] == sorted([t, rows[t], totals[t]] for t in rows)

    seen = defaultdict(list)
    for file in Path(deliveries).iterdir():
        seen[int(file.name.split("-")[0])].append(json.loads(file.read_text()))
    assert sorted(seen) == [0, 1, 2]
    for batch, contents in seen.items():
        assert all(c == contents[0] for c in contents), f"batch {batch} was delivered with different rows"
        last = {}
        for topic, n, total in contents[0]:
            last[topic] = max(last.get(topic, (0, 0)), (n, total))
        assert last == per_batch[batch]
    # only the kill between commit and delivery, and between delivery and its record, may repeat a batch
    assert len(seen[0]) == 1
