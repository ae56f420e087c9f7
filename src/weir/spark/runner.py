"""A batch as one Spark job: route, exchange, step, exchange, step … and the reports back to the driver."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from weir.engine.batch.fence import check_shared
from weir.engine.documents import BatchPlan, Claim, FileRef, Manifest
from weir.engine.exchange.wire import STATISTICS, WIRE, answered
from weir.engine.progress import Progress
from weir.engine.task import invariants
from weir.engine.task.batch_context import SOURCE_NUMBER, BatchContext, Segments, host_name
from weir.engine.task.job_tasks import SourceTask, StepTask
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.reports import BatchResult, result_of
from weir.errors import EngineError, GroupingError, HandoffLost, OperatorError
from weir.faults import reach
from weir.graph.model import Topology
from weir.locality.stats import BatchStats
from weir.spark.executors import ensure_slots, executors, holders, on_one_host, release, slots
from weir.spark.failures import translating
from weir.spark.server_affinity import ServerAffinity
from weir.spark.session import own_session
from weir.spark.sources import SparkRows
from weir.spark.state import output_frame
from weir.state.storage import Storage

MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SETTINGS = {
    # adaptive execution would coalesce partitions, and a partition is a server
    "spark.sql.adaptive.enabled": "false",
    # Spark would compare what a task sends when it runs again with what it sent before, byte by byte, and give the
    # batch up if it differs. Ours differ: in times, in names of files. What must be the same is made the same.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # vectorised work wants long vectors; the limit in bytes still holds
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    MOST_BYTES: "16777216",
}
PAUSE = 50  # batches without the handoff after rows of one were lost

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# types are given as such: to parse a schema takes Spark some ten milliseconds, with every batch
_TYPES = {
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
}
_SENT = T.StructType([T.StructField(field.name, _TYPES[field.type]) for field in WIRE])
_ANSWERED = T.StructType([_SENT[name] for name in ("kind", "payload")])


def sending(frame: DataFrame, task: Task) -> DataFrame:
    """Return what a task sends on to servers."""
    return frame.mapInArrow(task, _SENT)


def answering(frame: DataFrame, task: Task) -> DataFrame:
    """Return what a task of the last stage tells the driver: kinds and payloads."""

    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in task(batches):
            yield batch.select(_ANSWERED.names)

    return frame.mapInArrow(answers, _ANSWERED)


class SparkRunner:
    """Runs batches of one topology as Spark jobs: one job per batch, one stage per exchange.

    Servers that share a host leave long rows for each other in files there, unless ``host_handoff`` is False. Without a
    ``session`` of its own it works in that of the batches: foreachBatch has one.
    """

    def __init__(
        self,
        storage: Storage,
        mode: str,
        sources: SparkRows,
        room: Callable[[int | None], int],
        host_handoff: bool = True,
        session: SparkSession | None = None,
    ) -> None:
        self.storage, self.mode, self.sources = storage, mode, sources
        self.room, self.host_handoff = room, host_handoff
        self.tasks = self.machines = self
        self._own_session = session
        self.query = uuid.uuid4().hex
        self.hosts: list[str] = []  # where servers are expected; empty: nobody knows
        self.row_bytes, self.batch_bytes = 0.0, 0  # of a source row, and of all of them, in the last batch
        self._settled_in: Any = None  # the session, as the JVM knows it, that the affinity is for
        self._behind: list[int] | None = None  # of servers that have changed since step jobs ran
        self._pause_until = 0
        self._most_bytes = ""  # of an Arrow batch, as the session has been told

    def start(self, rows: DataFrame, topology: Topology, learning: Learning | None, claim: Claim) -> None:
        self.sources.session = rows.sparkSession
        self.session = self._own_session or rows.sparkSession
        if self._settled_in is not None and self._settled_in == self.session._jsparkSession:
            return
        for key, value in SETTINGS.items():
            self.session.conf.set(key, value)
        if self._settled_in is None:
            self.topology, self.learning = topology, learning
        self._settled_in, self._claim = self.session._jsparkSession, claim
        self._most_bytes = SETTINGS[MOST_BYTES]
        self._affinity, self._behind = ServerAffinity(self.session, self.topology.servers), None
        self.hosts = self._hosts_of_one_machine()

    @property
    def affinity(self) -> ServerAffinity:
        """Where the servers that there are now run again: Spark takes a second to change them, so only when asked."""
        if self._behind is not None:
            origin, self._behind = self._behind, None
            self._affinity = self._affinity.rearranged(self.session, origin)
        return self._affinity

    @property
    def execution(self) -> str:
        return "as step jobs"

    def locate(self, always: bool) -> dict[int, tuple[str, str]]:
        if not always and (self.hosts or not self.host_handoff):
            return {}
        places = self.affinity.locate()
        self.hosts = [places[server][0] for server in range(self.topology.servers)]
        return places

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        self.topology, self.learning = topology, learning
        self._behind = origin if self._behind is None else _after(self._behind, origin)
        self.hosts = self._hosts_of_one_machine()

    def committed(self, progress: Progress) -> None:
        self.hosts = [server.host for server in progress.servers]
        self.row_bytes = progress.bytes_in / progress.rows if progress.rows else 0.0
        self.batch_bytes = progress.bytes_in

    def call(self, sink: Any, files: list[FileRef], schema: pa.Schema, batch: int) -> None:
        sink(output_frame(self.sources.session, self.storage, files, schema), batch)

    def frame(self, files: list[FileRef], schema: pa.Schema, order: str = "") -> DataFrame:
        return output_frame(self._sinks_session, self.storage, files, schema, order)

    @cached_property
    def _sinks_session(self) -> SparkSession:
        """A session with the user's settings, and not those of batches; sinks may change some for a while."""
        users = self.sources.users
        session = own_session(users)
        session.catalog.setCurrentCatalog(users.catalog.currentCatalog())
        session.catalog.setCurrentDatabase(users.catalog.currentDatabase())
        return session

    def ensure_slots(self, servers: int, new: int, timeout: float) -> None:
        ensure_slots(self.session, servers, timeout)

    def release(self, hosts: set[str] | None) -> list[str] | None:
        if not executors(self.session):
            return None
        return release(self.session, self.affinity.n, holders(self.session, self.affinity.rdd), hosts)

    def look_ahead(self, rows: DataFrame, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        """Count in a job of its own: it reads the key columns of the source, which the batch reads again."""
        if not again:
            return None
        tasks = max(1, slots(self.session))
        narrow = rows.select(*[f"`{c}`" for c in (*ahead.columns, SOURCE_NUMBER) if c in rows.columns])

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield answered([(STATISTICS, ahead.count_all(batches, tasks))])

        counted = collected(answering(narrow.coalesce(tasks), count))
        return ahead.merged([counts for _, counts in counted])

    def run(
        self, rows: DataFrame, plan: BatchPlan, manifest: Manifest, before: Manifest | None = None
    ) -> BatchResult:
        """Run one batch.

        A server that wakes elsewhere than expected lacks rows that were left for it; then the batch runs again
        without such, and so do some batches after it.
        """
        located = len(self.hosts) == self.topology.servers and plan.batch >= self._pause_until
        if not (self.host_handoff and located):
            return self._run(rows, plan, manifest, before, None)
        try:
            return self._run(rows, plan, manifest, before, self.hosts)
        except HandoffLost as error:
            self._pause_until = plan.batch + PAUSE
            return replace(self._run(rows, plan, manifest, before, None), ran_again=str(error))

    def _run(
        self,
        rows: DataFrame,
        plan: BatchPlan,
        manifest: Manifest,
        before: Manifest | None,
        hosts: list[str] | None,
    ) -> BatchResult:
        topology = self.topology
        self.limit_batches(SETTINGS[MOST_BYTES])
        job = self.job(plan, manifest, before, self.affinity.slots, hosts)
        sent = (sending if topology.steps else answering)(rows, _source_task(job))
        for step in range(1, topology.steps + 1):
            stage = sending if step < topology.steps else answering
            sent = stage(self.affinity.exchange(sent), _step_task(job, step))
        return result_of(collected(sent))

    def limit_batches(self, most_bytes: str) -> None:
        """Tell Spark how long an Arrow batch may be that it hands to a Python task."""
        if self._most_bytes != most_bytes:
            self.session.conf.set(MOST_BYTES, most_bytes)
            self._most_bytes = most_bytes

    def close(self) -> None:
        pass

    def job(
        self,
        plan: BatchPlan,
        manifest: Manifest,
        before: Manifest | None,
        homes: list[int],
        hosts: list[str] | None = None,
    ) -> BatchContext:
        """Return a batch as its tasks see it."""
        return BatchContext(
            self.topology,
            plan,
            Segments(manifest),
            self.storage,
            homes,
            self.learning,
            None if before is None else Segments(before),
            query=self.query,
            hosts=hosts,
            invariants=invariants.enabled,
            claim=self._claim,
        )

    def _hosts_of_one_machine(self) -> list[str]:
        """Return the host of each server where that is clear before any of them has run; else none."""
        return [host_name()] * self.topology.servers if on_one_host(self.session) else []

    def each(self, count: int, task: Callable[[int], Any]) -> list[Any]:
        """Run a task for each number below ``count``, one Spark task each."""

        storage, claim = self.storage, self._claim

        def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            check_shared(storage, claim)
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    columns = [pa.array([number], pa.int32()), pa.array([msgspec.json.encode(task(number))])]
                    yield pa.RecordBatch.from_arrays(columns, names=["id", "payload"])

        tasks = self.session.range(0, count, 1, count)
        answers = dict(collected(tasks.mapInArrow(answer, "id int, payload binary")))
        return [msgspec.json.decode(answers[number]) for number in range(count)]


def collected(frame: DataFrame) -> list[tuple[int, bytes]]:
    """Return what tasks answer: pairs of a number and a payload."""
    with translating():
        return [(row[0], bytes(row[1])) for row in frame.collect()]


def _after(first: list[int], then: list[int]) -> list[int]:
    """Return the origin of servers that have changed twice.

    >>> _after([0, -1, 1], [2, 1, -1])
    [1, -1, -1]
    """
    return [first[old] if old >= 0 else -1 for old in then]


_settled = False


def settle(job: BatchContext) -> None:
    """Make sure that this worker sees the driver's checkpoint, and spare it to inspect its modules after every task.

    PySpark collects garbage whenever a worker has finished a task; with numba and pandas loaded that takes tens
    of milliseconds, every time. What has been loaded by now stays anyway, so the collector need not look at it.
    """
    global _settled
    assert job.claim is not None
    check_shared(job.storage, job.claim)
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


def _step_task(job: BatchContext, step: int) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle(job)
        number = partition()
        reach("step-started", job.plan.batch * 100 + step)
        running = StepTask(job, step, number, local_folder())
        yield from _reporting(running, _addressed(batches, job, number))

    return task


def _reporting(task: SourceTask | StepTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task; an error of the user's own code becomes part of its report."""
    try:
        yield from task.run(batches)
    except (OperatorError, GroupingError) as error:
        yield from task.fail(error)


def partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _addressed(batches: Iterator[pa.RecordBatch], job: BatchContext, server: int) -> Iterator[pa.RecordBatch]:
    """Let through what is addressed to this server, and refuse to go on with anything else."""
    for batch in batches:
        if batch.num_rows:
            slots = batch.column("slot").to_numpy()
            if (slots != job.slots[server]).any():
                raise EngineError(
                    f"a row for slot {int(slots[slots != job.slots[server]][0])} reached server {server} "
                    f"(slot {job.slots[server]}): this Spark did not align the exchange with the servers"
                )
        yield batch


def _source_task(job: BatchContext) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle(job)
        yield from _reporting(SourceTask(job, partition(), local_folder()), batches)

    return task


def local_folder() -> str | None:
    """A folder of this executor, which Spark removes with it."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
