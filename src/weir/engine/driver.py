"""The batch loop: plan → run → commit → deliver. It knows a :class:`Runner`, not Spark.

A runner runs the tasks of a batch somewhere: as Spark jobs (:mod:`weir.spark.job`), or in this process
(:mod:`weir.testing`). Everything that makes a batch happen exactly once is here and in the ledger.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from weir.engine.alarms import NextAlarms
from weir.engine.arrays import table_schema
from weir.engine.documents import (
    DEAD_LETTERS,
    BatchPlan,
    Claim,
    Commit,
    FileRef,
    Manifest,
)
from weir.engine.invariants import check
from weir.engine.job import DEAD_LETTER_SCHEMA
from weir.engine.learning import Learning, learner_of
from weir.engine.ledger import Ledger
from weir.engine.metrics.load import Load
from weir.engine.metrics.progress import Progress
from weir.engine.metrics.summary import summarise
from weir.engine.outcome import Outcome
from weir.engine.relayout import lay_out
from weir.engine.rescale import Build, change, moved_keys
from weir.engine.scaler import Pending, Scaler
from weir.engine.whereabouts import Whereabouts
from weir.errors import CheckpointMismatch, WeirError
from weir.faults import reach
from weir.graph.model import LATE, Topology
from weir.network.distance import Place
from weir.network.profile import Profile
from weir.network.racks import Racks
from weir.options import Options
from weir.state.storage import Storage

CLEAN_EVERY = 10
SAVE_MANAGER_EVERY = 10
RECENT = 100  # batches whose progress is kept at hand


class Runner(Protocol):
    """Runs batches of one topology. ``Rows`` is whatever its source hands over: the loop only passes it on."""

    @property
    def execution(self) -> str:
        """How batches run, and why so: for people."""

    @property
    def knows_hosts(self) -> bool:
        """Whether it knows where servers are, or does not care."""

    def start(self, rows: Any, topology: Topology, learning: Learning | None, claim: Claim) -> None:
        """Get ready for the first batch; called before each, does nothing after the first.

        Processes that run tasks must find ``claim`` in the checkpoint (:func:`weir.engine.fence.check_shared`).
        """

    def locate(self) -> dict[int, tuple[str, str]]:
        """Return host and process of each server, and remember the hosts."""

    def measure(self, places: list[Place]) -> tuple[Profile, dict[str, Any]]:
        """Return what distances cost here, and what was measured or why not."""

    def each(self, count: int, task: Callable[[int], Any]) -> list[Any]:
        """Run a task for each number below ``count``; return their answers, which are JSON-able."""

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        """Go over to other servers with the next batch."""

    def no_rows(self, topology: Topology) -> Any:
        """Return what the source would hand over if it had nothing."""

    def run(self, rows: Any, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> Outcome:
        """Run a batch."""

    def committed(self, progress: Progress) -> None:
        """Hear what a batch did, once it has happened."""

    def claim(self, sink: Any, identity: str, fresh: bool) -> None:
        """Make sure that a sink is not that of another checkpoint; ``fresh``: this one has no batch yet."""

    def deliver(self, sink: Any, files: list[FileRef], schema: pa.Schema, batch: int) -> None:
        """Hand a batch's rows to a sink."""

    def ensure_slots(self, servers: int, timeout: float) -> None:
        """Make sure that so many servers can run at once, or raise an EngineError; nothing has changed then."""

    def release(self, hosts: set[str] | None) -> list[str] | None:
        """Give back what servers no longer need; the names of executors, None where there are none."""

    def close(self) -> None:
        """End what runs between batches; a batch that runs ends with an error."""


@dataclass
class Status:
    """What the loop is doing right now."""

    message: str = "starting"
    error: Exception | None = None
    recent: deque[Progress] = field(default_factory=lambda: deque(maxlen=RECENT))


class Driver:
    """Carries out the batches of one query, each exactly once."""

    def __init__(
        self,
        topology: Topology,
        storage: Storage,
        ledger: Ledger,
        runner: Runner,
        sinks: Mapping[str, Any],
        options: Options,
        build: Build,
        declared: str,
    ) -> None:
        self.topology, self.storage, self.ledger, self.runner = topology, storage, ledger, runner
        self.sinks = sinks
        self.status = Status()
        self.learner = learner_of(topology, storage)
        self.load = Load(topology)
        self.scaler = Scaler(storage, self.load, runner, options.autoscale)
        by_hosts = self.learner is not None and self.learner.config.racks == "hosts"
        racks = None if options.racks is None else Racks.of(options.racks)
        self.whereabouts = Whereabouts(topology, racks, wants_places=by_hosts)
        self._build, self._declared = build, declared
        self._dropped = set(options.drop_state)
        self.source = ""  # whose batches it is handed: the id of Spark's own query
        self.alarms = NextAlarms(storage)
        self._busy = threading.RLock()  # one batch at a time, whoever asks for it
        self._started = False
        self._ended = 0.0
        self._servers_before = topology.servers
        self._before: Manifest | None = None  # the state by the servers' old numbers, while these change
        if ledger.last is not None and ledger.last.progress:
            self.status.recent.append(Progress.from_dict(ledger.last.progress))

    # ------------------------------------------------------------------ the loop

    def batch(self, rows: Any, number: int, *, end_of_input: bool = False) -> None:
        """Process one micro-batch exactly once; ``number`` is the source's own."""
        with self._busy:
            self.start(rows)
            last = self.ledger.last
            self._check_source()
            if last is not None and (number == last.handed_over or any(last.outputs.values())):
                self.deliver(last)  # it has happened; only its delivery may be owed
            if last is not None and number == last.handed_over:
                return
            self._check_next(number)
            self._keep_offsets(number)
            self._carry_out(rows, number, end_of_input)

    def tick(self, waited: int = 0) -> bool:
        """Run a batch without rows if time is up for something: a window closes, a timer goes off.

        Call it only while the source has nothing new; ``waited`` is the longest time in µs since it was last asked.
        Such a batch is planned, committed and delivered like any other. Its number is ours alone: the commit says which
        batch of the source came last. Returns whether there was anything to do.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            last, quiet_until = self.ledger.last, self.ledger.read_clock() - waited
            if last is None or last.end_of_input:
                return False
            due = self.alarms.due(self.ledger, quiet_until)
            if due or not self._started:
                rows = self.runner.no_rows(self.topology)
                self.start(rows)
                self._check_source()
                if any(last.outputs.values()):
                    self.deliver(last)
            if due:
                self._carry_out(rows, last.handed_over, False, quiet_until)
            return due
        finally:
            self._busy.release()

    def _carry_out(self, rows: Any, number: int, end_of_input: bool, quiet_until: int | None = None) -> None:
        batch = 0 if self.ledger.last is None else self.ledger.last.batch + 1
        began = time.perf_counter()
        self.status.message = f"batch {batch}"
        plan, scaling = self._plan(batch, end_of_input, quiet_until)
        planned = time.perf_counter()
        outcome = self.runner.run(rows, plan, self.ledger.manifest, self._before)
        counts = check(self.topology, outcome.reports, self.ledger.manifest, self.ledger.counts)
        reach("job-done", batch)
        ran = time.perf_counter()
        progress = self._progress(plan, outcome, ran - began, began - self._ended if self._ended else 0.0)
        progress.seconds.plan, progress.seconds.job = planned - began, ran - planned
        memory = self._memory(batch)
        commit = self.ledger.commit(plan, outcome.reports, progress, counts, memory, self.source, number)
        if self.learner is not None and outcome.stats:
            self.learner.observe(outcome.stats)
        self.runner.committed(progress)
        self.scaler.committed(scaling, [server.host for server in progress.servers], progress.scaled)
        self._before = None
        self.deliver(commit)
        self.scaler.watch()
        if batch % CLEAN_EVERY == CLEAN_EVERY - 1:
            self.ledger.clean()
        self._ended = time.perf_counter()
        progress.seconds.batch = self._ended - began
        self.status.recent.append(progress)
        self.status.message = "waiting for data"

    def _check_source(self) -> None:
        """Refuse batches of another source than the one that the last commit has had: their numbers mean other rows."""
        last = self.ledger.last
        if last is not None and last.source and self.source and last.source != self.source:
            raise CheckpointMismatch(
                f"{self.storage.root}: the folder 'source', Spark's own record of what it has read, is not the one "
                "that the commits were made with: it was deleted or replaced. Going on would skip rows or count them "
                "twice. Restore it from the same copy as the commits, or start with an empty checkpoint folder."
            )

    def _check_next(self, batch: int) -> None:
        """Refuse any batch but the next one: the source must go on where the last commit ended."""
        last = self.ledger.last
        expected = 0 if last is None else last.handed_over + 1
        if batch != expected:
            raise CheckpointMismatch(
                f"{self.storage.root}: the source hands over batch {batch}, but batch {expected} is next. The folder "
                "'source' and the commits are not of one run: part of the checkpoint was deleted or replaced. Restore "
                "both from the same copy, or start with an empty checkpoint folder."
            )

    def start(self, rows: Any) -> None:
        """Get ready for the first batch: lay state out anew if the application has changed, locate servers."""
        self.runner.start(rows, self.topology, self.learning, self.ledger.fence.claim)
        if self._started:
            return
        last = self.ledger.last
        self._check_owed()
        for sink in self.sinks.values():
            self.runner.claim(sink, self.ledger.identity, fresh=last is None)
        if self.ledger.needs_migration:
            assert last is not None
            self.status.message = "laying out state anew"
            self.ledger.migrate(*lay_out(self.topology, last, self.storage, self.runner.each))
        self._locate()
        if self.learner is not None and self.ledger.last is not None:
            last = self.ledger.last
            self.learner.start(last.tables, last.manager, self.ledger.layout)
        self._started = True  # only now: what was refused is refused again

    @property
    def finished(self) -> bool:
        """Whether a bounded input has been processed to its end, and delivered."""
        last = self.ledger.last
        if last is None or (self.needs_end_of_input and not last.end_of_input):
            return False
        return not self.sinks or self.ledger.was_delivered(last.batch)

    @property
    def needs_end_of_input(self) -> bool:
        """Whether something is left to do when a bounded input has ended: windows to close, states to merge."""
        return any(n.times or n.held is not None for n in self.topology.stateful)

    @property
    def learning(self) -> Learning | None:
        """What tasks are to count."""
        return None if self.learner is None else self.learner.learning

    def _locate(self) -> None:
        """Find out where servers are, and what distances cost, if somebody routes by it or leaves rows on hosts."""
        if not self.whereabouts.wants_places and self.runner.knows_hosts:
            return
        self.status.message = "locating servers"
        places = self.whereabouts.start(self.runner.locate())
        if self.whereabouts.wants_profile:
            self.status.message = "probing the network"
            self.whereabouts.measured(*self.runner.measure(places))

    def _progress(self, plan: BatchPlan, outcome: Outcome, seconds: float, rested: float) -> Progress:
        reports, learner = outcome.reports, self.learner
        self.whereabouts.observe(plan.servers, reports)
        before = self.ledger.last.keys if self.ledger.last else {}
        progress = summarise(self.topology, plan, reports, before, self.whereabouts.locator)
        progress.moved_servers = self.whereabouts.moved
        progress.probe = self.whereabouts.probed or None
        progress.ran_again, progress.execution = outcome.ran_again, outcome.execution
        self.load.observe(reports, seconds, rested)
        progress.load = self.load.summary()
        if plan.origin is not None:
            progress.scaled = {
                "from": self._servers_before,
                "to": plan.servers,
                "moved_keys": moved_keys(reports),
            }
        if learner is not None:
            progress.routing = learner.summary(plan)
            progress.moved_keys = sum(m.file.rows for m in plan.moves)
        return progress

    def _memory(self, batch: int) -> FileRef | None:
        """Save what the locality manager remembers: with every batch if it is little, else every few."""
        learner = self.learner
        if learner is None:
            return None
        due = learner.light or batch % SAVE_MANAGER_EVERY == SAVE_MANAGER_EVERY - 1
        return learner.save(batch) if due else None

    # ------------------------------------------------------------------ plan

    def _plan(
        self, batch: int, end_of_input: bool, quiet_until: int | None
    ) -> tuple[BatchPlan, Pending | None]:
        """Return what the batch will do, and the scaling it carries out; a batch planned before does the same again."""
        planned = self.ledger.planned(batch)
        if planned is None:
            pending = self.scaler.next()
            if pending is not None and (plan := self._scaling_plan(batch, end_of_input, pending)) is not None:
                return plan, pending
            return self._ordinary_plan(batch, end_of_input, quiet_until), None
        if planned.origin is not None:
            self._change_servers(planned)
        elif self.learner is not None:
            self.learner.agree(planned.tables)
        return planned, None

    def _keep_offsets(self, batch: int) -> None:
        """Flush what Spark wrote down about the batch's input: it must not be lost where our commit of it is not."""
        if self.storage.is_local:
            names = [f"{batch}", f".{batch}.crc", f"{batch}.compact", f".{batch}.compact.crc"]
            self.storage.keep(*(f"source/{where}/{n}" for where in ("offsets", "sources/*") for n in names))

    def _scaling_plan(self, batch: int, end_of_input: bool, pending: Pending) -> BatchPlan | None:
        """Return the plan of a batch that changes the servers; written, it is the point of no return."""
        last = self.ledger.last
        assert last is not None
        try:
            changed = change(
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
            tables={**last.tables, **changed.tables},
            table_version=last.table_version + 1,
            layout=changed.layout,
            origin=changed.origin,
            network=self.whereabouts.network(changed.layout.servers),
        )
        self._change_servers(plan)
        return plan

    def _change_servers(self, plan: BatchPlan) -> None:
        """Go on with the servers of a plan."""
        assert plan.layout is not None
        assert plan.origin is not None
        self._servers_before, self._before = self.topology.servers, self.ledger.manifest
        self.topology = self._build(plan.layout.servers, plan.layout.placements)
        self.ledger.adopt(self.topology, plan)
        if self.learner is not None:
            self.learner.rescale(self.topology, plan.tables, plan.layout)
        self.runner.rescale(self.topology, plan.origin, self.learning)
        self.load.rescale(self.topology)

    def _ordinary_plan(self, batch: int, end_of_input: bool, quiet_until: int | None) -> BatchPlan:
        ledger, learner = self.ledger, self.learner
        network = self.whereabouts.network(self.topology.servers)
        if learner is None:
            return ledger.plan(batch, end_of_input=end_of_input, network=network, quiet_until=quiet_until)
        last = ledger.last
        if learner.config.racks == "hosts":
            learner.manager.set_racks(self.whereabouts.tree(learner.manager.servers))
        tables, version, moves = learner.next_plan(
            batch, dict(last.tables) if last else {}, last.table_version if last else 0
        )
        return ledger.plan(
            batch,
            end_of_input=end_of_input,
            tables=tables,
            table_version=version,
            moves=moves,
            hot={name: [int(h) for h in hashes] for name, hashes in learner.hot.items() if len(hashes)},
            network=network,
            quiet_until=quiet_until,
        )

    # ------------------------------------------------------------------ deliver

    def _check_owed(self) -> None:
        """Refuse to forget rows of the last batch whose operator, or its sink, the application no longer has."""
        last = self.ledger.last
        if last is None or self.ledger.was_delivered(last.batch):
            return
        for name, files in last.outputs.items():
            if files and name not in self.sinks and name not in self._dropped:
                raise CheckpointMismatch(
                    f"{self.storage.root}: batch {last.batch} has {sum(f.rows for f in files)} rows for the sink of "
                    f"{name!r}, which have not been delivered, and there is no such sink now. Start once with it, or "
                    f"pass drop_state=[{name!r}] to give them up."
                )

    def deliver(self, commit: Commit) -> None:
        """Hand a batch's outputs to the sinks, unless they have had it."""
        if not self.sinks or self.ledger.was_delivered(commit.batch):
            return
        for name, sink in self.sinks.items():
            schema = DEAD_LETTER_SCHEMA if name == DEAD_LETTERS else self.topology.sink_schema(name)
            files = commit.outputs.get(name, [])
            if files:  # as they were written: the application may have changed since
                schema = table_schema(self.storage, files[0])
            if files or not (name == DEAD_LETTERS or name.endswith(LATE)):
                self.runner.deliver(sink, files, schema, commit.batch)
        self.ledger.delivered(commit.batch)

    def close(self) -> None:
        """Stop what runs in the background."""
        self.runner.close()
        if self.learner is not None:
            self.learner.close()
