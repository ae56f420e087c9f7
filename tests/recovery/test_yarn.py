"""YARN itself, of Hadoop's mini cluster: an executor dies, another is asked for, and the result is plain Python's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support import counts, grouped, posts, run_app, write_batches
from weir_evaluation import jars
from weir_evaluation.hadoop import Hadoop

APP = Path(__file__).with_name("yarn_app.py")


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.faults
def test_an_application_on_yarn_with_its_checkpoint_on_hdfs(tmp_path, monkeypatch):
    try:
        hadoop = Hadoop(nodes=2)
    except jars.NoJars as why:
        pytest.skip(str(why))
    tables = [posts(500, seed) for seed in range(5)]
    data = Path(write_batches(tmp_path / "data", tables))
    for number in range(5):  # three of them come later
        (data / f"{number:05d}.parquet").rename(data / f"{'' if number < 2 else '.'}{number}.parquet")
    with hadoop:
        monkeypatch.setenv("HADOOP_CONF_DIR", os.fspath(hadoop.configuration))
        monkeypatch.setenv("WEIR_STAGING", f"{hadoop.uri}/staging")
        done = run_app(APP, str(data), f"{hadoop.uri}/ckpt", str(tmp_path), timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["places"] == sorted(map(list, counts(tables, "place")))
    groups = grouped(tables, "topic").items()
    assert answer["topics"] == sorted([topic, sum(row["n"] for row in rows)] for (topic,), rows in groups)
    assert (answer["master"], answer["execution"], answer["servers"]) == ("yarn", "live", 3)
    assert (tmp_path / "killed").exists()
