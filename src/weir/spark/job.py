"""A batch as one Spark job: route, exchange, step, exchange, step … and the reports home to the driver."""

from __future__ import annotations

import gc
import os
import re
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.engine.documents import BatchPlan, Commit, Manifest, TaskReport
from weir.engine.exchange import wire
from weir.engine.learning import Learning
from weir.engine.metrics.latency import now
from weir.engine.rescale import move_home
from weir.engine.server import EntryLayout, Job, Server, host_name
from weir.engine.tables import grouping_in_force
from weir.errors import (
    EngineError,
    NullKeyError,
    OperatorError,
    ParcelLost,
    SourceError,
    TopologyError,
    WeirError,
)
from weir.faults import reach
from weir.graph.model import Edge, Topology
from weir.locality.stats import BatchStats
from weir.operators.file_reader import vanished
from weir.routing.base import Grouping
from weir.spark import jvm_routing
from weir.spark.executors import on_one_host
from weir.spark.homes import Homes
from weir.state.segment import SegmentRef
from weir.state.storage import Storage

SETTINGS = {
    # adaptive execution would coalesce partitions, and a partition is a server
    "spark.sql.adaptive.enabled": "false",
    # Spark would compare what a task sends when it runs again with what it sent before, byte by byte, and give the
    # batch up if it differs. Ours differ: in times, in names of files. What must be the same is made the same.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # vectorised work wants long vectors; the limit in bytes still holds
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
}
SOURCE = "__source"
PAUSE = 50  # batches without parcels after one was lost
LONG_ROWS = 64  # bytes of a source row from which on it is better left in a file than shuffled by the JVM


def column_name(number: int, column: str) -> str:
    """How a column of a source is called in the united DataFrame."""
    return f"{number}:{column}"


def unite(sources: dict[str, DataFrame], topology: Topology) -> DataFrame:
    """All sources as one DataFrame: each keeps its columns, and only those that are needed."""
    united: DataFrame | None = None
    for number, (name, frame) in enumerate(sources.items()):
        wanted = topology.sources[name].names
        part = frame.select(*[F.col(f"`{c}`").alias(column_name(number, c)) for c in wanted])
        if len(sources) > 1:
            part = part.withColumn(SOURCE, F.lit(number))
        united = part if united is None else united.unionByName(part, allowMissingColumns=True)
    assert united is not None
    return united


class BatchRunner:
    """Runs batches of one topology in one Spark session."""

    def __init__(
        self,
        session: SparkSession,
        topology: Topology,
        storage: Storage,
        learning: Learning | None = None,
        parcels: bool = True,
    ) -> None:
        for key, value in SETTINGS.items():
            session.conf.set(key, value)
        self.session = session
        self.topology = topology
        self.storage = storage
        self.learning = learning
        self.homes = Homes(session, topology.servers)
        self.query = uuid.uuid4().hex
        self.parcels = parcels
        self.hosts = self._surely()
        self.row_bytes = 0.0  # of a source row, in the last batch
        self.lost: str | None = None  # why the last batch had to run again
        self._pause_until = 0
        self._previous: Homes | None = None
        self._slots: dict[int, tuple[object, Column]] = {}

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        """Goes over to other servers with the next batch, which moves the state (``plan.origin``)."""
        self._previous, self.homes = self.homes, self.homes.rearranged(self.session, origin)
        self.topology, self.learning = topology, learning
        self._slots.clear()
        self.hosts = self._surely()

    def run(
        self, rows: DataFrame, plan: BatchPlan, manifest: Manifest, before: Manifest | None = None
    ) -> tuple[list[TaskReport], list[BatchStats]]:
        """Runs one batch; returns what its tasks report and count. Nothing has happened until it is committed.

        Servers that share a host leave long rows for each other in files there. A server that wakes elsewhere lacks
        them; then the batch runs again without, and some batches after it do so, too.
        """
        known = len(self.hosts) == self.topology.servers and plan.batch >= self._pause_until
        self.lost = None
        if not (self.parcels and known):
            return self._run(rows, plan, manifest, before, None)
        try:
            return self._run(rows, plan, manifest, before, self.hosts)
        except ParcelLost as error:
            self.lost = str(error)
            self._pause_until = plan.batch + PAUSE
            return self._run(rows, plan, manifest, before, None)

    def _run(
        self,
        rows: DataFrame,
        plan: BatchPlan,
        manifest: Manifest,
        before: Manifest | None,
        hosts: list[str] | None,
    ) -> tuple[list[TaskReport], list[BatchStats]]:
        topology = self.topology
        in_jvm = self._routable(plan) and not self._stay(hosts)
        moving = plan.origin is not None
        if topology.steps == 0:
            layout = EntryLayout(tagged=True)
        elif in_jvm:
            several = len(topology.sources) > 1 or any(
                len(topology.out_edges[s]) > 1 for s in topology.sources
            )
            layout = EntryLayout(
                tagged=several or moving,
                native={
                    name: (number, [column_name(number, c) for c in schema.names])
                    for number, (name, schema) in enumerate(topology.sources.items())
                },
            )
        else:
            layout = EntryLayout(tagged=True)
        job = Job(
            topology,
            plan,
            manifest,
            self.storage.location,
            self.homes.slots,
            layout,
            self.learning,
            before,
            began=now(),
            query=self.query,
            hosts=hosts,
        )
        if in_jvm and topology.steps:
            entry = self._native(rows, plan, layout)
        else:
            entry = rows.mapInArrow(_source_task(job), wire.WIRE_DDL)
        if moving:
            assert self._previous is not None
            movers = self._previous.each().mapInArrow(_move_task(job), wire.WIRE_DDL)
            entry = entry.unionByName(movers, allowMissingColumns=True)
        shape = f"entry, tagged {layout.tagged}, moving {moving}, in the JVM {in_jvm}"
        for step in range(1, topology.steps + 1):
            entry = self.homes.exchange(entry, shape).mapInArrow(_step_task(job, step), wire.WIRE_DDL)
            shape = "wire"
        answers = self._collect(entry.select("kind", "payload"))
        reports = [msgspec.json.decode(p, type=TaskReport) for kind, p in answers if kind == wire.CONTROL]
        stats = [BatchStats.from_ipc(p) for kind, p in answers if kind == wire.STATISTICS]
        self._check(reports)
        self._previous = None
        return reports, stats

    def _collect(self, frame: DataFrame) -> list[tuple[int, bytes]]:
        try:
            return [(row[0], bytes(row[1])) for row in frame.collect()]
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error

    def _check(self, reports: list[TaskReport]) -> None:
        """Every server must have reported every step, once; anything else is a bug or a Spark that differs."""
        servers, steps = self.topology.servers, self.topology.steps
        seen = sorted((r.server, r.step) for r in reports if r.server >= 0 and r.step > 0)
        if seen != [(i, s) for i in range(servers) for s in range(1, steps + 1)]:
            raise EngineError(
                f"the batch's reports are not one per server and step (got {seen} for {servers} servers and "
                f"{steps} steps). Nothing was committed. Please report this with the Spark version."
            )

    def _surely(self) -> list[str]:
        """The host of each server, where that is clear before any of them has run; else none."""
        return [host_name()] * self.topology.servers if on_one_host(self.session) else []

    def _stay(self, hosts: list[str] | None) -> bool:
        """Whether source rows are so long, and servers so near, that they are better left in files by Python tasks."""
        if hosts is None or self.topology.listings:  # of files, only the paths come from a source
            return False
        return len(set(hosts)) == 1 and self.row_bytes >= LONG_ROWS

    def _routable(self, plan: BatchPlan) -> bool:
        return all(
            jvm_routing.can_route(self._grouping(plan, e.target, e.grouping))
            for e in self.topology.edges
            if e.source in self.topology.sources
        )

    def _grouping(self, plan: BatchPlan, operator: str, declared: Grouping) -> Grouping:
        return grouping_in_force(self.storage, plan, operator, declared)

    def _native(self, rows: DataFrame, plan: BatchPlan, layout: EntryLayout) -> DataFrame:
        """Source rows with their slot, computed in the JVM."""
        topology = self.topology
        frames: list[DataFrame] = []
        for name, (number, columns) in layout.native.items():
            part = rows.where(F.col(SOURCE) == number) if len(topology.sources) > 1 else rows
            plain = {c: column_name(number, c) for c in topology.sources[name].names}
            slots: list[Column] = []
            for edge in topology.out_edges[name]:
                slots.append(self._slot(plan, edge, plain, columns))
            own = [F.col(f"`{c}`") for c in columns]
            if not layout.tagged:
                frames.append(part.select(slots[0].alias("slot"), *own))
                continue
            edges: Column = F.lit(1)
            if len(slots) > 1:
                named = [s.alias(f"__slot{i}") for i, s in enumerate(slots)]
                part = part.select(*own, *named)
                places = [F.col(f"__slot{i}") for i in range(len(slots))]
                # a row that several operators on one server want travels there once
                part = part.withColumn("slot", F.explode(F.array_distinct(F.array(*places))))
                edges = F.lit(0)
                for i, place in enumerate(places):
                    edges = edges + F.when(place == F.col("slot"), 1 << i).otherwise(0)
            else:
                part = part.select(*own, slots[0].alias("slot"))
            frames.append(
                part.select(
                    F.col("slot"),
                    F.lit(wire.NATIVE + number).alias("kind"),
                    edges.cast("int").alias("edge"),
                    F.lit(None).cast("binary").alias("payload"),
                    *own,
                )
            )
        out = frames[0]
        for frame in frames[1:]:
            out = out.unionByName(frame, allowMissingColumns=True)
        return out

    def _slot(self, plan: BatchPlan, edge: Edge, plain: dict[str, str], columns: list[str]) -> Column:
        """The slot of each row on an edge; the expression is kept until the table or the hot keys change."""
        table = plan.tables.get(edge.target)
        buckets = plan.layout.buckets.get(edge.target) if plan.layout else None
        version = (
            table.files[-1].name if table else "",
            tuple(plan.hot.get(edge.target, ())),
            buckets.name if buckets else "",
        )
        kept = self._slots.get(edge.index)
        if kept is None or kept[0] != version:
            node = self.topology.by_name[edge.target]
            grouping = self._grouping(plan, edge.target, edge.grouping)
            kept = (version, jvm_routing.slot_of(node, grouping, self.homes.slots, plain, columns))
            self._slots[edge.index] = kept
        return kept[1]

    def lay_out(self, commit: Commit) -> list[dict[str, tuple[SegmentRef | None, int]]]:
        """Lays saved state out anew for this topology, one task per server."""
        from weir.engine.migrate import lay_out

        topology, location = self.topology, self.storage.location

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for server in batch.column("server").to_pylist():
                    made = lay_out(topology, commit, location, server)
                    columns = [
                        pa.array([server], pa.int32()),
                        pa.array([msgspec.json.encode(made)], pa.binary()),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, names=["server", "payload"])

        found = dict(self._collect(self.homes.each().mapInArrow(task, "server int, payload binary")))
        kind = dict[str, tuple[SegmentRef | None, int]]
        return [msgspec.json.decode(found[i], type=kind) for i in range(topology.servers)]


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


_settled = False


def _settle() -> None:
    """Spares a Python worker the inspection of all its modules after every task.

    PySpark collects garbage whenever a worker has finished a task; with numba and pandas loaded that takes tens
    of milliseconds, every time. What has been loaded by now stays anyway, so the collector need not look at it.
    """
    global _settled
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


def _step_task(job: Job, step: int) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _settle()
        context = TaskContext.get()
        assert context is not None
        reach("step-started", job.plan.batch * 100 + step)
        server = Server(job, step, context.partitionId(), folder=_local_folder())
        yield from server.run(_addressed(batches, job, context.partitionId()))

    return task


def _addressed(batches: Iterator[pa.RecordBatch], job: Job, server: int) -> Iterator[pa.RecordBatch]:
    """Lets through what is addressed to this server, and refuses to go on with anything else."""
    for batch in batches:
        if batch.num_rows:
            slots = batch.column("slot").to_numpy()
            if (slots != job.slots[server]).any():
                raise EngineError(
                    f"a row for slot {int(slots[slots != job.slots[server]][0])} reached server {server} "
                    f"(slot {job.slots[server]}): this Spark did not align the exchange with the servers' homes"
                )
        yield batch


def _source_task(job: Job) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _settle()
        context = TaskContext.get()
        assert context is not None
        yield from Server(job, 0, -1, context.partitionId(), _local_folder()).run(batches)

    return task


def _local_folder() -> str | None:
    """A folder of this executor, which Spark removes with it."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _move_task(job: Job) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _settle()
        for batch in batches:
            for server in batch.column("server").to_pylist():
                yield from move_home(job, server)

    return task


_OURS: dict[str, type[WeirError]] = {
    c.__name__: c for c in (OperatorError, NullKeyError, SourceError, TopologyError, EngineError, ParcelLost)
}


_GONE = re.compile(r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] .*? reading file (.+?)\. File does not exist")


def translated(error: PySparkException | Py4JJavaError) -> Exception:
    """The error that a task raised, if it was one of ours, without Spark's wrapping."""
    text = str(error)
    found = re.search(
        r"weir\.errors\.(\w+): (.*?)(?:\n\s*\n|\n\tat |\nDriver stacktrace|\Z| SQLSTATE)", text, re.DOTALL
    )
    if found and found[1] in _OURS:
        return _OURS[found[1]](found[2].strip())
    if found and found[1].startswith("Checkpoint"):
        from weir import errors

        return getattr(errors, found[1], EngineError)(found[2].strip())
    if gone := _GONE.search(text):
        return vanished(unquote(gone[1]))
    if re.search(r"No module named '(weir|pyarrow|numba|msgspec)", text):
        return EngineError(
            "the Python of the executors lacks Weir or what it needs. Install weir there, and start Spark with "
            "PYSPARK_PYTHON pointing to that Python (on one machine: the one that runs this)."
        )
    return error
