"""Faults on a cluster of several executor processes: run as a script, prints one JSON line per scenario.

python cluster_app.py DATA FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

import weir
from weir.spark.session import embedded

SCHEMA = "place string, topic string, n long"


@dataclass
class Seen:
    rows: int = 0
    total: int = 0


def kill_my_executor_once(marker: str) -> None:
    """Kills the JVM that owns this Python worker (worker → daemon → executor), the first time only."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(executor, signal.SIGKILL)
    time.sleep(60)


def main(data: str, folder: str) -> None:
    spark = embedded(
        "local-cluster[2,1,1024]",
        **{
            "spark.task.maxFailures": "4",
            "spark.stage.maxConsecutiveAttempts": "10",
            "spark.executor.memory": "1g",
            "spark.driver.memory": "1g",
            "spark.excludeOnFailure.enabled": "false",
            # who asks a dead executor for its output is to give up soon
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
        },
    )
    frame = spark.read.schema(SCHEMA).parquet(data)

    def total(key, rows, state):
        state.rows += len(rows)
        state.total += sum(row.n for row in rows)

    def scenario(name, source, first_step, between):
        """place → (a shuffled stateless operator) → topic, with functions that misbehave on the way."""
        app = source.keyed("place", weir.Count(), name="places")
        app = app.map_batches(first_step, name="shuffled", routing=weir.Shuffle())
        app = app.process("topic", between, name="topics", state=Seen)
        query = app.run(f"{folder}/{name}", servers=3)
        answer = {"scenario": name, "left": sum(p["bytes_left_on_host"] for p in query.recent_progress)}
        for operator in ("topics", "places"):
            answer[operator] = sorted(map(list, query.state(operator).collect()))
        print(json.dumps(answer), flush=True)

    def crashes(batch):
        """End this process, as a bug in a C library would: once as server 1, twice as server 2."""
        from pyspark import TaskContext

        context = TaskContext.get()
        server, attempt = context.partitionId(), context.attemptNumber()
        if attempt < server:
            Path(f"{folder}/crashed-{server}-{attempt}").touch()
            os._exit(1)
        return batch

    def in_last_step(scenario, before):
        """Whether this server has written what it does in the step before the last."""
        from pyspark import TaskContext

        topics = Path(f"{folder}/{scenario}/state/topics")
        return bool(list(topics.glob(f"*/s{TaskContext.get().partitionId()}-{before}-*")))

    def dies_between_steps(key, rows, state):
        # by now the outputs of both earlier steps lie on the executors; half of them die with this one,
        # are computed again from input that arrives in another order, and must go where they went before
        if in_last_step("workers crash, an executor dies", 2):
            kill_my_executor_once(f"{folder}/killed-between")
        total(key, rows, state)

    def dies_after_reading(batch):
        # files have been read, and half of what was read lies on this executor
        if pc.sum(batch.column("n")).as_py():
            kill_my_executor_once(f"{folder}/killed-after-reading")
        return batch

    def dies_when_others_are_done(key, rows, state):
        # server 0 has delivered its results, which cannot be taken back, and what the dead executor had for the
        # last step is computed again
        from pyspark import TaskContext

        me = TaskContext.get().partitionId()
        written = Path(f"{folder}/executors die/state/topics")
        if me and in_last_step("executors die", 3) and not Path(f"{folder}/killed-late").exists():
            until = time.monotonic() + 10
            while time.monotonic() < until and not list(written.glob("*/s0-4-*")):
                time.sleep(0.05)
            time.sleep(0.5)
            kill_my_executor_once(f"{folder}/killed-late")
        total(key, rows, state)

    frame = weir.source(spark.read.schema(SCHEMA).parquet(data))
    scenario("workers crash, an executor dies", frame, crashes, dies_between_steps)
    place = {"00000": 2, "00001": 2}
    files = weir.files(spark.read, data, schema=SCHEMA, by=r"(\d+)\.parquet", place=place)
    scenario("executors die", files, dies_after_reading, dies_when_others_are_done)
    os.chdir(folder)
    try:
        # a folder of this name is another one in every process that has a working directory of its own
        frame.keyed("place", weir.Count()).run("/proc/self/cwd/unshared", servers=2)
    except weir.errors.CheckpointError as error:
        print(json.dumps({"scenario": "unshared", "error": str(error)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
