"""The operators of one task: rows come in, go through every operator that lives here, and leave if they must.

This is the engine without Spark. :class:`OperatorRuntime` runs the operators; tasks hand it what has come, and where
to put what leaves. A step task (:mod:`~weir.engine.task.job_tasks`) runs one step on one server, a live batch
(:mod:`~weir.engine.live.live_batch`) all steps, and a source task only routes and runs what has no state.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.engine.documents import EdgeReport, TaskReport, added
from weir.engine.exchange import wire
from weir.engine.metrics.latency import Busy, Groups, count_age, now
from weir.engine.task.batch_context import SOURCE_NUMBER, BatchContext, column_name
from weir.engine.task.event_times import EventTimes
from weir.engine.task.key_counting import KeyCounter, sent_by
from weir.engine.task.routers import Routers
from weir.engine.task.state_keeper import StateKeeper, partial_schema
from weir.engine.task.tables import homes_of, key_groups_in_force, value
from weir.engine.task.task_files import TaskFiles, TaskOutputs
from weir.errors import NullKeyError
from weir.graph.model import Edge, Node
from weir.operators.instance import Context, Instance, OperatorReport
from weir.routing.base import Instances
from weir.rows import Rows, row_hashes
from weir.state.segment import H1, newest

Route = Callable[[Edge, Node, Rows], Iterator[tuple[Rows, Instances]]]


class Outbox(Protocol):
    """Where a task puts what leaves it."""

    posted: wire.Tallies

    def longest(self, server: int) -> int:
        """Return how long blobs for a server may be, in bytes."""

    def put(self, server: int, kind: int, edge: int, payload: pa.Buffer, source_time: int, rows: int) -> None:
        """Send a blob of so many rows to a server; ``edge`` is an operator's number for states."""


class OperatorRuntime:
    """Runs the operators of one task: of a server, or, where ``report.server`` is None, of a source task.

    Parameters
    ----------
    step
        The step of the batch that it runs. None: all of them, on a live server. Then a copy of an operator lives from
        the first row to the last step in which rows can reach it, and routers take rows in the order in which they
        come, since a live batch only ever runs again as a whole.
    route
        Says where rows go, piece by piece; by default all at once, by ``routers``.
    """

    def __init__(
        self,
        job: BatchContext,
        report: TaskReport,
        outbox: Outbox,
        routers: Routers,
        step: int | None,
        route: Route | None = None,
    ) -> None:
        self.topology, self.plan, self.report, self.routers = job.topology, job.plan, report, routers
        self._job, self._storage, self._outbox, self._step = job, job.storage, outbox, step
        self._choose = route or routers.route
        self.files = TaskFiles(job.storage, report, job.plan.batch, routers.task)
        self.instances: dict[tuple[str, int], Instance] = {}  # by operator and step
        self.counts: dict[tuple[str, int], OperatorReport] = {}  # by operator and step
        self.unserved: dict[str, Groups] = {}  # by operators that work at the end
        self.key_counter = KeyCounter(job.learning) if job.learning and job.plan.counting else None
        self._began = time.perf_counter()
        self._received: Counter[tuple[int, int]] = Counter()  # kind, edge or operator → rows
        self._waiting: dict[int, list[Rows]] = {}  # edges whose router wants all rows at once
        self._outputs = TaskOutputs(self.files, self.topology)
        self._event_times = EventTimes(self.topology, self.plan, report)
        self._unread: list[tuple[Node, Rows]] = []  # listings of files to be read here
        self._oldest: dict[str, int] = {}  # operator → marker of the oldest row that it got

    @cached_property
    def keeper(self) -> StateKeeper:
        """The saved state of this server; a source task has none."""
        assert self.report.server is not None
        return StateKeeper(self._job, self.files, self.report.server)

    # ------------------------------------------------------------------ what comes in

    def receive_source(self, batch: pa.RecordBatch, source_time: int | None = None) -> None:
        """Take rows of sources, as source tasks get them: now, or at a time before."""
        names = batch.schema.names
        numbers = batch.column(SOURCE_NUMBER).to_numpy() if SOURCE_NUMBER in names else None
        for number, (source, schema) in enumerate(self.topology.sources.items()):
            part = batch if numbers is None else batch.filter(pa.array(numbers == number))
            if part.num_rows:
                whole = wire.normalised(part, schema, [column_name(number, c) for c in schema.names])
                self._event_times.read(source, Rows(whole))
                self.report.rows += whole.num_rows
                self.report.bytes += whole.nbytes
                for edge in self.topology.out_edges[source]:
                    self._route(edge, Rows(whole, source_time=source_time or now()))

    def receive_listing(self) -> None:
        """Take this server's part of what the plan says is to be read."""
        planned = self.plan.input
        for source, columns in ({} if planned is None else planned.listing).items():
            schema = self.topology.sources[source]
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            rows = Rows(pa.RecordBatch.from_arrays(arrays, schema=schema))
            for edge in self.topology.out_edges[source] if len(rows) else []:
                node = self.topology.by_name[edge.target]
                for part, instances in self.routers.route(edge, node, rows):
                    here = np.asarray(node.placement)[instances] == self.report.server
                    self._deliver(edge, part.select(here))

    def receive(self, kind: int, edge: int, payload: pa.Buffer, source_time: int, came: float = 0.0) -> int:
        """Take a blob of rows, or of partial states, that another task has sent; return how many."""
        if kind == wire.DATA:
            target = self.topology.edges[edge]
            batch = wire.unpack(payload, target.schema)
            self.report.rows += batch.num_rows
            self.report.bytes += payload.size
            self._deliver(target, Rows(batch, source_time=source_time, came=came))
        else:
            node = self.topology.nodes[edge]
            batch = wire.unpack(payload, partial_schema(node))
            self._see(node, source_time)
            self._instance(node, node.state_level if self._step is None else self._step).absorb(batch)
        self._received[kind, edge] += batch.num_rows
        return batch.num_rows

    def read(self) -> Iterator[None]:
        """Read the files that have reached this server, chunk by chunk; what must leave can leave in between."""
        while self._unread:
            node, listing = self._unread.pop()
            instance = self._instance(node, self._step_of(node))
            chunks = instance.push(listing)
            while True:
                with Busy(self.report):
                    with Busy(instance.report):
                        rows = next(chunks, None)
                    if rows is None:
                        break
                    rows.source_time, rows.came = now(), listing.came
                    self.report.read_rows += len(rows)
                    self.report.read_bytes += rows.batch.nbytes
                    if self.key_counter is not None and rows.origin is not None:
                        self.key_counter.key(*rows.origin)
                    self._emit(node, rows)
                yield

    # ------------------------------------------------------------------ rows through operators

    def _deliver(self, edge: Edge, rows: Rows) -> None:
        """Hand rows to an operator on this server, or keep them for the step in which it can start."""
        if not len(rows):
            return
        node = self.topology.by_name[edge.target]
        if node.waits and self._step is not None and self._step < node.level:
            assert self.report.server is not None
            self._send(edge, self.report.server, rows.to_batch(edge.schema), rows.source_time)
            return
        if node.operator.reads_source:
            self._unread.append((node, rows))
            return
        instance = self._instance(node, self._step_of(node))
        instance.report.rows_in += len(rows)
        origin = (node.name, rows.hash(node.key)) if node.operator.stateful else None
        if self.key_counter is not None and origin is not None:
            self.key_counter.key(*origin)
        self._see(node, rows.source_time)
        began = time.perf_counter()
        called, out = instance.report.calling, instance.push_side(rows, edge.side)
        group = (rows.source_time, len(rows), rows.came or self._began)
        if instance.buffers_rows:
            self.unserved.setdefault(node.name, []).append(group)
        if not instance.emits_early:
            out = iter([*out])
            self._served(instance, began, [] if instance.buffers_rows else [group])
        with closing(out) if isinstance(out, Generator) else nullcontext():
            for emitted in out:
                if origin is not None and emitted.batch is rows.batch:
                    emitted = Rows(emitted.batch, emitted.index, origin=origin)
                emitted.source_time, emitted.came = rows.source_time, rows.came
                self._emit(node, emitted)
        if instance.emits_early:  # others have worked in between
            self._served(instance, time.perf_counter() - (instance.report.calling - called), [group])

    def _see(self, node: Node, source_time: int) -> None:
        """Remember the oldest row of an operator: what it emits at the end is as old as that."""
        if source_time > 0:
            self._oldest[node.name] = min(source_time, self._oldest.get(node.name, source_time))

    def _served(self, instance: Instance, began: float, groups: Groups, since: float = 0.0) -> None:
        """Count a call of an operator: busy time, how long rows waited (on average half of it), how old they are."""
        took = time.perf_counter() - began
        if instance.key_times and self.key_counter is not None:
            hashes, seconds = zip(*instance.key_times, strict=True)
            self.key_counter.took(instance.node.name, np.concatenate(hashes), np.concatenate(seconds))
            instance.key_times.clear()
        report, done = instance.report, now()
        report.busy += took
        for source_time, rows, came in groups:
            report.waited += rows * (began - max(came, since) + took / 2)
            count_age(report.ages, source_time, rows, done)

    def _emit(self, node: Node, rows: Rows) -> None:
        self._event_times.read(node.name, rows)
        if self.key_counter is not None and rows.origin is None and node.operator.stateful:
            rows.origin = sent_by(node, rows)
        passed = node.operator.stateful and node.passes
        if node.name in self.topology.sinks and not passed:
            self._outputs.add(node.name, rows.to_batch(node.sink_out), rows.source_time)
        for edge in self.topology.out_edges[node.name]:
            self._route(edge, rows)

    def _route(self, edge: Edge, rows: Rows) -> None:
        node = self.topology.by_name[edge.target]
        # hashes belong to the sender's key
        rows = Rows(rows.batch, rows.index, None, rows.origin, rows.source_time, rows.came)
        rows = self._with_key(edge, rows)
        if not len(rows):
            return
        if self.key_counter is not None and rows.origin is not None and node.operator.stateful:
            self.key_counter.pair(rows.origin, node.name, rows.hash(node.key))
        if not edge.crosses and (self.report.server is not None or self.topology.runs_at_source(node)):
            self.edge(edge.index).local += len(rows)
            self._deliver(edge, rows)
        elif self._step is None or self.routers.grouping(node).order_free:
            for piece, instances in self._choose(edge, node, rows):
                self._dispatch(edge, piece, instances)
        else:
            self._waiting.setdefault(edge.index, []).append(rows)

    def _dispatch(self, edge: Edge, rows: Rows, instances: Instances) -> None:
        """Send the rows whose instance lives elsewhere, so that they travel while the others are worked on here."""
        node = self.topology.by_name[edge.target]
        servers = np.asarray(node.placement, np.int32)[instances]
        server = self.report.server
        here = np.zeros(len(servers), np.bool_) if server is None else servers == server
        if not here.all():
            away, to = rows, servers
            if here.any() or (servers != servers[0]).any():
                order = np.flatnonzero(~here)
                order = order[
                    np.argsort(servers[order].astype(np.uint16), kind="stable")
                ]  # faster than 32 bits
                away, to = rows.select(order), servers[order]
            batch = away.to_batch(edge.schema)
            cuts = np.flatnonzero(np.diff(to)) + 1
            for start, end in itertools.pairwise([0, *cuts.tolist(), len(to)]):
                self._send(edge, int(to[start]), batch[start:end], rows.source_time)
        if here.any():
            local = rows if here.all() else rows.select(here)
            self.edge(edge.index).local += len(local)
            self._deliver(edge, local)

    def _send(self, edge: Edge, server: int, batch: pa.RecordBatch, source_time: int) -> None:
        pieces = max(1, -(-batch.nbytes // self._outbox.longest(server)))
        step = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, step):
            part = batch[start : start + step]
            payload = wire.pack(part)
            if server != self.report.server:
                count = self.edge(edge.index)
                count.remote += part.num_rows
                count.bytes += payload.size
            self._outbox.put(server, wire.DATA, edge.index, payload, source_time, part.num_rows)

    def _with_key(self, edge: Edge, rows: Rows) -> Rows:
        """Without the rows that lack a key, by the operator's policy."""
        node = self.topology.by_name[edge.target]
        missing = rows.nulls(node.key) if node.key else None
        if missing is None:
            return rows
        if node.declared.null_keys == "error":
            first = rows.select(np.flatnonzero(missing)[:1])
            row = first.to_batch(pa.schema([f for f in rows.batch.schema if f.name in node.input.names]))
            row = row.to_pylist()[0]
            raise NullKeyError(
                f"operator {node.name!r}: a row has no key ({', '.join(node.key)} is null): {row!r}. "
                'Filter such rows out before, or set null_keys="drop".'
            )
        if edge.side in node.operator.outer_sides:
            return rows
        self._count(node, self._step_of(node)).null_keys += int(missing.sum())
        return rows.select(~missing)

    # ------------------------------------------------------------------ the end

    def finish(self, node: Node, step: int, since: float = 0.0) -> Instance | None:
        """Let an operator end a step: no more rows can come. What it keeps is saved by :meth:`save`.

        Rows that were put by have waited ``since`` then at most. Returns the copy, None if there is nothing to end.
        """
        if (node.name, step) not in self.instances:  # nothing has come for it in this step
            ends = step in (node.level, node.state_level) or (step == 1 and node.wakes)
            here = self.report.server in node.placement
            if not ends or not (here or (node.operator.stateful and self.keeper.has_state(node))):
                return None
        instance = self._instance(node, step)
        self.serve(node, instance, instance.finish(), self.unserved.pop(node.name, []), since)
        self._send_partials(node, instance)
        return instance

    def save(self, node: Node, instance: Instance | None) -> None:
        """Write what an operator keeps after a step, and the updates for its sink after the last one."""
        if instance is None or not node.operator.stateful:
            return
        table = instance.written()
        if table is not None and table.num_rows:
            with instance.spending("writing"):
                self.keeper.write(node, newest(table))
        if instance.context.step == node.state_level and node.name in self.topology.sinks:
            updates = instance.updates()
            if updates is not None and updates.num_rows:
                self._outputs.add(node.name, updates, self._oldest.get(node.name, 0))

    def close(self, last: bool) -> bytes | None:
        """Write what is left, complete the report, and return what was counted of keys; ``last``: for the driver."""
        with Busy(self.report):
            self._outputs.write()
            self.routers.save(self.files)
            self.report.weights = self.routers.shares()
        self.files.settle()
        for (name, step), count in self.counts.items():
            if step > self.topology.by_name[name].level:
                count.merging = count.busy
            before = self.report.operators.get(name)
            self.report.operators[name] = count if before is None else added([before, count])
        busy = {name: did.busy for name, did in self.report.operators.items()}
        weights = {} if self.key_counter is None else self.key_counter.weigh(busy)
        for name, weight in weights.items():
            self.report.operators[name].weighed = weight
        self.report.posted = [(*at, *sums) for at, sums in self._outbox.posted.items()]  # type: ignore[misc]
        self.report.received = [(*where, rows) for where, rows in self._received.items()]
        stats = None if self.key_counter is None else self.key_counter.stats(last)
        return None if stats is None else stats.encode()

    def serve(
        self, node: Node, instance: Instance, work: Iterator[Rows], groups: Groups, since: float = 0.0
    ) -> None:
        """Let an operator work on rows that were put by; what it emits is as old as the oldest of them."""
        began = time.perf_counter()
        out = list(work)
        self._served(instance, began, groups, since)
        for emitted in out:
            emitted.source_time = self._oldest.get(node.name, 0)
            emitted.came = began if self._step is None else 0.0
            self._emit(node, emitted)

    def flush_waiting(self, source: str) -> None:
        """Route what waited for a router that must see all rows of the task, in canonical order."""
        for edge in self.topology.out_edges[source]:
            kept = self._waiting.pop(edge.index, None)
            if not kept:
                continue
            node = self.topology.by_name[edge.target]
            source_time = min((r.source_time for r in kept if r.source_time > 0), default=0)
            parts = [Rows(r.to_batch(edge.schema), source_time=source_time) for r in kept]
            hashes = [row_hashes(part.batch) for part in parts]
            order = np.lexsort([np.concatenate(h) for h in zip(*hashes, strict=True)][::-1])
            keys = [part.hash(node.key) for part in parts]
            instances = np.empty(len(order), np.int32)
            instances[order] = self.routers.choose(edge, node, np.concatenate(keys)[order])
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            for part, chosen in zip(parts, np.split(instances, cuts), strict=True):
                self._dispatch(edge, part, chosen)

    def _send_partials(self, node: Node, instance: Instance) -> None:
        table = instance.partials()
        if table is None or not table.num_rows:
            return
        source_time, parts = self._oldest.get(node.name, 0), {self.report.server: table}
        if node.splits:
            key_groups = key_groups_in_force(self._storage, self.plan.layout, node.name)
            homes = homes_of(node, self.routers.grouping(node), table[H1].to_numpy(), key_groups)
            parts = {server: table.filter(pa.array(homes == server)) for server in np.unique(homes).tolist()}
        for server, part in parts.items():
            assert server is not None
            for batch in part.combine_chunks().to_batches():
                self._outbox.put(
                    server, wire.PARTIAL, node.index, wire.pack(batch), source_time, batch.num_rows
                )

    def _step_of(self, node: Node) -> int:
        """Return the step of the copy that takes an operator's rows."""
        return node.level if self._step is None else self._step

    def _instance(self, node: Node, step: int) -> Instance:
        instance = self.instances.get((node.name, step))
        if instance is None:
            plan = self.plan
            context = Context(
                node=replace(node, secret=plan.secrets.get(node.name, "")),
                report=self._count(node, step),
                batch=plan.batch,
                step=step,
                first=step == (node.level if self._step is None else 1),
                clock=plan.clock,
                previous_clock=plan.previous_clock,
                watermark=plan.watermarks.get(node.name),
                previous_watermark=plan.previous_watermarks.get(node.name),
                side=lambda: value(self._storage, node, plan.sides),
                view=lambda: self.keeper.view(node),
                divert=self._outputs.divert,
                late=partial(self._outputs.late, node),
                set_aside=partial(self._outputs.set_aside, node),
                to_sink=lambda rows: self._outputs.add(node.name, rows, self._oldest.get(node.name, 0)),
                want_updates=node.name in self.topology.sinks,
                passes_on=node.passes and bool(self.topology.out_edges[node.name]),
            )
            instance = self.instances[node.name, step] = node.operator.instance(context)
            if self.key_counter is not None and self.key_counter.times(node.name):
                instance.key_times = []
        return instance

    def _count(self, node: Node, step: int) -> OperatorReport:
        return self.counts.setdefault((node.name, step), OperatorReport())

    def edge(self, index: int) -> EdgeReport:
        """Return what is counted of an edge."""
        return self.report.edges.setdefault(index, EdgeReport())


def new_report(server: int | None, steps: list[int], host: str) -> TaskReport:
    """Return the empty report of a task that runs on this host, in these steps."""
    process = f"{host}:{os.getppid()}"
    return TaskReport(server=server, step=steps[0], steps=steps, host=host, process=process)
