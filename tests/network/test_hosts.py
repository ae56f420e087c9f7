"""Several hosts and racks: distances, and servers that move when a host dies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from support import posts, run_app, write_batches

APP = Path(__file__).with_name("hosts_app.py")


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.long
def test_three_hosts_in_two_racks_one_of_which_dies(tmp_path):
    tables = [posts(2000, seed) for seed in range(2)]
    data = write_batches(tmp_path / "data", tables)
    done = run_app(APP, data, str(tmp_path), timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {a["scenario"]: a for a in map(json.loads, done.stdout.splitlines())}
    expected = Counter(topic for table in tables for topic in table["topic"].to_pylist())
    for name, answer in answers.items():
        assert answer["topics"] == sorted(map(list, expected.items())), name
        edges = 2 if name == "a task runs twice" else 1
        for progress in answer["progress"]:
            assert progress["rows_local"] + progress["rows_exchanged"] == 2000 * edges
            assert sum(c["rows"] for c in progress["distance"].values()) == 2000 * edges + progress["rows"]

    # Spark did run a task a second time beside the first, on another host
    runs = Counter(mark.name.rsplit("-", 1)[0] for mark in (tmp_path / "runs").iterdir())
    assert max(runs.values()) == 2

    first = answers["all is well"]["progress"][0]
    assert len({p["host"] for p in first["places"]}) == 3
    assert {p["rack"] for p in first["places"]} == {"/near", "/far"}
    assert first["distance"]["rack"]["bytes"] > 0
    assert first["distance"]["any"]["bytes"] > 0
    # four servers on three hosts: those of one rack, and within it of one host, stand together
    assert answers["all is well"]["tree"]

    before, after = answers["a host leaves"]["progress"]
    lived, live = Counter(p["host"] for p in before["places"]), Counter(p["host"] for p in after["places"])
    (left,) = lived.keys() - live.keys()
    assert len(after["servers"]) == 4 - lived[left]
    (scaling,) = answers["a host leaves"]["scalings"]
    assert (scaling["from"], scaling["to"]) == (4, 4 - lived[left])
    assert len(scaling["released"]) == 1

    before, after = answers["a host dies"]["progress"]
    weights, racks = before["weights"]["places → topics"], [p["rack"] for p in before["places"]]
    for server, mine in weights.items():
        own = int(server)
        near = [w for s, w in enumerate(mine) if s != own and racks[s] == racks[own]]
        far = [w for s, w in enumerate(mine) if racks[s] != racks[own]]
        assert mine[own] == max(mine)
        assert all(w < mine[own] for w in near)
        assert not near or max(far, default=0) < min(near)
    assert "127.0.0.13" in {p["host"] for p in before["places"]}
    assert "127.0.0.13" not in {p["host"] for p in after["places"]}
    gone = [s for s, p in enumerate(before["places"]) if p["host"] == "127.0.0.13"]
    assert set(gone) <= set(after["moved_servers"])
