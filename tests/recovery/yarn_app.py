"""An application on YARN with its checkpoint on HDFS; an executor is killed, and one is added by scaling out.

python yarn_app.py DATA HDFS FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from cluster_app import kill_my_executor_once
from pyspark.sql import SparkSession

import weir
from support import stream


def session() -> SparkSession:
    paths = os.pathsep.join(path for path in sys.path if path)
    settings = {
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
        "spark.yarn.stagingDir": os.environ["WEIR_STAGING"],
        "spark.executor.instances": "3",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": paths,
        "spark.executorEnv.HADOOP_CONF_DIR": os.environ["HADOOP_CONF_DIR"],
        "spark.dynamicAllocation.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "4",
    }
    builder = SparkSession.builder.master("yarn").appName("weir-yarn")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(data: str, checkpoint: str, folder: str) -> None:
    marker = f"{folder}/killed"

    def dies_once(batch):
        if Path(folder, "kill").exists() and batch.num_rows:
            kill_my_executor_once(marker)
        return batch

    spark = session()
    app = (
        weir.source(stream(spark, f"file:{data}"))
        .count("place", name="places", emit="rows")
        .map_batches(dies_once, name="dies")
        .aggregate("topic", total="sum(n)", name="topics")
    )
    query = app.start(checkpoint, servers=2, trigger={"processingTime": "100 milliseconds"})

    def wait_for(batches):
        while query.status["batch"] is None or query.status["batch"] < batches - 1:
            if query.exception() is not None:
                raise query.exception()
            query.await_termination(0.1)

    wait_for(2)
    execution = query.progress.execution
    Path(folder, "kill").touch()
    Path(data, ".2.parquet").rename(Path(data, "2.parquet"))
    wait_for(3)
    query.scale_out(servers=1, timeout=120)
    for number in (3, 4):
        Path(data, f".{number}.parquet").rename(Path(data, f"{number}.parquet"))
        wait_for(number + 1)
    query.process_all_available()
    answer = {
        "places": sorted(map(list, query.state("places").select("place", "count").collect())),
        "topics": sorted(map(list, query.state("topics").select("topic", "total").collect())),
        "servers": len(query.progress.servers),
        "execution": execution,
        "master": spark.sparkContext.master,
    }
    query.stop()
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
