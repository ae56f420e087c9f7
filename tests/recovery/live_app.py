"""Faults of live servers on a cluster of several executor processes: run as a script, prints one JSON line.

python live_app.py DATA FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from cluster_app import SCHEMA, Seen, kill_my_executor_once

import weir
from weir.spark.session import embedded


def once(marker: str) -> bool:
    """Return True the first time only, whoever asks."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main(data: str, folder: str) -> None:
    spark = embedded(
        "local-cluster[3,2,1024]", **{"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    )

    def batch_of(rows):
        return rows.column("batch")[0].as_py()

    def dies_at_the_source(rows):
        # Spark hands over 65,536 rows at a time, so the task has pushed some
        if batch_of(rows) == 1 and rows.column("n")[0].as_py() == 65_536 and once(f"{folder}/killed-source"):
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    def dies_on_a_server(rows):
        if batch_of(rows) == 3 and once(f"{folder}/killed-server"):
            os.kill(os.getpid(), signal.SIGKILL)
        if batch_of(rows) == 5:
            kill_my_executor_once(f"{folder}/killed-executor")
        return rows

    def total(key, rows, state):
        state.rows += len(rows)
        state.total += sum(row.n for row in rows)

    stream = spark.readStream.schema(f"{SCHEMA}, batch int").option("maxFilesPerTrigger", 1).parquet(data)
    app = (
        weir.source(stream)
        .map_batches(dies_at_the_source, name="early")
        .keyed("place", weir.Count(emit="rows"), name="places", routing=weir.PartialKey())
        .map_batches(dies_on_a_server, name="shuffled", routing=weir.Shuffle())
        .process("topic", total, name="topics", state=Seen)
    )
    query = app.start(
        f"{folder}/state", servers=3, execution="live", trigger={"availableNow": True}, prune=False
    )
    query.await_termination()
    answer = {
        "ways": [p.execution for p in query.recent_progress],
        "why": [p.ran_again for p in query.recent_progress],
        "seconds": [round(p.seconds.batch, 2) for p in query.recent_progress],
        "killed": sorted(p.name for p in Path(folder).glob("killed-*")),
    }
    for operator in ("topics", "places"):
        answer[operator] = sorted(map(list, query.state(operator).collect()))
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
