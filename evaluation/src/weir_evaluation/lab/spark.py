"""Master and workers of a lab: how they are started, and the settings that a driver needs to use them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from weir_evaluation.lab.errors import LabError
from weir_evaluation.lab.needs import java
from weir_evaluation.lab.network import LabNetwork, bits
from weir_evaluation.lab.record import HostRecord, Record

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
# small and quick to start: these two only keep books
DAEMON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"
SECRET = "secret.conf"  # in the lab's folder: settings by which its Spark knows who may use it
LOST_AFTER = 15  # seconds of silence after which a worker counts as lost; Spark's own 60 try one's patience
BLOCK_BYTES = 128 << 20  # what one task may have for another, at most, without being taken for dead

# A host of its own needs a name of its own (a UTS namespace), under which nobody asks a name server that is out of
# reach (/etc/hosts, an empty /etc/resolv.conf: in a mount namespace, seen by this host's processes only).
AS_HOST = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf 2>/dev/null || true
shift 2
exec "$@"
"""


def spark_home() -> str:
    """The Spark that PySpark brings along, or the one that ``SPARK_HOME`` names."""
    import pyspark

    return os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)


def installation() -> dict[str, str]:
    """What Spark's own scripts would tell their programs about where they are."""
    jars = sorted(Path(spark_home(), "jars").glob("spark-core_*.jar"))
    if not jars:
        raise LabError(
            f"{spark_home()} holds no Spark (no jars/spark-core_*.jar); set SPARK_HOME, or unset it"
        )
    return {"SPARK_HOME": spark_home(), "SPARK_SCALA_VERSION": jars[0].name.split("_")[1].split("-")[0]}


def _without_spark() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "WEIR_"))}


@cache
def command(daemon: str) -> tuple[str, ...]:
    """How Spark itself would start a daemon, without its arguments."""
    runtime = java()
    assert runtime is not None
    env = {
        **_without_spark(),
        **installation(),
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": DAEMON,
    }
    launcher = [runtime, "-cp", f"{spark_home()}/jars/*", "org.apache.spark.launcher.Main", daemon]
    done = subprocess.run(launcher, env=env, capture_output=True)
    parts = [p.decode().strip() for p in done.stdout.split(b"\0") if p.strip()]
    if done.returncode or daemon not in parts:
        raise LabError(f"Spark's launcher in {spark_home()} failed: {done.stderr.decode()[-500:]}")
    return tuple(parts[parts.index(next(p for p in parts if p.endswith("java"))) :])


def write_secret(record: Record) -> None:
    """Make up the secret without which nobody may use the lab's Spark; only its owner can read the file.

    Whoever reaches the master of a cluster without one may run programs as the user that the workers run as: root.
    """
    _write_private(
        record.folder / SECRET,
        f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(32)}\n",
    )


def authentication(record: Record) -> dict[str, str]:
    """The settings that prove that a driver belongs to the lab's owner; keep them out of command lines."""
    lines = (record.folder / SECRET).read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def start_master(record: Record) -> None:
    options = [
        f"-Dspark.worker.timeout={LOST_AFTER}",
        "-Dspark.master.rest.enabled=false",
        "-Dspark.ui.killEnabled=false",
    ]
    arguments = ["--host", record.master, "--port", "7077", "--webui-port", "8080"]
    _start(record, "switch", MASTER, options, arguments, {})


def start_worker(record: Record, host: HostRecord) -> None:
    """A worker that offers a host's cores and memory; its executors are born on that host."""
    folder = record.folder / host.name
    folder.mkdir(exist_ok=True)
    arguments = ["--host", host.address, "--port", "7078", "--webui-port", "8081"]
    arguments += ["--cores", str(record.cores), "--memory", record.memory, "--work-dir", str(folder / "work")]
    env = {"SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_LOCAL_IP": host.address}
    options = [f"-Dspark.worker.timeout={LOST_AFTER}"]
    _start(record, host.name, WORKER, options, [*arguments, record.url], env)


def _start(
    record: Record, host: str, daemon: str, options: list[str], arguments: list[str], more: dict[str, str]
) -> None:
    start = list(command(daemon))
    # not on the command line, which all users of this machine can read
    start[-1:] = [*options, daemon, "--properties-file", str(record.folder / SECRET), *arguments]
    env = {**_without_spark(), **installation(), **more}
    enter = ["ip", "netns", "exec", LabNetwork(record.id).namespace(host)]
    enter += ["unshare", "--uts", "--mount", "sh", "-c", AS_HOST, "sh", host, str(record.folder)]
    with open(record.folder / f"{host}.log", "ab") as log:
        subprocess.Popen(
            [*enter, *start],
            env=env,
            cwd=record.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def workers(record: Record) -> dict[str, str]:
    """What the master thinks of the workers: the state of each, by address."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{record.master}:8080/json/", timeout=2) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    states: dict[str, str] = {}
    for worker in told.get("workers", ()):
        if states.get(worker["host"]) != "ALIVE":  # one that was started again is listed twice
            states[worker["host"]] = worker["state"]
    return states


def settings(record: Record, paths: list[str] | None = None) -> dict[str, str]:
    """What a driver must be told to use this lab.

    Silence is noticed sooner than Spark would by default, since hosts here are cut off on purpose.
    """
    cores = record.cores * len(record.hosts)
    # Spark takes a connection for dead on which no whole block has arrived for so long
    slowest = min(bits(h.bandwidth) for h in record.hosts)
    block = max(30, 8 * BLOCK_BYTES // slowest)
    return {
        "spark.master": record.url,
        "spark.driver.host": record.driver,
        "spark.driver.bindAddress": record.driver,
        "spark.executor.cores": str(record.cores),
        "spark.executor.memory": record.memory,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.cores.max": str(cores),
        "spark.default.parallelism": str(cores),
        # a query that begins before all hosts have reported would crowd the first ones
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        # servers should wait for their own host rather than wander off when all hosts share two busy cores
        "spark.locality.wait": "10s",
        "spark.executor.heartbeatInterval": "3s",
        "spark.network.timeout": "30s",
        "spark.network.timeoutInterval": "5s",
        "spark.shuffle.io.connectionTimeout": f"{block}s",
        "spark.shuffle.io.retryWait": "1s",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(python_paths(paths)),
    }


def python_paths(more: list[str] | None = None) -> list[str]:
    """Where executors find Weir, and what else the driver can import: ``PYTHONPATH`` and the script's own folder."""
    import weir

    own = str(Path(weir.__file__).parent.parent)
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    beside = [os.path.dirname(os.path.abspath(script))] if script and not script.startswith(own) else []
    return list(dict.fromkeys(os.path.abspath(p) for p in [*(more or ()), *beside, *given, own]))


def environment(record: Record, conf: Path, paths: list[str] | None = None) -> dict[str, str]:
    """The environment in which a program runs on the lab without knowing of it.

    Spark reads ``spark-defaults.conf`` from the folder that ``SPARK_CONF_DIR`` names; ``WEIR_MASTER`` is for Weir's own
    commands, which otherwise use Spark on this machine.
    """
    conf.mkdir(parents=True, exist_ok=True)
    every = {**settings(record, paths), **authentication(record), "spark.driver.memory": "1g"}
    _write_private(conf / "spark-defaults.conf", "".join(f"{key} {value}\n" for key, value in every.items()))
    return {
        "WEIR_MASTER": record.url,
        "WEIR_LAB": record.id,
        "MASTER": record.url,
        "SPARK_HOME": spark_home(),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": record.driver,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "PYTHONPATH": os.pathsep.join(python_paths(paths)),
    }
