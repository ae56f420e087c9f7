"""The running query: takes micro-batches from Spark, plans, runs, commits, delivers."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.engine.learning import Learner, governed
from weir.engine.ledger import Ledger
from weir.engine.migrate import manifest_of
from weir.engine.plan import DEAD_LETTERS, BatchPlan, Commit
from weir.engine.progress import summarise
from weir.engine.server import DEAD_LETTER_SCHEMA
from weir.engine.tables import load_table
from weir.errors import EngineError, TopologyError, WeirError, did_you_mean
from weir.faults import reach
from weir.grouping.base import Grouping
from weir.grouping.learnt import NO_TABLE
from weir.locality.config import Locality
from weir.locality.table import RoutingTable
from weir.spark.job import BatchRunner, translated, unite
from weir.spark.session import own_session
from weir.spark.state import output_frame, state_frame
from weir.state.storage import Storage
from weir.topology import Topology

if TYPE_CHECKING:
    from weir.app import Flow

Sink = Callable[[DataFrame, int], Any] | str
CLEAN_EVERY = 10
SAVE_MANAGER_EVERY = 10


class Query:
    """A handle in the manner of Spark's ``StreamingQuery``.

    ``progress`` tells what the last batch did; ``state(name)`` is a DataFrame of an operator's live state.
    """

    def __init__(self, topology: Topology, storage: Storage, ledger: Ledger, session: SparkSession) -> None:
        self.topology = topology
        self.checkpoint = storage.location
        self._storage = storage
        self._ledger = ledger
        self._session = session
        self._stream: Any = None
        self._error: Exception | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=100)
        self._learner: Learner | None = None
        self._doing = "starting"
        if ledger.last is not None and ledger.last.progress:
            self._recent.append(dict(ledger.last.progress))

    # ------------------------------------------------------------------ what it is doing

    @property
    def id(self) -> str:
        """The checkpoint's identity; the same after a restart."""
        return self._ledger.identity

    @property
    def is_active(self) -> bool:
        return self._stream is not None and bool(self._stream.isActive)

    isActive = is_active

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing right now."""
        last = self._ledger.last
        return {
            "active": self.is_active,
            "message": "failed" if self._error else self._doing,
            "batch": None if last is None else last.batch,
        }

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the last batch did; None before the first."""
        return self._recent[-1] if self._recent else None

    lastProgress = progress

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """What the last batches did, oldest first."""
        return list(self._recent)

    recentProgress = recent_progress

    def exception(self) -> Exception | None:
        """Why the query stopped, if it failed."""
        return self._error

    def state(self, name: str) -> DataFrame:
        """The last committed state of an operator, as a DataFrame."""
        last = self._ledger.last
        if last is None:
            raise EngineError("no batch has been committed yet, so there is no state to read")
        if name not in self.topology.by_name:
            raise EngineError(f"no operator {name!r}; {did_you_mean(name, self.topology.by_name)}")
        return state_frame(self._session, self._storage, last, name)

    def explain(self) -> None:
        """Prints the application as it is placed, and the steps of a batch."""
        print(self.describe())

    def describe(self) -> str:
        """What :meth:`explain` prints."""
        n, steps = self.topology.servers, self.topology.steps
        text = [self.topology.draw(), f"{n} servers, {steps} exchange{'s' if steps != 1 else ''} per batch"]
        seen: Any = (self.progress or {}).get("edges", {})
        for edge in self.topology.edges:
            columns = ", ".join(edge.schema.names)
            line = f"edge {edge.source} → {edge.target}: {edge.grouping.name}, carries {columns}"
            local = seen.get(f"{edge.source} → {edge.target}", {}).get("locality")
            text.append(
                line if local is None else f"{line}; {local:.0%} stayed on their server in the last batch"
            )
        return "\n".join(text)

    # ------------------------------------------------------------------ steering

    def reconfigure(self, wait: bool = False) -> None:
        """Asks for a reconfiguration of the routing tables, to be adopted at a batch boundary if it pays.

        The tables are computed in the background while batches go on; with ``wait``, before this returns.
        """
        if self._learner is None:
            raise EngineError(
                "there is nothing to reconfigure: the query was started without routing=weir.Locality(…)"
            )
        self._learner.request(wait)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every reconfiguration that was considered: what was foretold, what was done, what came of it."""
        return [] if self._learner is None else [d.to_dict() for d in self._learner.manager.decisions]

    def routing_table(self, name: str) -> RoutingTable:
        """The table in force for an operator."""
        last = self._ledger.last
        if self._learner is None or name not in self._learner.learnt:
            names = [] if self._learner is None else self._learner.learnt
            raise EngineError(
                f"operator {name!r} is not routed by a learnt table; {did_you_mean(name, names)}"
            )
        ref = last.tables.get(name) if last else None
        table = NO_TABLE if ref is None else load_table(self._storage, ref)
        version = 0 if ref is None else ref.version
        return RoutingTable(table.hashes, table.instances, self.topology.servers, name, version)

    # ------------------------------------------------------------------ waiting and stopping

    def await_termination(self, timeout: float | None = None) -> bool | None:
        """Waits until the query ends, or for ``timeout`` seconds; raises what it failed with."""
        done: bool | None = None
        if self._stream is not None:
            try:
                done = self._stream.awaitTermination(timeout) if timeout else self._stream.awaitTermination()
            except PySparkException as error:
                raise self._failure(error) from None
        self._raise()
        return done

    awaitTermination = await_termination

    def process_all_available(self) -> None:
        """Waits until everything that the source has now is processed and committed; for tests."""
        if self._stream is not None:
            try:
                self._stream.processAllAvailable()
            except PySparkException as error:
                raise self._failure(error) from None
        self._raise()

    processAllAvailable = process_all_available

    def stop(self) -> None:
        """Stops after the batch in flight is cancelled; a later start goes on from the last commit."""
        if self._stream is not None and self._stream.isActive:
            self._stream.stop()
        if self._learner is not None:
            self._learner.close()
        self._doing = "stopped"

    def _failure(self, error: Exception) -> Exception:
        if self._error is None:
            found = translated(error) if isinstance(error, PySparkException) else error
            self._error = found
        return self._error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class _Driver:
    """Carries out batches for a query."""

    def __init__(
        self,
        flow: Flow,
        topology: Topology,
        storage: Storage,
        ledger: Ledger,
        query: Query,
        sinks: dict[str, Sink],
        learner: Learner | None = None,
    ) -> None:
        self.learner = learner
        self.flow, self.topology, self.storage, self.ledger = flow, topology, storage, ledger
        self.query, self.sinks = query, sinks
        self.runner: BatchRunner | None = None

    def prepare(self, session: SparkSession) -> BatchRunner:
        if self.runner is None:
            learning = self.learner.learning if self.learner else None
            self.runner = BatchRunner(session, self.topology, self.storage, learning)
            if self.ledger.needs_migration:
                assert self.ledger.last is not None
                self.query._doing = "laying out state anew"
                self.ledger.migrate(*manifest_of(self.topology, self.runner.lay_out(self.ledger.last)))
            if self.learner is not None and self.ledger.last is not None:
                self.learner.start(self.ledger.last.tables, self.ledger.last.manager)
        return self.runner

    def batch(self, rows: DataFrame, batch: int, *, end_of_input: bool = False) -> None:
        """Processes one micro-batch exactly once."""
        session = rows.sparkSession
        runner = self.prepare(session)
        last = self.ledger.last
        if last is not None and batch <= last.batch:
            # it has happened; only the last one's delivery may be owed
            if batch == last.batch:
                self.deliver(session, last)
            return
        began = time.perf_counter()
        self.query._doing = f"batch {batch}"
        plan = self.plan(batch, end_of_input)
        planned = time.perf_counter()
        reports, stats = runner.run(rows, plan, self.ledger.manifest)
        reach("job-done", batch)
        ran = time.perf_counter()
        progress = summarise(self.topology, plan, reports, self.ledger)
        progress["seconds"] = {"plan": planned - began, "job": ran - planned}
        memory = None
        if self.learner is not None:
            progress["routing"] = self.learner.summary(plan)
            progress["moved_keys"] = sum(m.file.rows for m in plan.moves)
            if self.learner.light or batch % SAVE_MANAGER_EVERY == SAVE_MANAGER_EVERY - 1:
                memory = self.learner.save(batch)
        commit = self.ledger.commit(plan, reports, progress, memory)
        if self.learner is not None and stats:
            self.learner.observe(stats)
        self.deliver(session, commit)
        if batch % CLEAN_EVERY == CLEAN_EVERY - 1:
            self.ledger.clean()
        progress["seconds"]["batch"] = time.perf_counter() - began
        self.query._recent.append(progress)
        self.query._doing = "waiting for data"

    def plan(self, batch: int, end_of_input: bool) -> BatchPlan:
        """What the batch will do; one that was planned before does the same again."""
        ledger, learner = self.ledger, self.learner
        if learner is None:
            return ledger.plan(batch, end_of_input=end_of_input)
        if (known := ledger.planned(batch)) is not None:
            learner.agree(known.tables)
            return known
        last = ledger.last
        tables, version, moves, _ = learner.next_plan(
            batch, dict(last.tables) if last else {}, last.table_version if last else 0
        )
        return ledger.plan(
            batch,
            end_of_input=end_of_input,
            tables=tables,
            table_version=version,
            moves=moves,
            hot={name: [int(h) for h in hashes] for name, hashes in learner.hot.items() if len(hashes)},
        )

    def deliver(self, session: SparkSession, commit: Commit) -> None:
        """Hands a batch's outputs to the sinks, unless they have had it."""
        if not self.sinks or self.ledger.was_delivered(commit.batch):
            return
        for name, sink in self.sinks.items():
            schema = DEAD_LETTER_SCHEMA if name == DEAD_LETTERS else self.topology.by_name[name].sink_out
            files = commit.outputs.get(name, [])
            if name == DEAD_LETTERS and not files:
                continue
            frame = output_frame(session, self.storage, files, schema)
            if callable(sink):
                sink(frame, commit.batch)
            elif files:
                frame.write.mode("overwrite").parquet(f"{sink}/batch_id={commit.batch}")
        self.ledger.delivered(commit.batch)


def _sinks(flow: Flow, sink: Any, dead_letters: Any) -> dict[str, Sink]:
    sinks: dict[str, Sink] = {}
    if isinstance(sink, Mapping):
        sinks.update(sink)
    elif sink is not None:
        leaves = flow.leaves()
        if len(leaves) != 1:
            raise TopologyError(
                f"the application ends in {len(leaves)} operators ({', '.join(leaves)}); "
                "say which sink is whose: sink={'name': …}"
            )
        sinks[leaves[0]] = sink
    for name, one in sinks.items():
        if not callable(one) and not isinstance(one, str):
            raise TopologyError(
                f"sink of {name!r} must be a callable (DataFrame, batch_id) or a path, not {one!r}"
            )
    if dead_letters is not None:
        sinks[DEAD_LETTERS] = dead_letters
    return sinks


def _open(
    flow: Flow,
    checkpoint: str,
    mode: str,
    servers: int,
    routing: Grouping | Locality | None,
    sink: Any,
    dead_letters: Any,
    prune: bool,
    retain: int,
    drop_state: tuple[str, ...],
    clock: Callable[[], int] | None,
) -> tuple[_Driver, Query]:
    streaming = {name: frame.isStreaming for name, frame in flow.frames.items()}
    wanted = mode == "streaming"
    if any(s != wanted for s in streaming.values()):
        wrong = next(n for n, s in streaming.items() if s != wanted)
        if len(set(streaming.values())) > 1:
            remedy = (
                "all sources of an application must be of one kind; use spark.readStream for the bounded one"
            )
        elif wanted:
            remedy = "use run(…) for bounded sources, or spark.readStream for a stream"
        else:
            remedy = "use start(…) for streaming sources"
        raise TopologyError(f"source {wrong!r} is {'streaming' if streaming[wrong] else 'bounded'}: {remedy}")
    sinks = _sinks(flow, sink, dead_letters)
    names = [n for n in sinks if n != DEAD_LETTERS]
    topology = flow.topology(servers, routing=routing, sinks=names, prune=prune)
    diverts = [d.name for d in flow.declared if d.on_error == "divert"]
    if diverts and dead_letters is None:
        raise TopologyError(
            f"operator {diverts[0]!r} diverts failing rows, but there is no dead_letters= sink for them"
        )
    storage = Storage(checkpoint)
    ledger = Ledger(storage, topology, mode, clock=clock, retain=retain, drop_state=drop_state)
    session = next(iter(flow.frames.values())).sparkSession
    query = Query(topology, storage, ledger, session)
    if governed(topology):
        configs: list[Locality] = []
        for config in [routing, *(d.grouping for d in flow.declared)]:
            if isinstance(config, Locality) and config not in configs:
                configs.append(config)
        if len(configs) > 1:
            raise TopologyError(
                "operators name different weir.Locality(…) settings; one manager places the keys of all, so use one"
            )
        query._learner = Learner(configs[0], topology, storage)
    return _Driver(flow, topology, storage, ledger, query, sinks, query._learner), query


def start(
    flow: Flow,
    checkpoint: str,
    *,
    servers: int,
    routing: Grouping | Locality | None,
    sink: Any,
    dead_letters: Any,
    trigger: dict[str, Any],
    prune: bool,
    retain: int,
    drop_state: tuple[str, ...],
    clock: Callable[[], int] | None,
    name: str | None,
) -> Query:
    """Starts a streaming query; see :meth:`weir.Flow.start`."""
    driver, query = _open(
        flow, checkpoint, "streaming", servers, routing, sink, dead_letters, prune, retain, drop_state, clock
    )

    def on_batch(frame: DataFrame, batch: int) -> None:
        try:
            driver.batch(frame, batch)
        except Exception as error:
            query._error = error if isinstance(error, WeirError) else query._error
            if query._error is None:
                query._error = error
            traceback.clear_frames(error.__traceback__)
            raise

    writer = (
        unite(flow.frames, driver.topology)
        .writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", driver.storage.location.rstrip("/") + "/source")
    )
    if trigger:
        writer = writer.trigger(**trigger)
    if name:
        writer = writer.queryName(name)
    query._doing = "waiting for data"
    query._stream = writer.start()
    return query


def run(
    flow: Flow,
    checkpoint: str,
    *,
    servers: int,
    routing: Grouping | Locality | None = None,
    sink: Any = None,
    dead_letters: Any = None,
    prune: bool = True,
    retain: int = 10,
    drop_state: tuple[str, ...] = (),
    clock: Callable[[], int] | None = None,
) -> Query:
    """Runs bounded sources to their end; see :meth:`weir.Flow.run`."""
    driver, query = _open(
        flow,
        checkpoint,
        "bounded",
        servers,
        routing,
        sink,
        dead_letters,
        prune,
        retain,
        tuple(drop_state),
        clock,
    )
    session = own_session(query._session)
    rows = unite(flow.frames, driver.topology)
    try:
        driver.prepare(session)
        driver.batch(rows, 0)
        if any(n.window is not None or n.held is not None for n in driver.topology.stateful):
            driver.batch(rows.limit(0), 1, end_of_input=True)
    except Exception as error:
        query._error = error
        raise
    query._doing = "finished"
    return query
