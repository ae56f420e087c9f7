"""A cluster of three hosts in two racks on the addresses of the loopback device: prints one JSON line per scenario.

    python hosts_app.py DATA FOLDER

Spark takes 127.0.0.x for hosts of their own: it schedules by them, and executors know their names.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyspark
from pyspark import TaskContext

import weir
from weir.spark.session import embedded

SCHEMA = "place string, topic string, n long"
RACKS = {"127.0.0.11": "/near", "127.0.0.12": "/near", "127.0.0.13": "/far"}


@contextlib.contextmanager
def cluster(folder):
    home = os.path.dirname(pyspark.__file__)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    started = {}

    def start(name, *command, **env):
        log = open(f"{folder}/{name}.log", "w")  # noqa: SIM115
        env = dict(os.environ, SPARK_HOME=home, SPARK_DAEMON_MEMORY="256m", **env)
        spark_class = f"{home}/bin/spark-class"
        started[name] = subprocess.Popen(
            [spark_class, *command], env=env, stdout=log, stderr=log, start_new_session=True
        )

    try:
        package = "org.apache.spark.deploy"
        start(
            "master",
            f"{package}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        for host in RACKS:
            worker = [f"{package}.worker.Worker", url, "--host", host, "--webui-port", "0", "--cores", "1"]
            start(
                host, *worker, "--memory", "600m", "--work-dir", f"{folder}/work", SPARK_LOCAL_HOSTNAME=host
            )
        yield url, started
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(data, folder):
    with cluster(folder) as (url, started):
        spark = embedded(
            url,
            **{
                "spark.executor.memory": "512m",
                "spark.executor.memoryOverhead": "0",
                "spark.driver.memory": "1g",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
                "spark.cores.max": "3",
                "spark.task.maxFailures": "8",
                "spark.locality.wait": "30s",
                # Spark runs a task that dawdles a second time, on another host
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.quantile": "0.2",
                "spark.speculation.minTaskRuntime": "2s",
            },
        )
        until = time.monotonic() + 180
        while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 1 + len(RACKS):
            assert time.monotonic() < until, "not all executors have come"
            time.sleep(0.2)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(data)

        def die(frame, batch):
            """A host dies between two batches."""
            if batch == 0:
                os.killpg(started["127.0.0.13"].pid, signal.SIGKILL)
                time.sleep(3)

        def leave(query, batch):
            """The host that matters least is let go, with all its servers and its executor."""
            if batch == 0:
                query.scale_in(1, whole_hosts=True)

        def dawdle(rows):
            """Take long as server 1, the first time; leave a mark for every time that a task is run."""
            context = TaskContext.get()
            task, attempt = f"{context.stageId()}-{context.partitionId()}", context.attemptNumber()
            Path(f"{folder}/runs/{task}-{attempt}").touch()
            if context.partitionId() == 1 and attempt == 0:
                time.sleep(8)
            return rows

        def scenario(name, sink=None, then=None, between=None):
            ready = threading.Event()
            if then is not None:

                def sink(frame, batch):
                    ready.wait(60)
                    then(query, batch)

            app = weir.source(stream).keyed("place", weir.Count(emit="rows"), name="places")
            if between is not None:
                app = app.map_batches(between, name="between")
            weighted = weir.Weighted(weir.Hash(), control=None)
            app = app.keyed("topic", weir.Count(emit="rows"), name="topics", routing=weighted)
            query = app.start(
                f"{folder}/{name}",
                servers=4,
                racks=RACKS,
                routing=weir.Locality(hierarchy="hosts", period=1),
                sink=sink,
                trigger={"availableNow": True},
            )
            ready.set()
            query.await_termination()
            answer = {
                "scenario": name,
                "topics": sorted(map(list, query.state("topics").collect())),
                "progress": [progress.to_dict() for progress in query.recent_progress],
                "tree": query._driver.learner.manager._tree,
                "scalings": [scaling.to_dict() for scaling in query.scalings],
            }
            print(json.dumps(answer), flush=True)

        scenario("all is well")
        Path(f"{folder}/runs").mkdir()
        scenario("a task runs twice", between=dawdle)
        scenario("a host dies", die)
        scenario("a host leaves", then=leave)  # last: which one goes is up to the measured load
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], str(Path(sys.argv[2]).resolve()))
