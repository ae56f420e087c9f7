"""Live servers on Spark: the tasks of a stage hold them for many batches, an ordinary job per batch feeds them.

Spark places the servers on the hosts that they had, starts and watches them, and reads the sources: in tasks that push
rows to the servers, or, where a batch is small, for the driver, which pushes them; that saves the start of Python
tasks. Whatever is lost, a server, an executor, a source task, ends the generation: the batch runs again by its plan as
step jobs, which need no free slots, and live servers come back with a later batch, when there is room.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread, TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from weir.engine.documents import BatchPlan, Manifest
from weir.engine.exchange.wire import Answers, answered
from weir.engine.live.control import LoadAggregator
from weir.engine.live.coordinator import SILENCE, LiveCoordinator
from weir.engine.live.source import push, push_when_planned, timed
from weir.engine.live.tls import is_available
from weir.engine.live.transport import Address, Generation
from weir.engine.live.worker import LiveWorker
from weir.engine.task.batch_context import BatchContext, Pace
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.reports import BatchResult, result_of
from weir.errors import EngineError, LiveFailed
from weir.extras import install
from weir.graph.model import Topology
from weir.locality.stats import BatchStats
from weir.spark.executors import allocates, ensure_slots, executors, most_slots, settled_slots, slots
from weir.spark.runner import (
    MOST_BYTES,
    SETTINGS,
    SparkRunner,
    Task,
    answering,
    collected,
    local_folder,
    settle,
)
from weir.spark.sources import fetched

logger = logging.getLogger("weir.spark")
START_SECONDS = 60.0  # for all servers to come, once there are slots for them,
ALLOCATION_SECONDS = 240.0  # and where Spark asks for executors because servers wait for some
SLOT_SECONDS = 30.0
LONGEST_PAUSE = 64  # batches without live servers after they failed again and again
# Spark computes the size of an Arrow batch anew for every row, which doubles what it costs to hand rows to Python.
# Where rows were short in the last batch, their number is limit enough; if they grow and do not fit, jobs have one.
SHORT_ROWS, NO_LIMIT = 256, str(2**31 - 1)
SMALL_BATCH = 256 << 10  # bytes, as Spark estimates them, that take the way over the driver
# settings by which Spark encrypts what travels between its processes, and what they write to local disks
ENCRYPTED_NETWORK = tuple(f"spark.{what}.enabled" for what in ("network.crypto", "ssl.rpc", "ssl"))
ENCRYPTED_DISKS = "spark.io.encryption.enabled"
# times that no source task runs, and the seconds between, after which none will ever find a slot
STARVING = (3, 10.0)
_held: Counter[str] = Counter()  # Spark application → slots that live servers of this process hold
_counting = threading.Lock()  # of these: two queries must not take the same slots


def obstacle(session: SparkSession, servers: int) -> str | None:
    """Return why live servers can't run in a session; None if they can.

    They hold a task slot each, and source tasks need at least one more. Spark itself would wait in silence. Slots that
    live servers of other queries hold do not count.
    """
    conf = session.sparkContext.getConf()
    if conf.get(ENCRYPTED_DISKS, "false") == "true":
        return f"{ENCRYPTED_DISKS} is set, and rows that wait for live servers on disk are not encrypted"
    encrypts = encrypted_network(session)
    if encrypts is not None and not is_available():
        return f"{encrypts} is set, and encryption between live servers needs: {install('encryption')}"
    if conf.get("spark.speculation", "false") == "true":
        return "spark.speculation is on, and what a source task has pushed can't be pushed again by its copy"
    have, taken = slots(session), _held[session.sparkContext.applicationId]
    if allocates(session):
        most = most_slots(session)
        have = taken + servers + 1 if most is None else most
    if have - taken < servers + 1:
        there = f"there are {'at most ' if allocates(session) else ''}{have}" + (
            f", of which live servers of other queries hold {taken}" if taken else ""
        )
        return f"{servers} live servers and a source need {servers + 1} task slots, and {there}"
    return None


def require_live(session: SparkSession, servers: int) -> None:
    """Raise an EngineError if live servers can't run in a session."""
    reason = obstacle(session, servers)
    if reason is not None:  # a cluster may give more slots, if that is it
        with contextlib.suppress(EngineError):
            ensure_slots(session, servers + 1, SLOT_SECONDS)
        reason = obstacle(session, servers)
    if reason is not None:
        raise EngineError(f'{reason}. Start Spark accordingly, or leave out execution="live".')


def free_servers(session: SparkSession, live: bool) -> int:
    """Return how many servers can run at once, beside the live servers of other queries.

    Where they may be live, an eighth of the slots, and one at least, is left to source tasks.
    """
    free = settled_slots(session) - _held[session.sparkContext.applicationId]
    return max(1, free - math.ceil(free / 8) if live else free)


def encrypted_network(session: SparkSession) -> str | None:
    """Return the setting by which Spark encrypts what travels between its processes, if there is one."""
    conf = session.sparkContext.getConf()
    return next((name for name in ENCRYPTED_NETWORK if conf.get(name, "false") == "true"), None)


@dataclass(frozen=True)
class HeldBatch:
    """A batch whose rows source tasks, or the driver, hold; ``push`` lets them go, given its job, also as bytes."""

    batch: int
    counts: BatchStats | None
    push: Callable[[BatchContext, bytes], Answers]


class LiveRunner:
    """Runs batches on live servers where it can, else as step jobs."""

    def __init__(self, jobs: SparkRunner, silence: float = SILENCE) -> None:
        self._jobs, self._silence = jobs, silence
        self.storage, self.mode, self.sources, self.room = jobs.storage, jobs.mode, jobs.sources, jobs.room
        self.tasks, self.machines = jobs, self
        self.start, self.locate, self.committed = jobs.start, jobs.locate, jobs.committed
        self._group: LiveCoordinator | None = None
        self._lock = threading.Lock()  # of the group: a query is stopped from another thread
        self._closed = False
        self._reserved: tuple[str, int] | None = None  # Spark application, slots
        # the batch to try live servers with again, and how many to wait after the next failure
        self._resume, self._pause = 0, 1
        self._origin: list[int] | None = None  # of live servers that change with the next batch
        self._held: HeldBatch | None = None  # the rows of a batch that is not planned yet
        self._failure: tuple[int, str] | None = (
            None  # the batch whose rows were lost before its plan, and why
        )
        self._why = "as step jobs until the first batch has been planned"
        self._pace = Pace()

    @property
    def execution(self) -> str:
        return self._why

    @property
    def session(self) -> SparkSession:
        return self._jobs.session

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        """Go over to other servers with the next batch: live ones come and go, and the others stay as they are."""
        self._jobs.rescale(topology, origin, learning)
        self._pace = Pace()
        if self._group is not None:
            self._origin = origin

    def ensure_slots(self, servers: int, new: int, timeout: float) -> None:
        """Start live servers that are to come, while batches go on; those that are to leave still hold their slots."""
        self._jobs.ensure_slots(servers, new, timeout)
        group, most = self._group, self._jobs.topology.servers + new
        if group is not None and self._reserve(most) is None:
            with contextlib.suppress(LiveFailed):  # the batch that wants them says so
                group.prepare(new, self._newcomers(group), self._start_seconds)

    def release(self, hosts: set[str] | None) -> list[str] | None:
        if hosts is not None and executors(self.session):  # servers may live there
            self._let_go()
        return self._jobs.release(hosts)

    def close(self) -> None:
        self._closed = True
        self._let_go()

    def look_ahead(self, rows: DataFrame, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        """Count in the tasks that will push the rows, and let them hold these until the plan is there."""
        if self._held is not None:  # its plan never came
            self._let_go()
        if self._obstacle(batch) is not None:
            return self._jobs.look_ahead(rows, batch, ahead, again)
        try:
            group = self._group or self._start_servers()
            self._limit_batches()
            self._held = self._hold(group, rows, batch, ahead)
            return self._held.counts
        except Exception as error:
            self._failure = batch, self._fail(batch, error)
            return None

    def run(
        self, rows: DataFrame, plan: BatchPlan, manifest: Manifest, before: Manifest | None = None
    ) -> BatchResult:
        if self._held is not None and self._held.batch != plan.batch:
            self._let_go()
        reason = self._obstacle(plan.batch)
        if reason is not None:
            self._say(f"as step jobs: {reason}")
            self._let_go()
            result = self._jobs.run(rows, plan, manifest, before)
            failed = self._failure
            return (
                result if failed is None or failed[0] != plan.batch else replace(result, ran_again=failed[1])
            )
        try:
            result = self._run_live(rows, plan, manifest, before)
        except Exception as error:
            failure = self._fail(plan.batch, error)
            return replace(self._jobs.run(rows, plan, manifest, before), ran_again=failure)
        self._pause = 1
        return result

    def _fail(self, batch: int, error: Exception) -> str:
        """Let all servers go because of an error, for some batches; return what it says."""
        self._let_go()
        if self._closed:
            raise error
        self._resume, self._pause = batch + self._pause, min(2 * self._pause, LONGEST_PAUSE)
        failure = str(error).split("\n")[0]
        self._say(f"as step jobs until batch {self._resume}: {failure}")
        return failure

    def _obstacle(self, batch: int) -> str | None:
        if not self._jobs.topology.steps:
            return "no operator needs a server"
        if self._group is not None and self._origin is None:
            return None
        if batch < self._resume:
            return f"live servers failed, and are tried again with batch {self._resume}"
        return self._reserve(self._jobs.topology.servers)

    def _reserve(self, servers: int) -> str | None:
        """Hold slots for so many servers, or return why there are none."""
        with _counting:
            application = self.session.sparkContext.applicationId
            own = 0 if self._reserved is None else self._reserved[1]
            _held[application] -= own
            reason = obstacle(self.session, servers)
            self._reserved = application, own if reason is not None else servers
            _held[application] += self._reserved[1]
            return reason

    def _say(self, why: str) -> None:
        if why != self._why:
            self._why = why
            logger.info("batches run %s", why)

    # ------------------------------------------------------------------ a live batch

    def _run_live(
        self, rows: DataFrame, plan: BatchPlan, manifest: Manifest, before: Manifest | None
    ) -> BatchResult:
        group = self._group or self._start_servers()
        if self._origin is not None:
            origin, self._origin = self._origin, None
            group.change(origin, self._newcomers(group), self._start_seconds)
            self._reserve(self._jobs.topology.servers)  # those that have left hold none any more
            self._say(f"on {self._jobs.topology.servers} live servers")
        job = self._jobs.job(plan, manifest, before, list(range(plan.servers)))
        job = replace(job, pace=self._pace)
        self._limit_batches()
        encoded, (held, self._held) = cloudpickle.dumps(job), (self._held, None)

        def push_rows() -> Answers:
            if held is not None:
                return held.push(job, encoded)
            if rows is self.sources.nothing:
                return group.feed(job, [])
            with self._source_job(group):
                if self._is_small(rows):
                    return group.feed(job, timed(fetched(rows).to_batches()))
                return collected(answering(rows, _push_task(job, group.generation, group.addresses)))

        aggregator = LoadAggregator(job, group.tell_load)
        answers = group.run(plan.batch, encoded, push_rows, aggregator)
        result = result_of(answers, "live")
        self._pace = aggregator.pace(result.reports)
        return result

    def _limit_batches(self) -> None:
        short = 0 < self._jobs.row_bytes <= SHORT_ROWS
        self._jobs.limit_batches(NO_LIMIT if short else SETTINGS[MOST_BYTES])

    @contextlib.contextmanager
    def _source_job(self, group: LiveCoordinator) -> Iterator[None]:
        """Let jobs of this thread be ended with a generation, and it with them, if they find no slot."""
        context, tag = self.session.sparkContext, _source_tag(group.generation)
        pushed = threading.Event()  # what servers do after that may take any time
        watched = context, tag, group, pushed, allocates(self.session)
        threading.Thread(target=_watch_sources, args=watched, daemon=True).start()
        context.addJobTag(tag)
        try:
            yield
        finally:
            pushed.set()
            context.removeJobTag(tag)

    def _hold(self, group: LiveCoordinator, rows: DataFrame, batch: int, ahead: Ahead) -> HeldBatch:
        """Have the rows of a batch read and counted, by the driver if they are few, and held."""
        with self._source_job(group):
            if self._is_small(rows):
                few = list(timed(fetched(rows).to_batches()))
                counts = ahead.merged([ahead.count_all((part for part, _ in few), 1)])
                return HeldBatch(batch, counts, lambda job, _: group.feed(job, few))
        # those of one wave: they wait for each other
        most = max(1, slots(self.session) - _held[self.session.sparkContext.applicationId])
        task = _hold_task(batch, (ahead, most), group.generation, group.address)
        frame = answering(rows.coalesce(most), task)
        tasks = int(frame._jdf.queryExecution().toRdd().getNumPartitions())
        answers: Future[Answers] = Future()
        group.hold(batch)

        def hold() -> None:
            try:
                with self._source_job(group):
                    answers.set_result(collected(frame))
            except Exception as error:
                answers.set_exception(error)
                group.fail(error)

        InheritableThread(target=hold, daemon=True, name="weir-source").start()

        def push(_: BatchContext, encoded: bytes) -> Answers:
            group.release(encoded)
            return answers.result()

        context, tag = self.session.sparkContext, _source_tag(group.generation)
        counted = group.counts(tasks, lambda waiting: 0 < _running_tasks(context, tag) <= waiting)
        return HeldBatch(batch, None if counted is None else ahead.merged(counted), push)

    def _is_small(self, rows: DataFrame) -> bool:
        """Return whether rows should come to the driver: few, and no function of the user's is called on the way.

        Spark knows how long files are, and takes other sources for infinite. Files may hold more than they seem to, so
        the last batch must have been small, too.
        """
        if self._jobs.topology.works_at_sources or self._jobs.batch_bytes > SMALL_BATCH:
            return False
        return int(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()) <= SMALL_BATCH

    def _start_servers(self) -> LiveCoordinator:
        """Start the servers, in a thread that waits for their end, and wait for them."""
        began = time.perf_counter()
        context, n = self.session.sparkContext, self._jobs.topology.servers
        host = context.getConf().get("spark.driver.host") or "127.0.0.1"
        bind = context.getConf().get("spark.driver.bindAddress", host)
        sealed = encrypted_network(self.session) is not None
        group = LiveCoordinator(
            n, host, lambda: self._cancel(context, group.generation), self._silence, bind, sealed
        )
        with self._lock:
            if self._closed:
                raise LiveFailed("the query is being stopped")
            self._group = group
        self._launch(group, list(range(n)), self._jobs.affinity.each())
        group.gather(self._start_seconds)
        if executors(self.session):
            threading.Thread(target=_warm_up, args=(self.session, n), daemon=True, name="weir-warm").start()
        how = ", encrypted" if sealed else ""
        self._say(f"on {n} live servers{how} (started within {time.perf_counter() - began:.1f} s)")
        return group

    def _launch(self, group: LiveCoordinator, members: list[int], places: DataFrame) -> None:
        """Start a stage of live servers, one for each partition, in a thread that waits for their end."""
        context = self.session.sparkContext
        task = _server_task(group.address, group.generation, members, self._jobs.topology)
        # not a barrier stage: Spark refuses these where it allocates executors, and whoever is missing is noticed here
        stage = places.mapInArrow(task, "server int")

        def hold() -> None:
            try:
                context.setJobGroup(
                    _job_group(group.generation), f"{len(members)} live servers of a Weir query"
                )
                stage.collect()
            except Exception as error:
                group.fail(LiveFailed(f"the stage of the live servers ended: {str(error).splitlines()[0]}"))

        threading.Thread(target=hold, daemon=True, name="weir-live").start()

    @property
    def _start_seconds(self) -> float:
        return ALLOCATION_SECONDS if allocates(self.session) else START_SECONDS

    def _newcomers(self, group: LiveCoordinator) -> Callable[[list[int]], None]:
        return lambda members: self._launch(
            group, members, self.session.range(0, len(members), 1, len(members))
        )

    def _let_go(self) -> None:
        with self._lock:
            group, self._group, self._origin, self._held = self._group, None, None, None
        if group is not None:
            group.close()
            self._cancel(self.session.sparkContext, group.generation)
        with _counting:
            reserved, self._reserved = self._reserved, None
            if reserved is not None:
                _held[reserved[0]] -= reserved[1]

    @staticmethod
    def _cancel(context: Any, generation: Generation) -> None:
        """End what still runs for a generation: servers that are stuck, and source tasks that wait for them."""
        try:
            context.cancelJobsWithTag(_source_tag(generation))
            context.cancelJobGroup(_job_group(generation))
        except Exception:
            logger.debug("the session ended before its live servers", exc_info=True)


def _warm_up(session: SparkSession, servers: int) -> None:
    """Start Python on executors that hold no server: a batch that must run as jobs would wait for it."""
    try:
        free = slots(session) - servers
        session.sparkContext.setJobDescription("start Python for a Weir query")
        session.range(0, free, 1, free).mapInArrow(lambda batches: batches, "id long").collect()
    except Exception:
        logger.debug("executors were not warmed up", exc_info=True)


def _watch_sources(
    context: Any, tag: str, group: LiveCoordinator, pushed: threading.Event, allocated: bool
) -> None:
    """Give the servers' slots back if jobs of others hold all that are left: the source would wait for ever."""
    times, pause = STARVING if not allocated else (round(ALLOCATION_SECONDS / STARVING[1]), STARVING[1])
    idle = 0
    while not pushed.wait(pause):
        try:
            idle = 0 if _running_tasks(context, tag) else idle + 1
        except Exception:
            logger.debug("the session ended before its sources", exc_info=True)
            return  # the batch fails by itself, and says why
        if idle == times:
            group.fail(LiveFailed(f"no source task has found a free slot for {times * pause:g} s"))
            return


def _running_tasks(context: Any, tag: str) -> int:
    """Return how many tasks of the jobs with a tag run at the moment."""
    tracker = context.statusTracker()
    jobs = map(tracker.getJobInfo, context._jsc.sc().statusTracker().getJobIdsForTag(tag))
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _source_tag(generation: Generation) -> str:
    return f"weir-source-{generation.name}"


def _job_group(generation: Generation) -> str:
    return f"weir-live-{generation.name}"


def _server_task(driver: Address, generation: Generation, members: list[int], topology: Topology) -> Task:
    # the topology comes along so that what the user's functions import is there before a batch waits for it
    def task(batches: Iterator[pa.RecordBatch], _: Topology = topology) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # the cached row that has brought the task here
            pass
        folder = local_folder() or tempfile.gettempdir()
        LiveWorker(members[_only_attempt()], driver, generation, _decoded, folder).run()
        yield from ()

    return task


def _decoded(data: bytes) -> BatchContext:
    job: BatchContext = cloudpickle.loads(data)
    settle(job)
    return job


def _hold_task(batch: int, counting: tuple[Ahead, int], generation: Generation, driver: Address) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, folder = _only_attempt(), local_folder()
        yield answered(
            push_when_planned(number, batch, batches, counting, generation, driver, _decoded, folder)
        )

    return task


def _only_attempt() -> int:
    """Return the number of a task that runs once: others have what it has pushed, or are connected to it."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber():
        raise LiveFailed(
            "a live server or a source task failed or ran twice; what it has sent can't be taken back"
        )
    return context.partitionId()


def _push_task(job: BatchContext, generation: Generation, servers: list[Address]) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle(job)
        yield answered(push(job, _only_attempt(), timed(batches), generation, servers))

    return task
