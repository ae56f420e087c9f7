"""Two counts on an engine of the JVM: one of our programs in ``java/``, with the jars that Maven has fetched.

Before it starts, Parquet files become files of blocks (:func:`blocks`), so that no engine pays for a Parquet reader.
Runs in our own Python, which sets up what the engine needs around it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

ZOOKEEPER = "org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServerMain"
NO_HTTP = "-Dzookeeper.admin.enableServer=false"
LEADS = 30.0  # seconds within which Nimbus must lead


def blocks(order: dict[str, Any]) -> list[str]:
    """The same rows as plain files, made once: per row group their number, then the columns (:func:`column`)."""
    folder = Path(order["data"], "_blocks")  # Spark takes no notice of names that begin like this
    folder.mkdir(exist_ok=True)
    made = [folder / f"{Path(file).stem}.rows" for file in order["files"]]
    for file, path in zip(order["files"], made, strict=True):
        if not path.exists():
            with open(path.with_suffix(".tmp"), "wb") as out:
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    rows = parquet.read_row_group(group)
                    out.write(np.int32(len(rows)).tobytes())
                    for each in rows.columns:
                        out.writelines(column(each.combine_chunks()))
            path.with_suffix(".tmp").rename(path)
    return [str(path) for path in made]


def column(values: Any) -> tuple[bytes, memoryview]:
    """Where each value ends, 0 first, and all values in a row: the buffers of Arrow.

    >>> import pyarrow as pa
    >>> ends, data = column(pa.array(["no", "ab", "", "c"])[1:])
    >>> list(ends[::4]), bytes(data)
    ([0, 2, 2, 3], b'abc')
    """
    _, ends, data = values.buffers()
    ends = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    data = memoryview(data or b"")[ends[0] : ends[-1]]
    return (ends - ends[0]).tobytes(), data


def properties(order: dict[str, Any], **more: Any) -> str:
    """The order as a file that Java reads, of its own options, too; returns its path."""
    fields = {"work": order["work"], "workers": order["workers"], "rows": order["rows"]}
    fields |= order["options"] | {"files": r"\n".join(blocks(order))} | more
    path = Path(order["work"], "order.properties")
    path.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    return str(path)


def java(order: dict[str, Any], main: str, *words: str) -> list[str]:
    """The command that runs a class of ours, with the memory that Spark and Weir get, too."""
    from weir_evaluation.bench.peers.environment import class_path, tool

    temporary = f"-Djava.io.tmpdir={order['work']}"
    path = ":".join(class_path(order["options"]["java"]))
    return [tool("java"), "-Xmx4g", temporary, "-cp", path, main, *words]


def flink(order: dict[str, Any]) -> None:
    command = java(order, "FlinkCounts", properties(order))
    os.execv(command[0], command)


def kafka_streams(order: dict[str, Any]) -> None:
    """A broker of its own, which is measured with it; the topic is filled before the clock starts."""
    from weir_evaluation.brokers.kafka import Kafka

    with Kafka(java=("-Xmx1g",)) as broker:
        told = properties(order, bootstrap_servers=broker.servers)
        raise SystemExit(subprocess.call(java(order, "KafkaStreamsCounts", told)))


def storm(order: dict[str, Any]) -> None:
    """A small cluster: ZooKeeper, Nimbus, and a supervisor, which starts a worker process per core."""
    from weir_evaluation.bench.peers.environment import class_path, tool
    from weir_evaluation.brokers.kafka import free_ports

    home = Path(order["work"], "storm")
    (home / "conf").mkdir(parents=True)
    classes, libraries = class_path("storm")
    (home / "lib-worker").symlink_to(Path(libraries).parent)  # where workers look for Storm
    jar = shutil.make_archive(str(home / "counts"), "zip", classes)
    zookeeper, nimbus, *slots = free_ports(2 + order["workers"])
    settings = {
        "storm.zookeeper.servers": ["127.0.0.1"],
        "storm.zookeeper.port": zookeeper,
        "storm.local.hostname": "127.0.0.1",
        "storm.local.dir": str(home / "local"),
        "nimbus.seeds": ["127.0.0.1"],
        "nimbus.thrift.port": nimbus,
        "nimbus.monitor.freq.secs": 1,
        "supervisor.slots.ports": slots,
        "worker.childopts": "-Xmx2g",
    }
    (home / "conf" / "storm.yaml").write_text(json.dumps(settings))  # which is YAML, too
    path = f"{classes}:{libraries}:{home}/conf"

    def command(main: str, *words: str) -> list[str]:
        places = [f"-Dstorm.home={home}", f"-Dstorm.log.dir={home}/logs", f"-Dstorm.jar={jar}"]
        return [tool("java"), "-Xmx512m", NO_HTTP, *places, "-cp", path, main, *words]

    def ended() -> int:
        return len(list(Path(order["work"]).glob("ended-*")))

    daemons = [
        subprocess.Popen(words)
        for words in (
            command(ZOOKEEPER, str(zookeeper), str(home / "zookeeper")),
            command("org.apache.storm.daemon.nimbus.Nimbus"),
            command("org.apache.storm.daemon.supervisor.Supervisor"),
        )
    ]
    submit, until = command("StormCounts", properties(order)), time.monotonic() + LEADS
    while subprocess.call(submit):
        if time.monotonic() > until:
            raise SystemExit("Nimbus does not take the topology")
        time.sleep(0.5)
    while ended() < 2 * order["workers"]:
        if any(daemon.poll() is not None for daemon in daemons):
            raise SystemExit("a daemon of Storm has ended")
        time.sleep(0.05)


def main() -> None:
    import told

    order = told.job()
    {"flink": flink, "kafka_streams": kafka_streams, "storm": storm}[order["options"]["java"]](order)


if __name__ == "__main__":
    main()
