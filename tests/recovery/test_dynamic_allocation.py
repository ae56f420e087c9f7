"""Where Spark allocates executors, servers are live all the same: executors come because servers wait for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import counts, posts, run_app, write_batches

APP = Path(__file__).with_name("allocation_app.py")


@pytest.mark.long
@pytest.mark.cluster
def test_servers_are_live_where_spark_allocates_executors(tmp_path):
    tables = [posts(500, seed) for seed in range(4)]
    data = Path(write_batches(tmp_path / "data", tables))
    for number in range(4):
        (data / f"{number:05d}.parquet").rename(data / f".{number}.parquet")
    done = run_app(APP, str(data), str(tmp_path / "ckpt"), timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["told"] == [[500, "live", 2], [500, "live", 2], [500, "live", 3], [500, "live", 1]]
    assert answer["counts"] == sorted(map(list, counts(tables, "place")))
    assert "spark.dynamicAllocation.maxExecutors allows 4" in answer["refused"]
