"""The running query: takes micro-batches from Spark, plans, runs, commits, delivers."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.elasticity.autoscale import Autoscale
from weir.elasticity.decision import Decision
from weir.elasticity.explain import text
from weir.engine.documents import DEAD_LETTERS, BatchPlan, Commit, Layout, Manifest
from weir.engine.learning import Learner, governed
from weir.engine.ledger import Ledger, latest_commit
from weir.engine.metrics.load import Load
from weir.engine.metrics.progress import summarise
from weir.engine.migrate import manifest_of
from weir.engine.requests import SLOT_WAIT, Request
from weir.engine.rescale import Build, change, moved_keys
from weir.engine.server import DEAD_LETTER_SCHEMA
from weir.engine.tables import buckets_in_force, load_table
from weir.engine.whereabouts import Neighbourhood
from weir.errors import EngineError, TopologyError, WeirError, did_you_mean
from weir.faults import reach
from weir.graph.model import Topology, fingerprint
from weir.locality.config import Locality
from weir.locality.table import RoutingTable
from weir.network.racks import Racks, RacksLike
from weir.routing.base import Grouping
from weir.routing.locality_aware import NO_TABLE
from weir.spark.job import BatchRunner, translated, unite
from weir.spark.probing import locate, measure
from weir.spark.scaler import Pending, Scaler
from weir.spark.session import own_session
from weir.spark.state import output_frame, state_frame
from weir.state.storage import Storage

if TYPE_CHECKING:
    from weir.flow import Flow

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
        self._scaler: Scaler | None = None
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
        places = np.asarray(self.topology.by_name[name].placement, np.int32)
        rule = buckets_in_force(self._storage, last.layout, name) if last else None
        buckets = None if rule is None else places[rule.homes]
        return RoutingTable(
            table.hashes, places[table.instances], self.topology.servers, name, version, buckets=buckets
        )

    def scale_out(
        self,
        machines: int = 1,
        *,
        dry_run: bool = False,
        wait: float = 0.0,
        strategy: str = "stela",
        timeout: float = SLOT_WAIT,
        share_slots: bool = False,
        whole_hosts: bool = False,
    ) -> Decision:
        """Adds servers with the next batch; keys move there with their state, and the stream goes on.

        Operators with a fixed parallelism get instances on the new servers by the strategy, Stela's by default:
        congested ones first, those on which most of the output depends before others. What lives everywhere gets
        an instance on every new server. Existing instances stay where they are.

        Parameters
        ----------
        machines
            How many servers to add; each needs a task slot.
        whole_hosts
            Count hosts instead: as many servers are added for each as the hosts of now have on average.
        dry_run
            Only say what would be done; :meth:`explain_scaling` prints it.
        wait
            Seconds to wait until the change is committed; 0 returns at once, and the next batch makes it.
        strategy
            ``"stela"``, or a rival: ``"gain"``, ``"default"`` …; see :data:`weir.elasticity.STRATEGIES`.
        timeout
            Seconds to wait for executors, where there are too few slots and the cluster can be asked for more.
        share_slots
            Let servers take turns on the slots there are.
        """
        request = Request("out", machines, (), strategy, timeout, share_slots, whole_hosts=whole_hosts)
        return self._scale(request, dry_run, wait)

    def scale_in(
        self,
        machines: int = 1,
        *,
        hosts: Sequence[str] = (),
        dry_run: bool = False,
        wait: float = 0.0,
        strategy: str = "stela",
        release: bool = True,
        whole_hosts: bool = False,
    ) -> Decision:
        """Lets servers go with the next batch, after their keys' state has moved to the others.

        The servers whose instances matter least to the output go first (lowest sum of effective throughput
        percentage); with ``whole_hosts``, the hosts whose servers matter least; with ``hosts``, those that are named.
        Executors that are no longer needed are given back to the cluster, unless ``release`` is False. See
        :meth:`scale_out` for the other parameters.
        """
        request = Request("in", machines, tuple(hosts), strategy, release=release, whole_hosts=whole_hosts)
        return self._scale(request, dry_run, wait)

    def _scale(self, request: Request, dry_run: bool, wait: float) -> Decision:
        assert self._scaler is not None
        if not dry_run and not self.is_active:
            raise EngineError(
                "only a running streaming query scales; start another number of servers otherwise"
            )
        pending = self._scaler.ask(request, dry_run=dry_run)
        if not dry_run and wait:
            if not pending.done.wait(wait) and self._scaler.withdraw(pending):
                raise EngineError(
                    f"no batch began within {wait:g} s, so the request was withdrawn and nothing has changed"
                )
            if pending.error is not None:
                raise pending.error
        return pending.decision

    def explain_scaling(self, decision: Decision) -> None:
        """Prints what a scaling decision does and why: congestion, ETP, chosen operators, and the DAG."""
        assert self._scaler is not None
        print(text(decision, self._scaler.load.situation()))

    @property
    def scalings(self) -> list[dict[str, Any]]:
        """Every change of servers since this start, those refused in automatic mode included."""
        return [] if self._scaler is None else list(self._scaler.history)

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
        learner: Learner | None,
        load: Load,
        scaler: Scaler,
        build: Build,
        declared: str,
        racks: Racks | None = None,
        parcels: bool = True,
    ) -> None:
        self.learner, self.load, self.scaler = learner, load, scaler
        by_hosts = learner is not None and learner.config.racks == "hosts"
        self.near = Neighbourhood(topology, racks, wants_places=by_hosts)
        self._build, self._declared, self._parcels = build, declared, parcels
        self._ended = 0.0
        self._was = topology.servers
        self._before: Manifest | None = None  # the state by the servers' old numbers, while these change
        self.flow, self.topology, self.storage, self.ledger = flow, topology, storage, ledger
        self.query, self.sinks = query, sinks
        self.runner: BatchRunner | None = None

    def prepare(self, session: SparkSession) -> BatchRunner:
        if self.runner is None:
            learning = self.learner.learning if self.learner else None
            self.runner = BatchRunner(session, self.topology, self.storage, learning, self._parcels)
            if self.ledger.needs_migration:
                assert self.ledger.last is not None
                self.query._doing = "laying out state anew"
                self.ledger.migrate(*manifest_of(self.topology, self.runner.lay_out(self.ledger.last)))
            self.look_around(self.runner)
            if self.learner is not None and self.ledger.last is not None:
                self.learner.start(self.ledger.last.tables, self.ledger.last.manager, self.ledger.layout)
        return self.runner

    def look_around(self, runner: BatchRunner) -> None:
        """Finds out where servers are, and what distances cost, if somebody routes by it or leaves rows on hosts."""
        if not (self.near.wants_places or (runner.parcels and not runner.hosts)):
            return
        self.query._doing = "locating servers"
        said = locate(runner.homes)
        runner.hosts = [said[server][0] for server in range(self.topology.servers)]
        if self.near.wants_places:
            places = self.near.start(said)
            if self.near.wants_profile:
                self.query._doing = "probing the network"
                self.near.measured(*measure(runner.homes, places, self.storage))

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
        plan, scaling = self.plan(batch, end_of_input)
        planned = time.perf_counter()
        reports, stats = runner.run(rows, plan, self.ledger.manifest, self._before)
        reach("job-done", batch)
        ran = time.perf_counter()
        self.near.observe(plan.servers, reports)
        progress = summarise(self.topology, plan, reports, self.ledger, self.near.locator)
        progress |= self.near.summary()
        progress["seconds"] = {"plan": planned - began, "job": ran - planned}
        if runner.lost is not None:
            progress["ran_again"] = runner.lost
        self.load.observe(reports, ran - began, began - self._ended if self._ended else 0.0)
        progress["load"] = self.load.summary()
        if plan.origin is not None:
            progress["scaled"] = {
                "from": self._was,
                "to": plan.servers,
                "moved_keys": moved_keys(reports),
            }
        memory = None
        if self.learner is not None:
            progress["routing"] = self.learner.summary(plan)
            progress["moved_keys"] = sum(m.file.rows for m in plan.moves)
            if self.learner.light or batch % SAVE_MANAGER_EVERY == SAVE_MANAGER_EVERY - 1:
                memory = self.learner.save(batch)
        commit = self.ledger.commit(plan, reports, progress, memory)
        if self.learner is not None and stats:
            self.learner.observe(stats)
        hosts = runner.hosts = [server["host"] for server in progress["servers"]]
        runner.row_bytes = progress["bytes_in"] / progress["rows"] if progress["rows"] else 0.0
        self.scaler.committed(scaling, runner.homes, hosts, progress.get("scaled", {}))
        self._before = None
        self.deliver(session, commit)
        self.scaler.watch()
        if batch % CLEAN_EVERY == CLEAN_EVERY - 1:
            self.ledger.clean()
        self._ended = time.perf_counter()
        progress["seconds"]["batch"] = self._ended - began
        self.query._recent.append(progress)
        self.query._doing = "waiting for data"

    def plan(self, batch: int, end_of_input: bool) -> tuple[BatchPlan, Pending | None]:
        """What the batch will do, and the scaling it carries out; one that was planned before does the same again."""
        known = self.ledger.planned(batch)
        if known is None:
            self._keep_offsets(batch)
            pending = self.scaler.next()
            if pending is not None and (plan := self._scaling_plan(batch, end_of_input, pending)) is not None:
                return plan, pending
            return self._ordinary_plan(batch, end_of_input), None
        if known.origin is not None:
            self._go_over(known)
        elif self.learner is not None:
            self.learner.agree(known.tables)
        return known, None

    def _keep_offsets(self, batch: int) -> None:
        """What Spark wrote down about the batch's input must not be lost where our commit of it is not."""
        if self.storage.is_local:
            names = [f"{batch}", f".{batch}.crc", f"{batch}.compact", f".{batch}.compact.crc"]
            self.storage.keep(*(f"source/{where}/{n}" for where in ("offsets", "sources/*") for n in names))

    def _scaling_plan(self, batch: int, end_of_input: bool, pending: Pending) -> BatchPlan | None:
        """The plan of a batch that changes the servers; written, it is the point of no return."""
        last = self.ledger.last
        assert last is not None
        try:
            made = change(
                pending.decision,
                self.topology,
                self._build,
                self.storage,
                batch,
                self.ledger.layout,
                self._declared,
                last.tables,
                self.learner.weights if self.learner is not None else None,
            )
        except WeirError as error:
            self.scaler.refused(pending, error)
            return None
        plan = self.ledger.plan(
            batch,
            end_of_input=end_of_input,
            tables={**last.tables, **made.tables},
            table_version=last.table_version + 1,
            layout=made.layout,
            origin=made.origin,
            network=self.near.network(made.layout.servers),
        )
        self._go_over(plan)
        return plan

    def _go_over(self, plan: BatchPlan) -> None:
        """From now on with the servers of a plan."""
        assert plan.layout is not None
        assert plan.origin is not None
        assert self.runner is not None
        self._was, self._before = self.topology.servers, self.ledger.manifest
        self.topology = self._build(plan.layout.servers, plan.layout.placements)
        self.query.topology = self.topology
        self.ledger.adopt(self.topology, plan)
        if self.learner is not None:
            self.learner.rescale(self.topology, plan.tables, plan.layout)
        self.runner.rescale(self.topology, plan.origin, self.learner.learning if self.learner else None)
        self.load.rescale(self.topology)

    def _ordinary_plan(self, batch: int, end_of_input: bool) -> BatchPlan:
        ledger, learner = self.ledger, self.learner
        if learner is None:
            return ledger.plan(
                batch, end_of_input=end_of_input, network=self.near.network(self.topology.servers)
            )
        last = ledger.last
        if learner.config.racks == "hosts":
            learner.manager.surround(self.near.tree(learner.manager.servers))
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
            network=self.near.network(self.topology.servers),
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
    autoscale: Autoscale | None = None,
    racks: RacksLike | None = None,
    parcels: bool = True,
) -> tuple[_Driver, Query]:
    known_racks = None if racks is None else Racks.of(racks)
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

    def build(count: int, placements: Mapping[str, Sequence[int]]) -> Topology:
        return flow.topology(count, routing=routing, sinks=names, prune=prune, placements=placements)

    declared = fingerprint(topology)
    layout, topology = _scaled(storage, topology, declared, build)
    ledger = Ledger(storage, topology, mode, clock=clock, retain=retain, drop_state=drop_state, layout=layout)
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
    load = Load(topology)
    scaler = query._scaler = Scaler(storage, load, session, autoscale)
    parts = (query._learner, load, scaler, build, declared, known_racks, parcels)
    return _Driver(flow, topology, storage, ledger, query, sinks, *parts), query


def _scaled(
    storage: Storage, topology: Topology, declared: str, build: Build
) -> tuple[Layout | None, Topology]:
    """The layout and topology to go on with: as scaling has left them, unless the application has changed."""
    last = latest_commit(storage)
    if last is None or last.layout is None:
        return None, topology
    if last.layout.declared == declared:
        return last.layout, build(last.layout.servers, last.layout.placements)
    if last.signature == topology.signature():  # the code has caught up with what scaling did
        return msgspec.structs.replace(last.layout, declared=declared), topology
    return None, topology


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
    autoscale: Autoscale | None = None,
    racks: RacksLike | None = None,
    parcels: bool = True,
) -> Query:
    """Starts a streaming query; see :meth:`weir.Flow.start`."""
    driver, query = _open(
        flow,
        checkpoint,
        "streaming",
        servers,
        routing,
        sink,
        dead_letters,
        prune,
        retain,
        drop_state,
        clock,
        autoscale,
        racks,
        parcels,
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
    racks: RacksLike | None = None,
    parcels: bool = True,
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
        racks=racks,
        parcels=parcels,
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
