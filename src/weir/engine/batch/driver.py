"""The batch loop: plan → run → commit → deliver. It knows a :class:`~weir.engine.batch.runner.Runner`, not Spark.

Everything that makes a batch happen exactly once is here and in the ledger.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from weir.compiled import compile_all, declared
from weir.engine.batch.delivery import Deliveries, Retry, Sinks
from weir.engine.batch.events import BatchDelivered, Lifecycle
from weir.engine.batch.ledger import STREAMING, Ledger, Terms
from weir.engine.batch.restart_checks import check_names, check_next, check_source
from weir.engine.batch.runner import Runner
from weir.engine.batch.source_batching import SourceBatching, next_input
from weir.engine.checkpoint import READ, CheckpointLayout, read_table, write_table
from weir.engine.documents import BatchPlan, Commit, FileRef, Input, Manifest
from weir.engine.metrics.latency import now
from weir.engine.metrics.summary import summarise
from weir.engine.metrics.traffic import ServerLocations
from weir.engine.progress import Progress, Seconds
from weir.engine.steering.learning import learner_of
from weir.engine.steering.load import Load
from weir.engine.steering.rescale import Build, Change, restarted, scaled
from weir.engine.steering.scaler import Pending, Scaler
from weir.engine.task.event_times import watermarks
from weir.engine.task.invariants import check
from weir.engine.task.key_counting import Learning
from weir.engine.task.reports import BatchResult
from weir.errors import CheckpointMismatch, SourceUnavailable, WeirError
from weir.faults import reach
from weir.graph.declare import LISTED
from weir.graph.model import Node, Topology
from weir.logs import about
from weir.network.racks import Racks
from weir.operators.instance import NO_TIME
from weir.operators.read import not_read
from weir.options import Options
from weir.state.segment import NEVER
from weir.state.storage import Storage
from weir.state.view import next_deadline

CLEAN_EVERY = 10
COMPILING = "compiling, once per installation"
ROUND = 60.0  # seconds for which a round of topics goes on while they bring rows,
LINGER = 0.5  # for which it waits for some,
LOOK = 0.01  # and between two looks
SECOND = 1_000_000  # µs

logger = logging.getLogger("weir.engine")


class DueTimers:
    """The next deadlines in the state of a commit, by event time and by the clock; looked up once per commit."""

    def __init__(self, storage: Storage, source_batching: SourceBatching | None = None) -> None:
        self._storage, self._source_batching = storage, source_batching
        self._commit: Commit | None = None
        self._next: dict[str, tuple[int, int]] = {}

    def due(self, ledger: Ledger, quiet_until: int) -> bool:
        """Return whether a batch without rows would find anything due now."""
        last, clock = ledger.last, ledger.read_clock()
        if last is None:
            return False
        if last is not self._commit:
            nodes = [node for node in ledger.topology.stateful if node.wakes]
            self._next = {node.name: self._deadlines(node, last, ledger.expired_until()) for node in nodes}
            self._commit = last
        marks = watermarks(ledger.topology, last, clock, quiet_until)
        reached = ((marks.get(name, NO_TIME), next_) for name, next_ in self._next.items())
        return any(event <= mark or timer <= clock for mark, (event, timer) in reached)

    def quiet_until(self, ledger: Ledger, asked: int) -> int | None:
        """Return until when sources had no rows, if a batch without rows would find anything due now; None if not.

        Spark has asked its own sources by then, but does not hear of brokers that are away. What is cut up here is
        asked again: until it answers that there is nothing, event time stays where the last commit has left it.
        """
        if not self.due(ledger, asked):
            return None
        assert ledger.last is not None
        if self._are_quiet(ledger.last):
            return asked
        return ledger.last.clock if self.due(ledger, ledger.last.clock) else None

    def _are_quiet(self, last: Commit) -> bool:
        try:
            if self._source_batching is not None:
                self._source_batching.begin(last, -2, {})  # a round that never was
        except SourceUnavailable:
            return False
        return self._source_batching is None or not self._source_batching.behind

    def _deadlines(self, node: Node, last: Commit, expired_until: int) -> tuple[int, int]:
        refs = [ref for server in last.manifest.get(node.name, []) for ref in server]
        mark = last.watermarks.get(node.name, NO_TIME)
        event = next_deadline(self._storage, refs, mark) if node.declared.timed else NEVER
        timer = next_deadline(self._storage, refs, last.clock) if node.sets_timers else NEVER
        if node.ttl is not None and (end := next_deadline(self._storage, refs, expired_until)) != NEVER:
            # later by a part of the ttl, so that keys go together
            timer = min(timer, end + min(max(node.ttl // 10, SECOND), 60 * SECOND))
        return event, timer


class Cleaning:
    """Deletes files that no retained commit names, in the midst of a batch or meanwhile."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, meanwhile: bool) -> None:
        """Begin to delete; what was found wrong the last time is raised, with ``meanwhile`` the next time."""
        self.end()
        error, self._error = self._error, None
        if error is not None:
            raise error
        # here, in the thread that writes documents: what it is writing must not be taken for what a dead driver left
        self._ledger.checkpoint.delete_unfinished()
        if not meanwhile:
            self._ledger.clean()
            return
        self._thread = threading.Thread(target=self._run, name="weir-clean", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until nothing is being deleted."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            self._ledger.clean()
        except Exception as error:
            self._error = error


class Drained(Exception):
    """A batch does not begin, since the query is about to be stopped."""


class Driver:
    """Carries out the batches of one query, each exactly once."""

    def __init__(
        self,
        topology: Topology,
        ledger: Ledger,
        runner: Runner,
        sinks: Sinks,
        options: Options,
        build: Build,
        declared: str,
        source_batching: SourceBatching | None = None,
    ) -> None:
        self.source_batching = source_batching
        storage = runner.storage
        self.topology, self.storage, self.ledger, self.runner = topology, storage, ledger, runner
        self.sinks = sinks
        self.lifecycle = Lifecycle(ledger)
        self.listeners = self.lifecycle.listeners
        self.retry = Retry(self._say)
        self.deliveries = Deliveries(sinks, storage, ledger, runner.tasks, self.retry)
        self.learner = learner_of(topology, storage)
        self.load = Load(topology)
        reconfigure = None if self.learner is None else self.learner.request
        self.scaler = Scaler(storage, self.load, runner.machines, options.autoscale, reconfigure)
        by_hosts = self.learner is not None and self.learner.config.hierarchy == "hosts"
        racks = None if options.racks is None else Racks.of(options.racks)
        self.server_locations = ServerLocations(topology, racks, wants_places=by_hosts or racks is not None)
        self._build, self._declared = build, declared
        self.automatic = options.servers == "auto"  # whether the number of servers was chosen here
        self._forget = options.forget
        self.source = ""  # whose batches it is handed: the id of Spark's own query
        # whether a round goes on while topics bring rows: to begin another one takes longer than a small batch
        self.stays = False
        self._asked_to_end = 0  # how many wait for the end of a round
        self._lingering = False
        self._cleaning = Cleaning(ledger)
        self.due_timers = DueTimers(storage, source_batching)
        self._busy = threading.RLock()  # one batch at a time, whoever asks for it
        self._compiled = self._started = self._draining = False
        self._ended = 0.0
        self._last_seconds: Seconds | None = None
        self._servers_before = topology.servers
        self._before: Manifest | None = None  # the state by the servers' old numbers, while these change
        if ledger.last is not None and ledger.last.progress:
            self.lifecycle.recent.append(ledger.last.progress)

    # ------------------------------------------------------------------ the loop

    def compile(self) -> None:
        """Compile what batches run if this machine has not done so yet: before workers fork, and not in this process.

        After the first call it does nothing.
        """
        if self._compiled:
            return
        self._compiled = True
        if all(function.ready for function in declared()):
            return
        self.lifecycle.message = COMPILING
        logger.info("%s: %s; `weir compile` does it ahead of time", self.storage.location, COMPILING)
        done = self.ledger.fence.preparing(COMPILING)
        try:
            compile_all()
        finally:
            done()
            self.lifecycle.message = "waiting for data"

    def batch(self, rows: Any, number: int, *, end_of_input: bool = False) -> None:
        """Process what the source hands over, exactly once; ``number`` is the source's own.

        That is one batch, or several where the driver cuts sources up.
        """
        with self._busy:
            self._check_open()
            self.start(rows)
            last = self.ledger.last
            check_source(self.storage.root, last, self.source)
            if last is not None and (number == last.handed_over or any(last.outputs.values())):
                self.deliver(last)  # it has happened; only its delivery may be owed
            fresh = last is None or number != last.handed_over
            if fresh:
                check_next(self.storage.root, last, number)
                self._keep_offsets(number)
            source_batching = None if end_of_input else self.source_batching
            if source_batching is not None:
                rows = self._begin(source_batching, rows, number)
            ends = time.monotonic() + (ROUND if self.stays else 0.0)
            while fresh or (source_batching is not None and self._brings(source_batching, number, ends)):
                self._carry_out(
                    rows if fresh else self.runner.sources.without(rows, self.topology), number, end_of_input
                )
                fresh = False
                if source_batching is not None and source_batching.behind:
                    self._check_open()

    def _brings(self, source_batching: SourceBatching, number: int, ends: float) -> bool:
        """Return whether sources that are cut up have something for another batch of the round."""
        quiet, self._lingering = min(ends, time.monotonic() + LINGER), True
        try:
            while not source_batching.behind:
                if time.monotonic() >= quiet or self._draining or self._asked_to_end:
                    return False
                self._look(source_batching, number)
                if not source_batching.behind:
                    time.sleep(LOOK)
            return True
        finally:
            self._lingering = False

    @contextlib.contextmanager
    def prompt(self) -> Iterator[None]:
        """Let rounds end as soon as nothing is left to be read: somebody waits for that."""
        self._asked_to_end += 1
        try:
            yield
        finally:
            self._asked_to_end -= 1

    def _check_open(self) -> None:
        if self._draining:
            raise Drained

    def _begin(self, source_batching: SourceBatching, rows: Any, number: int) -> Any:
        """Look how far the sources reach that are cut up; return the rows of the others."""
        listings = self.runner.sources.listings(rows, self.topology, source_batching.feeds)
        before = None if self.ledger.last is None else self.ledger.last.input
        for name, ref in ({} if before is None else before.read).items():
            if name in listings:
                listings[name] = not_read(listings[name], read_table(self.storage, ref))
        self._look(source_batching, number, listings)
        return self.runner.sources.without(rows, self.topology, source_batching.feeds)

    def _look(
        self, source_batching: SourceBatching, number: int, listings: Mapping[str, pa.Table] | None = None
    ) -> None:
        self.retry.persist(
            "the sources", lambda again: source_batching.begin(self.ledger.last, number, listings or {})
        )

    def tick(self, waited: int = 0) -> bool:
        """Run a batch without rows if time is up for something: a window closes, a timer goes off, a ttl ends.

        Call it only while the source has nothing new; ``waited`` is the longest time in µs since it was last asked.
        Such a batch is planned, committed and delivered like any other. Its number is ours alone: the commit says which
        batch of the source came last. Returns whether there was anything to do.
        """
        if self._draining or not self._busy.acquire(blocking=False):
            return False
        try:
            last, asked = self.ledger.last, self.ledger.read_clock() - waited
            if last is None or last.end_of_input:
                return False
            quiet_until = self.due_timers.quiet_until(self.ledger, asked)
            due = quiet_until is not None and not self._owes_reading(last.batch + 1)
            if due or not self._started:
                rows = self.runner.sources.no_rows(self.topology)
                self.start(rows)
                check_source(self.storage.root, last, self.source)
                if any(last.outputs.values()):
                    self.deliver(last)
            if due:
                self._carry_out(rows, last.handed_over, False, quiet_until)
            return due
        finally:
            self._busy.release()

    def _owes_reading(self, batch: int) -> bool:
        """Return whether a planned batch reads what only a round of its source can bring: it comes with that."""
        planned = self.ledger.planned(batch)
        return planned is not None and planned.input is not None and bool(planned.input.listing)

    def _carry_out(self, rows: Any, number: int, end_of_input: bool, quiet_until: int | None = None) -> None:
        batch = 0 if self.ledger.last is None else self.ledger.last.batch + 1
        about.set({"query": self.storage.location, "batch": batch})
        began = time.perf_counter()
        self.lifecycle.message = f"batch {batch}"
        plan, scaling = self._plan(rows, batch, end_of_input, quiet_until)
        planned = time.perf_counter()
        result = self.runner.run(rows, plan, self.ledger.manifest, self._before)
        counts = check(self.topology, result.reports, self.ledger.manifest, self.ledger.counts)
        reach("job-done", batch)
        ran = time.perf_counter()
        rested = began - self._ended if self._ended else 0.0
        progress = self._progress(plan, result, ran - began, rested)
        progress.seconds = Seconds(waiting=rested, plan=planned - began, job=ran - planned)
        progress.scalings = self.scaler.news(scaling, progress.scaled) or None
        memory = self._memory(batch)
        commit = self.ledger.commit(plan, result.reports, progress, counts, memory, self.source, number)
        committed = time.perf_counter()
        progress.seconds.commit = committed - ran
        self.listeners.tell_of(self.storage.location, progress)
        if self.learner is not None:
            self.learner.observe(result.stats, plan, result.reports, warm=self._ended > 0)
        self.runner.committed(progress)
        self.scaler.committed(scaling, [server.host for server in progress.servers], progress.scaled)
        self._before = None
        self.deliver(commit, progress)
        self.scaler.watch()
        if batch % CLEAN_EVERY == CLEAN_EVERY - 1:
            self._cleaning.begin(meanwhile=self.stays)
        self._ended = time.perf_counter()
        progress.seconds.deliver, progress.seconds.batch = self._ended - committed, self._ended - began
        self._last_seconds = progress.seconds
        if self.source_batching is not None and plan.input is not None and plan.input.listing:
            self.source_batching.reached(plan.input.positions, progress.seconds.batch)
        self.lifecycle.recent.append(progress)
        self.lifecycle.message = "waiting for data"
        self.listeners.tell(BatchDelivered(self.storage.location, progress))

    def leave_open(self) -> None:
        """Let a stream go on from a bounded run, with windows as they are: one commit, after which it can.

        Positions of topics stay. A stream of files lists all there are, so those that were read are written down.
        """
        with self._busy:
            last = self.ledger.last
            assert last is not None
            if last.mode == STREAMING:
                return
            if last.end_of_input:
                raise CheckpointMismatch(
                    f"{self.storage.root}: a run has ended here and closed its windows. Run with an empty checkpoint "
                    "folder and keep_open=True."
                )
            taken = last.input or Input({})
            feeds = {} if self.source_batching is None else self.source_batching.feeds
            done = {n: feeds[n].read(p) for n, p in taken.positions.items() if n in feeds}
            read = {
                n: self._write_read(n, files, last.batch) for n, files in done.items() if files is not None
            }
            positions = {n: p for n, p in taken.positions.items() if n not in read}
            self.ledger.replace(
                msgspec.structs.replace(
                    last,
                    epoch=last.epoch + 1,
                    mode=STREAMING,
                    source="",
                    source_batch=-1,
                    input=msgspec.structs.replace(taken, positions=positions, read={**taken.read, **read}),
                )
            )

    def _write_read(self, source: str, files: pa.Table, batch: int) -> FileRef:
        name = CheckpointLayout.new_file(READ, batch, "files", source.removesuffix(LISTED))
        return write_table(self.storage, name, files)

    def start(self, rows: Any) -> None:
        """Get ready for the first batch: lay state out anew if the application has changed, locate servers."""
        self.runner.start(rows, self.topology, self.learning, self.ledger.fence.claim)
        if self._started:
            return
        last = self.ledger.last
        check_names(
            {} if self.source_batching is None else self.source_batching.feeds,
            last,
            self._forget["positions"],
        )
        self.deliveries.open(self.topology, self._forget["undelivered"])
        self._locate()
        if self.learner is not None and last is not None and not self.ledger.needs_change:
            self.learner.start(last.tables, last.manager, self.ledger.layout)
        self._started = True  # only now: what was refused is refused again

    @property
    def finished(self) -> bool:
        """Whether a bounded input has been processed to its end, and delivered."""
        last = self.ledger.last
        if last is None or last.handed_over < 0 or (self.needs_end_of_input and not last.end_of_input):
            return False
        if self.source_batching is not None and self.source_batching.ended_in_between(last):
            return False
        return not self.sinks or self.ledger.was_delivered(last.batch)

    @property
    def needs_end_of_input(self) -> bool:
        """Whether something is left to do when a bounded input has ended: windows to close, states to merge."""
        if self.source_batching is not None and self.source_batching.grows:
            return True
        return any(n.times for n in self.topology.stateful)

    @property
    def learning(self) -> Learning | None:
        """What tasks are to count."""
        return None if self.learner is None else self.learner.learning

    def _locate(self) -> None:
        """Find out where servers are, if somebody routes by it or leaves rows on hosts."""
        self.lifecycle.message = "locating servers"
        self.server_locations.start(self.runner.locate(self.server_locations.wants_places))

    def _progress(self, plan: BatchPlan, result: BatchResult, seconds: float, rested: float) -> Progress:
        reports, learner = result.reports, self.learner
        self.server_locations.observe(plan.servers, reports)
        before = self.ledger.last.keys if self.ledger.last else {}
        progress = summarise(self.topology, plan, reports, before, self.server_locations.locator)
        progress.time, progress.before = now() / 1e6, self._last_seconds
        progress.restarted = not self._ended and self.ledger.last is not None
        progress.moved_servers = self.server_locations.moved
        progress.ran_again, progress.execution = result.ran_again, result.execution
        if self.source_batching is not None and plan.input is not None and plan.input.listing:
            progress.sources = self.source_batching.about(plan.input.positions)
        self.load.observe(reports, seconds, rested)
        progress.load = self.load.summary()
        if plan.origin is not None:
            progress.scaled = {
                "from": self._servers_before,
                "to": plan.servers,
                "moved_keys": plan.moved_keys,
            }
        if learner is not None:
            progress.routing = learner.summary(plan)
            progress.moved_keys = sum(m.file.rows for m in plan.moves) if plan.origin is None else 0
        return progress

    def _memory(self, batch: int) -> FileRef | None:
        """Return the file of what the locality manager remembers: one per batch if it is little, else now and then."""
        return None if self.learner is None else self.learner.memory(batch)

    # ------------------------------------------------------------------ plan

    def _plan(
        self, rows: Any, batch: int, end_of_input: bool, quiet_until: int | None
    ) -> tuple[BatchPlan, Pending | None]:
        """Return what the batch will do, and the scaling it carries out; a batch planned before does the same again."""
        planned = self.ledger.planned(batch, end_of_input)
        reads = not end_of_input and quiet_until is None
        if planned is None:
            terms = Terms(
                end_of_input, next_input(self.source_batching, self.ledger.last, reads), quiet_until
            )
            if self.ledger.needs_change:
                assert self.ledger.last is not None
                return self._change_plan(
                    batch, restarted(self.topology, self.storage, self.ledger.last), terms
                ), None
            pending = self.scaler.next()
            if pending is not None and (change := self._scaling(pending)) is not None:
                return self._change_plan(batch, change, terms), pending
            return self._ordinary_plan(rows, batch, terms), None
        if reads:
            planned.input = next_input(self.source_batching, self.ledger.last, reads, planned.input)
        if planned.origin is not None:
            if not self.ledger.changing:  # else this batch has failed before, in this very run
                self._change_owners(planned)
        elif self.learner is not None:
            self.learner.agree(planned.tables)
        return planned, None

    def _keep_offsets(self, batch: int) -> None:
        """Flush what Spark wrote down about the batch's input: it must not be lost where our commit of it is not."""
        if self.storage.is_local:
            self.storage.keep(*CheckpointLayout.offsets(batch))

    def _scaling(self, pending: Pending) -> Change | None:
        """Return what a request to scale changes; None if it is refused."""
        last, weigh = self.ledger.last, None if self.learner is None else self.learner.weights
        assert last is not None
        try:
            return scaled(
                pending.decision, self.topology, self._build, self.storage, last, self._declared, weigh
            )
        except WeirError as error:
            self.scaler.refused(pending, error)
            return None

    def _change_plan(self, batch: int, change: Change, terms: Terms) -> BatchPlan:
        """Return the plan of a batch that changes owners of state; written, it is the point of no return."""
        network = self.server_locations.network(len(change.origin))
        plan = self.ledger.plan(batch, replace(terms, change=change, network=network))
        self._change_owners(plan)
        return plan

    def _change_owners(self, plan: BatchPlan) -> None:
        """Go on with the servers and owners of a plan."""
        last, layout = self.ledger.last, plan.layout
        assert last is not None
        assert plan.origin is not None
        restart = self.ledger.needs_change
        self._servers_before = last.servers
        self._before = last.manifest if plan.moves or plan.rewrites else None
        if layout is not None and not restart:
            self.topology = self._build(layout.servers, layout.placements)
        self.ledger.adopt(self.topology, plan)
        if self.learner is not None and restart:
            self.learner.start(plan.tables, last.manager, layout)
        elif self.learner is not None:
            self.learner.rescale(self.topology, plan.tables, layout)
        if not restart:
            self.runner.rescale(self.topology, plan.origin, self.learning)
            self.load.rescale(self.topology)

    def _ordinary_plan(self, rows: Any, batch: int, terms: Terms) -> BatchPlan:
        ledger, learner = self.ledger, self.learner
        terms = replace(terms, network=self.server_locations.network(self.topology.servers))
        if learner is None:
            return ledger.plan(batch, terms)
        last = ledger.last
        if learner.config.hierarchy == "hosts":
            learner.manager.set_hierarchy(self.server_locations.tree(learner.manager.servers))
        coming = None
        if learner.looks_ahead and terms.quiet_until is None:
            assert learner.ahead is not None
            again = learner.config.look_ahead is True  # the source may be read twice, where that must be
            coming = self.runner.look_ahead(rows, batch, learner.ahead, again)
            reach("keys-counted", batch)
        tables, version = (dict(last.tables), last.table_version) if last else ({}, 0)
        routing = learner.next_plan(batch, tables, version, coming)
        # what is counted already, servers need not count again
        counting = learner.counting and coming is None
        return ledger.plan(
            batch, replace(terms, routing=routing, hot=learner.hot, spare=learner.spare, counting=counting)
        )

    # ------------------------------------------------------------------ deliver

    def deliver(self, commit: Commit, progress: Progress | None = None) -> None:
        """Hand a batch's outputs to the sinks, unless it was delivered before."""
        waits = self.deliveries.deliver(commit, self.topology)
        if progress is not None and waits:
            progress.sink_waits = waits

    # ------------------------------------------------------------------ the end

    def _say(self, message: str) -> None:
        self.lifecycle.message = message or "delivering"

    @property
    def error(self) -> Exception | None:
        """Why the last batch failed, if one has."""
        return self.lifecycle.error

    @property
    def stopping(self) -> bool:
        """Whether a batch that is under way is given up."""
        return self.lifecycle.stopping

    def fail(self, error: Exception) -> None:
        """Note that a batch has failed, and why; a later one may succeed."""
        self.lifecycle.fail(error)

    def finish(self) -> None:
        """Note that all input has been processed."""
        self.lifecycle.finished, self.lifecycle.message = True, "finished"

    def drain(self, seconds: float) -> bool:
        """Begin no batch any more, and wait for the one under way; return whether it has ended in time."""
        self._draining = True
        ended = self._busy.acquire(timeout=seconds)
        if ended:
            self._busy.release()
        return ended or self._lingering

    def cancel(self) -> None:
        """Give up a batch that is under way, since the query is being stopped: that is no failure."""
        self.lifecycle.stopping = True
        self.retry.stop()

    def release(self) -> None:
        """Let go of the servers; a batch that runs ends with an error."""
        self.runner.close()

    def end(self) -> None:
        """Let go of the servers, and note that no more batches will come."""
        self.runner.close()
        self.lifecycle.end()

    def stop(self) -> None:
        """Stop it: a later start goes on from the last commit."""
        self.close()
        self.lifecycle.message = "stopped"
        self.lifecycle.end()

    def close(self) -> None:
        """Stop what runs in the background, and let go of servers and sinks."""
        self.retry.stop()
        self._cleaning.end()
        self.deliveries.close()
        self.runner.close()
        if self.learner is not None:
            self.learner.close()
