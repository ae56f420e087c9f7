"""On Spark Connect: reading state and advice work, and all that can't says what to use instead."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
import weir.testing
from weir.advise import advise

NEEDS = ("grpc", "grpc_status", "google.rpc", "zstandard")  # what pyspark[connect] adds

# in a process of its own: PySpark decides for all of a process whether functions are those of Connect
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import weir
from weir.advise import advise
from weir.errors import EngineError

checkpoint, data = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
refused = []
for act in (
    lambda: weir.source(spark.range(3)),
    lambda: weir.files(spark.readStream, data, schema="place string"),
    lambda: weir.files(spark.read, data, schema="place string"),
    lambda: weir.kafka("127.0.0.1:1", "posts", "place string").count("place").start(checkpoint + "-new"),
    lambda: weir.kafka("127.0.0.1:1", "posts", "place string").count("place").run(checkpoint + "-new"),
):
    try:
        act()
    except EngineError as error:
        refused.append(str(error))
states = [weir.read_state(checkpoint, "places", s, batch=b) for s, b in ((None, None), (spark, 0))]
print(json.dumps({
    "refused": refused,
    "states": [sorted(map(tuple, state.collect())) for state in states],
    "advice": advise(data, keys="place,topic", servers=3, time="time", master="here"),
}))
spark.stop()
"""


def available():
    try:
        return all(importlib.util.find_spec(name) is not None for name in NEEDS)
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not available(), reason="no Spark Connect here: pip install 'pyspark[connect]'")
def test_state_and_advice_can_be_had_and_all_else_says_what_to_use_instead(tmp_path):
    checkpoint, data = str(tmp_path / "ckpt"), str(tmp_path / "posts.parquet")
    rows = pa.table(
        {
            "place": [f"p{i % 7}" for i in range(700)],
            "topic": [f"t{i % 7}" for i in range(700)],
            "time": range(700),
        }
    )
    pq.write_table(rows, data)
    with weir.testing.start(weir.source(rows.schema).count("place", name="places"), checkpoint) as query:
        query.feed(rows)
        query.feed(rows)
    command = [sys.executable, "-c", PROGRAM, checkpoint, data]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["states"] == [[[f"p{i}", count] for i in range(7)] for count in (200, 100)]
    here = advise(data, keys="place,topic", servers=3, time="time")
    assert told["advice"]["recommendation"] == json.loads(json.dumps(here))["recommendation"]
    assert len(told["refused"]) == 5
    for message in told["refused"]:
        assert "Spark Connect" in message
        assert "dedicated access mode" in message
