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

    checkpoint = Path(folder) / "checkpoint"

    def crashes(batch):
        """End this process, as a bug in a C library would: once as server 1, twice as server 2."""
        from pyspark import TaskContext

        context = TaskContext.get()
        server, attempt = context.partitionId(), context.attemptNumber()
        if attempt < server:
            Path(f"{folder}/crashed-{server}-{attempt}").touch()
            os._exit(1)
        return batch

    def dies_after_reading(batch):
        # files have been read, and half of what was read lies on this executor
        if pc.sum(batch.column("n")).as_py():
            kill_my_executor_once(f"{folder}/killed-after-reading")
        return crashes(batch)

    def written(server, step):
        """Whether a server has written what it does in a step, of which the last one is 4."""
        return bool(list(checkpoint.glob(f"state/topics/*/s{server}-{step}-*")))

    def dies_between_steps_and_when_others_are_done(key, rows, state):
        from pyspark import TaskContext

        me = TaskContext.get().partitionId()
        if me and written(me, 3):
            # by now the outputs of all earlier steps lie on the executors; half of them die with this one,
            # are computed again from input that arrives in another order, and must go where they went before
            kill_my_executor_once(f"{folder}/killed-between")
            if not Path(f"{folder}/killed-late").exists():
                # server 0 has delivered its results, which cannot be taken back, and what the dead executor had for
                # the last step is computed again
                until = time.monotonic() + 10
                while time.monotonic() < until and not written(0, 4):
                    time.sleep(0.05)
                time.sleep(0.5)
                kill_my_executor_once(f"{folder}/killed-late")
        total(key, rows, state)

    place = {"00000": 2, "00001": 2}
    files = weir.files(spark.read, data, schema=SCHEMA, by=r"(\d+)\.parquet", assignment=place)
    app = files.keyed("place", weir.Count(emit="rows"), name="places")
    app = app.map_batches(dies_after_reading, name="shuffled", routing=weir.Shuffle())
    app = app.process("topic", dies_between_steps_and_when_others_are_done, name="topics", state=Seen)
    query = app.run(str(checkpoint), servers=3)
    answer = {"scenario": "faults", "left": sum(p.bytes_left_on_host for p in query.recent_progress)}
    for operator in ("topics", "places"):
        answer[operator] = sorted(map(list, query.state(operator).collect()))
    print(json.dumps(answer), flush=True)

    os.chdir(folder)
    try:
        # a folder of this name is another one in every process that has a working directory of its own
        weir.source(frame).keyed("place", weir.Count()).run("/proc/self/cwd/unshared", servers=2)
    except weir.errors.CheckpointError as error:
        print(json.dumps({"scenario": "unshared", "error": str(error)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
