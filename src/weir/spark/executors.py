"""Executors: how many tasks can run at once, asking the cluster for more, and letting some go."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass

from pyspark.sql import SparkSession

from weir.errors import EngineError


@dataclass(frozen=True)
class Executor:
    """An executor as Spark's own books have it."""

    id: str
    host: str
    cores: int


def executors(session: SparkSession) -> list[Executor]:
    """Return the living executors; none in local mode, where the driver runs the tasks."""
    listed = session.sparkContext._jsc.sc().statusStore().executorList(True)
    every = [listed.apply(i) for i in range(listed.size())]
    return [
        Executor(e.id(), e.hostPort().rsplit(":", 1)[0], e.totalCores()) for e in every if e.id() != "driver"
    ]


def slots(session: SparkSession) -> int:
    """Return how many tasks can run at the same time."""
    context = session.sparkContext
    local = _local(context.master)
    if local is not None:
        return local
    each = int(context.getConf().get("spark.task.cpus", "1"))
    return sum(e.cores // each for e in executors(session))


def allocates(session: SparkSession) -> bool:
    """Return whether Spark itself asks for executors when tasks wait, and lets those go that have none."""
    enabled = session.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false")
    return enabled == "true" and not on_one_host(session)


def most_slots(session: SparkSession) -> int | None:
    """Return how many tasks could run at the same time where Spark allocates executors; None: no setting says."""
    conf = session.sparkContext.getConf()
    most, cores = conf.get("spark.dynamicAllocation.maxExecutors"), conf.get("spark.executor.cores")
    if most is None or cores is None:
        return None
    return int(most) * (int(cores) // int(conf.get("spark.task.cpus", "1")))


def settled_slots(session: SparkSession, seconds: float = 30.0) -> int:
    """Return how many tasks can run at the same time, once all executors that were asked for have come.

    With dynamic allocation that is what the settings allow.
    """
    conf = session.sparkContext.getConf()
    if allocates(session):
        most = most_slots(session)
        if most is None:
            raise EngineError(
                'servers="auto" needs spark.dynamicAllocation.maxExecutors and spark.executor.cores where executors '
                "come and go; set them, or pass a number: servers=8"
            )
        return most
    wanted, end, before = int(conf.get("spark.executor.instances", "1")), time.monotonic() + seconds, -1
    while not on_one_host(session):
        living = len(executors(session))
        if living == before and (living >= wanted or time.monotonic() > end):
            break
        if not living and time.monotonic() > end:
            raise EngineError(
                f'servers="auto": no executor has come within {seconds:g} s; pass a number: servers=8'
            )
        before = living
        time.sleep(0.5)
    return slots(session)


def on_one_host(session: SparkSession) -> bool:
    """Return whether all tasks run in the driver's own process."""
    return _local(session.sparkContext.master) is not None


def _local(master: str) -> int | None:
    """Return the threads of a local master.

    >>> _local("local[3]"), _local("local[2, 4]"), _local("local"), _local("spark://host:7077")
    (3, 2, 1, None)
    """
    if master == "local":
        return 1
    cores = re.fullmatch(r"local\[\s*(\d+|\*)\s*(?:,.*)?\]", master)
    if cores is None:
        return None
    if cores[1] == "*":
        return os.cpu_count() or 1
    return int(cores[1])


def ensure_slots(session: SparkSession, needed: int, timeout: float) -> int:
    """Wait until ``needed`` tasks can run at once, asking the cluster for executors; return how many were asked for.

    Raises, and takes the request back, if they don't come in time: nothing has changed then. Where Spark allocates
    executors, they come when tasks wait for them.
    """
    if allocates(session):
        most = most_slots(session)
        if most is not None and most < needed:
            raise EngineError(
                f"{needed} servers need as many task slots, and spark.dynamicAllocation.maxExecutors allows {most}; "
                "nothing was changed. Raise it, or pass share_slots=True to let servers take turns."
            )
        return 0
    have = slots(session)
    if have >= needed:
        return 0
    if _local(session.sparkContext.master) is not None:
        raise EngineError(
            f"{needed} servers need as many task slots, but {session.sparkContext.master} has {have}; nothing was "
            f"changed. Start Spark with local[{needed}], or pass share_slots=True to let servers take turns."
        )
    living = executors(session)
    each = max((e.cores for e in living), default=1)
    missing = math.ceil((needed - have) / each)
    # not requestExecutors: it counts from what was asked for before, which is nothing where all come by themselves
    if not _want(session, len(living) + missing):
        raise EngineError(
            f"{needed} servers need as many task slots, there are {have}, and this cluster manager takes no "
            "requests for executors; nothing was changed. Start the application with more, or pass share_slots=True."
        )
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if slots(session) >= needed:
            return missing
        time.sleep(0.2)
    _want(session, len(living))
    raise EngineError(
        f"{needed} servers need as many task slots, there are {slots(session)}; the cluster was asked for {missing} "
        f"more executor{'s' if missing > 1 else ''} and gave too few within {timeout:g} s. Nothing was changed. Add "
        "workers, or pass share_slots=True to let servers take turns."
    )


def _want(session: SparkSession, total: int) -> bool:
    """Tell the cluster how many executors there should be."""
    jvm = session.sparkContext._jvm
    nowhere = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    return bool(session.sparkContext._jsc.sc().requestTotalExecutors(total, 0, nowhere))


def release(session: SparkSession, needed: int, keep: set[str], hosts: set[str] | None = None) -> list[str]:
    """Let executors go that are not needed: those on ``hosts``, or, if none are named, those beyond ``needed`` slots.

    ``keep`` are the executors on which servers live; they stay unless their host was named. Where Spark allocates
    executors, it lets them go itself.
    """
    if allocates(session):
        return []
    living = executors(session)
    if hosts is not None:
        going = [e for e in living if e.host in hosts]
    else:
        going, spare = [], slots(session) - needed
        for e in sorted((e for e in living if e.id not in keep), key=lambda e: e.id, reverse=True):
            if e.cores <= spare:
                going.append(e)
                spare -= e.cores
    if not going:
        return []
    names = [e.id for e in going]
    jvm = session.sparkContext._jvm
    ids = jvm.java.util.ArrayList()
    for name in names:
        ids.add(name)
    if not session.sparkContext._jsc.sc().killExecutors(
        jvm.org.apache.spark.api.python.PythonUtils.toSeq(ids)
    ):
        return []
    _want(session, len(living) - len(names))
    return names


def holders(session: SparkSession, rdd: int) -> set[str]:
    """Return the executors that hold blocks of a cached RDD."""
    blocks = session.sparkContext._jsc.sc().statusStore().rddList(True)
    out: set[str] = set()
    for i in range(blocks.size()):
        info = blocks.apply(i)
        if info.id() != rdd or not info.partitions().isDefined():
            continue
        parts = info.partitions().get()
        for j in range(parts.size()):
            where = parts.apply(j).executors()
            out |= {where.apply(k) for k in range(where.size())}
    return out
