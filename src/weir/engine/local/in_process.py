"""Run batches in this process, on Arrow tables: the same servers and exchanges, without Spark.

Servers of a step run one after the other. Everything that passes between them passes through the same blobs as on
Spark, so operators, groupings, moves and scaling do exactly what they do there. Live servers are
threads, which use real sockets.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from weir.engine.batch.fence import check_shared
from weir.engine.batch.ledger import IN_PROCESS
from weir.engine.checkpoint import read_table
from weir.engine.documents import BatchPlan, Claim, FileRef, Manifest
from weir.engine.exchange import wire
from weir.engine.exchange.wire import Answers
from weir.engine.live.control import LoadAggregator
from weir.engine.live.coordinator import LiveCoordinator
from weir.engine.live.source import push, push_when_planned, timed
from weir.engine.live.worker import LiveWorker
from weir.engine.progress import Progress
from weir.engine.task import invariants
from weir.engine.task.batch_context import SOURCE_NUMBER, BatchContext, Pace, Segments, column_name
from weir.engine.task.job_tasks import SourceTask, StepTask
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.reports import BatchResult, result_of
from weir.errors import EngineError, LiveFailed
from weir.faults import reach
from weir.graph.model import Topology
from weir.locality.stats import BatchStats
from weir.state.storage import Storage

Tables = Mapping[str, pa.Table]  # source → rows
Task = Callable[..., Iterable[pa.RecordBatch]]
SERVERS = 2  # for servers="auto"


class TaskFailed(Exception):
    """A task is to fail and run again, as Spark would run it again; raised at a fault point."""


class ArrowRows:
    """Rows of sources as Arrow tables."""

    def listings(self, rows: Tables, topology: Topology, sources: Collection[str]) -> dict[str, pa.Table]:
        return {name: rows[name] for name in sources}

    def without(self, rows: Tables, topology: Topology, sources: Collection[str] | None = None) -> Tables:
        return {name: t.slice(0, 0) if sources is None or name in sources else t for name, t in rows.items()}

    def no_rows(self, topology: Topology) -> Tables:
        return {name: schema.empty_table() for name, schema in topology.sources.items()}


class InProcessRunner:
    """Runs batches of one topology in this process.

    A batch's source rows are cut into ``source_tasks`` tasks. Server ``i`` pretends to live on host ``i`` of ``hosts``,
    counted around. With a seed, rows reach a server in another order in every batch and every run of a task: what
    depends on order shows.
    """

    def __init__(
        self,
        storage: Storage,
        source_tasks: int = 2,
        hosts: Sequence[str] = ("host",),
        seed: int | None = None,
    ) -> None:
        if source_tasks < 1 or not hosts:
            raise EngineError("an in-process run needs at least one source task and one host")
        self.storage, self.source_tasks, self.hosts = storage, source_tasks, list(hosts)
        self.mode, self.sources = IN_PROCESS, ArrowRows()
        self.tasks = self.machines = self
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._query = uuid.uuid4().hex

    def start(self, rows: Tables, topology: Topology, learning: Learning | None, claim: Claim) -> None:
        check_shared(self.storage, claim)
        if not hasattr(self, "topology"):
            self.topology, self.learning = topology, learning

    @property
    def execution(self) -> str:
        return "in this process, one server after the other"

    def room(self, servers: int | None) -> int:
        return SERVERS if servers is None else servers

    def locate(self, always: bool) -> dict[int, tuple[str, str]]:
        return {server: self._place(server) for server in range(self.topology.servers)}

    def _place(self, server: int) -> tuple[str, str]:
        host = self.hosts[server % len(self.hosts)]
        return host, f"{host}:1"

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        self.topology, self.learning = topology, learning

    def committed(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass

    def each(self, count: int, task: Callable[[int], Any]) -> list[Any]:
        return [
            msgspec.json.decode(msgspec.json.encode(self._retried(task, number))) for number in range(count)
        ]

    def call(self, sink: Any, files: list[FileRef], schema: pa.Schema, batch: int) -> None:
        """Call a sink with an Arrow table and the batch's number."""
        parts = [read_table(self.storage, ref, schema) for ref in files]
        sink(pa.concat_tables([schema.empty_table(), *parts]), batch)

    def frame(self, files: list[FileRef], schema: pa.Schema, order: str = "") -> Any:
        raise EngineError(
            "there is no Spark here, and so no DataFrame: test with another sink, as weir.sinks.Delta"
        )

    def ensure_slots(self, servers: int, new: int, timeout: float) -> None:
        pass  # servers take turns in this process, however many there are

    def release(self, hosts: set[str] | None) -> list[str] | None:
        return None

    def look_ahead(self, rows: Tables, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        return ahead.merged([ahead.count_all([part], self.source_tasks) for part in self.cut(rows)])

    def run(self, rows: Tables, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchResult:
        """Run one batch, step by step."""
        topology, job = self.topology, self.job(plan, manifest, before)
        cut = enumerate(self.cut(rows))
        sent = [batch for task, part in cut for batch in self._attempt(_source, job, task, part)]
        for step in range(1, topology.steps + 1):
            inboxes = enumerate(self._exchange(sent))
            sent = [
                b for server, inbox in inboxes for b in self._attempt(self._step, job, step, server, inbox)
            ]
        return self.placed(result_of(wire.answers_in(sent)))

    def job(self, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchContext:
        """Return a batch as its tasks see it."""
        return BatchContext(
            self.topology,
            plan,
            Segments(manifest),
            self.storage,
            list(range(self.topology.servers)),
            self.learning,
            None if before is None else Segments(before),
            query=self._query,
            invariants=invariants.enabled,
        )

    def cut(self, rows: Tables) -> list[pa.RecordBatch]:
        """Return the rows of all sources as the batches of source tasks, as Spark would hand them over."""
        topology = self.topology
        several = len(topology.sources) > 1
        united = []
        for number, (name, schema) in enumerate(topology.sources.items()):
            table = rows[name].select(schema.names)
            table = table.rename_columns([column_name(number, c) for c in schema.names])
            if several:
                table = table.append_column(SOURCE_NUMBER, pa.array(np.full(len(table), number, np.int32)))
            united.append(table)
        table = pa.concat_tables(united, promote_options="default").combine_chunks()
        size = -(-table.num_rows // self.source_tasks) or 1
        return [
            batch
            for task in range(self.source_tasks)
            for batch in table.slice(task * size, size).combine_chunks().to_batches()
        ]

    def _attempt(self, task: Task, *about: Any) -> list[pa.RecordBatch]:
        """Return what a task sends; one that is made to fail runs again, and what it had sent is lost."""
        return self._retried(lambda: list(task(*about)))

    def _retried(self, task: Callable[..., Any], *about: Any) -> Any:
        while True:
            try:
                return task(*about)
            except TaskFailed:
                continue

    def _step(
        self, job: BatchContext, step: int, server: int, inbox: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        if self._rng is not None:
            inbox = [inbox[i] for i in self._rng.permutation(len(inbox))]
        running = StepTask(job, step, server, host=self._place(server)[0])
        sent = list(running.run(inbox))
        reach("step-started", job.plan.batch * 100 + step)  # at its end, when something could be sent twice
        return sent

    def _exchange(self, sent: list[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
        """Return what reaches each server, blob by blob."""
        inboxes: list[list[pa.RecordBatch]] = [[] for _ in range(self.topology.servers)]
        for batch in sent:
            for row, slot in enumerate(batch.column("slot").to_pylist()):
                inboxes[slot].append(batch.slice(row, 1))
        return inboxes

    def placed(self, result: BatchResult) -> BatchResult:
        """Let servers have run where they pretend to live."""
        for report in result.reports:
            if report.server is not None:
                report.host, report.process = self._place(report.server)
        return result


def _source(job: BatchContext, task: int, part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return SourceTask(job, task).run([part])


HOST = "127.0.0.1"


class LiveThreads:
    """Runs batches on live servers, each a thread; ``fallback`` runs step by step what they can't do.

    In every other batch, rows come from the driver instead of source tasks, as those of small batches do on Spark. Rows
    beyond ``limit`` bytes wait in files; ``sealed`` is whether servers encrypt what they send.
    """

    def __init__(self, fallback: InProcessRunner, limit: int = 1 << 20, sealed: bool = False) -> None:
        self.storage, self.mode, self.sources = fallback.storage, fallback.mode, fallback.sources
        self.tasks = self.machines = fallback
        self.room, self.start = fallback.room, fallback.start
        self.locate, self.committed = fallback.locate, fallback.committed
        self.limit, self.sealed = limit, sealed
        self._fallback = fallback
        self._group: LiveCoordinator | None = None
        self._jobs: dict[bytes, BatchContext] = {}
        self._pace = Pace()
        self._origin: list[int] | None = None  # of servers that change with the next batch
        self._held: list[Future[Answers]] = []  # source tasks that hold the rows of the next batch

    @property
    def execution(self) -> str:
        return "on live servers, threads of this process"

    def look_ahead(self, rows: Tables, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        """Count in source tasks, which hold their rows until the plan is there."""
        if self._held:  # it never came
            self.close()
        if batch % 2 or not self._fallback.topology.steps:
            return self._fallback.look_ahead(rows, batch, ahead, again)
        try:
            group = self._group = self._group or self._start()
            group.hold(batch)
            parts = self._fallback.cut(rows)
            for task, part in enumerate(parts):
                about = (ahead, len(parts)), group.generation, group.address, self._jobs.__getitem__
                hold = partial(push_when_planned, task, batch, [part], *about, limit=self.limit)
                self._held.append(_begun(hold, group.fail))
            counted = group.counts(len(parts), lambda _: False)
        except LiveFailed:
            self.close()
            return None
        return None if counted is None else ahead.merged(counted)

    def run(self, rows: Tables, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchResult:
        fallback = self._fallback
        if not fallback.topology.steps:
            return fallback.run(rows, plan, manifest, before)
        job = replace(fallback.job(plan, manifest, before), pace=self._pace)
        name = str(plan.batch).encode()
        self._jobs.clear()
        self._jobs[name] = job
        try:
            group = self._group = self._group or self._start()
            if self._origin is not None:
                group.change(self._origin, lambda members: self._serve(group, members), 30.0)
                self._origin = None
            aggregator = LoadAggregator(job, group.tell_load)

            def source() -> Answers:
                if self._held:
                    group.release(name)
                    held, self._held = self._held, []
                    return [answer for task in held for answer in task.result()]
                parts = fallback.cut(rows)
                if plan.batch % 2:
                    return group.feed(job, timed(parts))
                tasks, addresses = enumerate(parts), group.addresses
                said = [push(job, task, timed([part]), group.generation, addresses) for task, part in tasks]
                return [answer for answers in said for answer in answers]

            answers = group.run(plan.batch, name, source, aggregator)
        except Exception as error:
            self.close()
            return replace(fallback.run(rows, plan, manifest, before), ran_again=str(error))
        result = result_of(answers, "live")
        self._pace = aggregator.pace(result.reports)
        return fallback.placed(result)

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        self._fallback.rescale(topology, origin, learning)
        self._pace = Pace()
        if self._group is not None:
            self._origin = origin

    def close(self) -> None:
        self._held = []
        if self._group is not None:
            self._group.close()
            self._group = self._origin = None

    def _start(self) -> LiveCoordinator:
        group = LiveCoordinator(self._fallback.topology.servers, HOST, sealed=self.sealed)
        self._serve(group, list(range(self._fallback.topology.servers)))
        try:
            group.gather(30.0)
        except Exception:
            group.close()
            raise
        return group

    def _serve(self, group: LiveCoordinator, members: list[int]) -> None:
        for member in members:
            worker = partial(
                LiveWorker,
                member,
                group.address,
                group.generation,
                self._jobs.__getitem__,
                limit=self.limit,
            )
            name = f"weir-server-{member}"
            threading.Thread(target=lambda w=worker: w().run(), daemon=True, name=name).start()


def _begun(task: Callable[[], Answers], failed: Callable[[Exception], None]) -> Future[Answers]:
    """Run a source task in a thread; if it fails, the servers have, too."""
    answers: Future[Answers] = Future()

    def run() -> None:
        try:
            answers.set_result(task())
        except Exception as error:
            answers.set_exception(error)
            failed(error)

    threading.Thread(target=run, daemon=True, name="weir-source").start()
    return answers
