"""One server in one step: rows come in, go through every operator that lives here, and leave if they must.

This is the engine without Spark. It is handed the batches that an exchange delivered to a server and yields
the batches for the next exchange. Whoever runs it only moves them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.documents import EdgeReport, TaskReport, decode_report, encode_report
from weir.engine.exchange import wire
from weir.engine.exchange.host_handoff import HandoffReader
from weir.engine.metrics.latency import Busy, Groups, count_age, now
from weir.engine.metrics.traffic import Distances
from weir.engine.task.batch_context import SOURCE_NUMBER, BatchContext, column_name, host_name
from weir.engine.task.event_times import EventTimes
from weir.engine.task.key_counting import KeyCounter, sent_by
from weir.engine.task.reports import condensed
from weir.engine.task.routers import Routers
from weir.engine.task.server_locations import places_of
from weir.engine.task.side_inputs import value
from weir.engine.task.state_keeper import StateKeeper, partial_schema
from weir.engine.task.tables import homes_of, key_groups_in_force
from weir.engine.task.task_files import TaskFiles, TaskOutputs
from weir.errors import NullKeyError, OperatorError
from weir.graph.model import Edge, Node
from weir.operators.instance import Context, Instance, OperatorReport
from weir.rows import Rows, row_hashes
from weir.state.segment import H1, newest


class Server:
    """Runs one step of a batch on one server.

    ``server`` −1 stands for a source task (step 0): no state, only stateless operators and routing. In ``folder``, on
    this host, rows may be left for other servers here.
    """

    arrival_order: ClassVar[bool] = False  # whether routers that depend on order take rows as they come

    def __init__(
        self,
        job: BatchContext,
        step: int,
        server: int,
        task: int = 0,
        folder: str | None = None,
        host: str = "",
    ) -> None:
        self.job, self.topology, self.plan, self.storage = job, job.topology, job.plan, job.storage
        self.step, self.server, self.task, self.last = step, server, task, step == job.topology.steps
        host, self.handoff = host or host_name(), job.handoff(folder)
        self.outbox = wire.Outbox(job.slots, self.handoff, wire.sender_name(server, host))
        self.distances = Distances(places_of(job.plan.network), server, host)
        self.handoff_reader = HandoffReader()
        self.report = TaskReport(server=server, step=step, host=host, process=f"{host}:{os.getppid()}")
        self.files = TaskFiles(self.storage, self.report, job.plan.batch, task)
        self.keeper = StateKeeper(job, self.storage, self.files, server)
        self.routers = Routers(job, self.storage, server, task)
        self.received: Counter[tuple[int, int]] = Counter()  # kind, edge or operator → rows
        self.carried: list[TaskReport] = []  # of earlier steps, on their way to the driver
        self.instances: dict[tuple[str, int], Instance] = {}  # by operator and step
        self.waiting: dict[int, list[Rows]] = {}  # edges whose router wants all rows at once
        self.outputs = TaskOutputs(self.files, self.topology)
        self.event_times = EventTimes(self.topology, self.plan, self.report)
        self.key_counter = KeyCounter(job.learning) if job.learning else None
        self.unread: list[tuple[Node, Rows]] = []  # listings of files to be read here
        self.began = time.perf_counter()
        self.oldest: dict[str, int] = {}  # operator → marker of the oldest row it has had in this step
        self.unserved: dict[str, Groups] = {}  # by operators that work at the end

    # ------------------------------------------------------------------ the step

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take what the exchange (in step 0: a source) delivers, yield what goes into the next exchange."""
        receive = self._receive_source if self.step == 0 else self._receive
        with contextlib.closing(self.handoff) if self.handoff is not None else contextlib.nullcontext():
            if self.step == 1:
                self.routers.hand_out(self._deliver)
                yield from self._read()
            for batch in batches:
                if batch.num_rows:
                    with Busy(self.report):
                        receive(batch)
                    yield from self._read()
                    if self.outbox.full():
                        yield from self.outbox.flush()
            if any(report.error for report in self.carried):  # the batch has failed in an earlier step
                self._forward_failures()
            else:
                with Busy(self.report):
                    self._finish()
                self._send_reports()
            yield from self.outbox.flush()

    def fail(self, error: OperatorError) -> Iterator[pa.RecordBatch]:
        """Report to the driver that a user's function failed, in place of what this task would have sent.

        Raised in a task, it would be tried again by Spark, and logged by each of its layers.
        """
        self.report.error = type(error).__name__, str(error)
        self.carried.append(self.report)
        self._forward_failures()
        yield from self.outbox.flush()

    def _forward_failures(self) -> None:
        for report in self.carried:
            if report.error is not None:
                self.outbox.put(self._home, wire.CONTROL, 0, encode_report(report))

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Read the files that reached this server, chunk by chunk; what must leave leaves in between."""
        while self.unread:
            node, listing = self.unread.pop()
            instance = self._instance(node)
            chunks = instance.push(listing)
            while True:
                with Busy(self.report):
                    with Busy(instance.report):
                        rows = next(chunks, None)
                    if rows is None:
                        break
                    rows.source_time = now()
                    self.report.read_rows += len(rows)
                    self.report.read_bytes += rows.batch.nbytes
                    if self.key_counter is not None and rows.origin is not None:
                        self.key_counter.key(*rows.origin)
                    self._emit(node, rows)
                if self.outbox.full():
                    yield from self.outbox.flush()

    def _receive_source(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        numbers = batch.column(SOURCE_NUMBER).to_numpy() if SOURCE_NUMBER in names else None
        for number, (source, schema) in enumerate(self.topology.sources.items()):
            part = batch if numbers is None else batch.filter(pa.array(numbers == number))
            if part.num_rows:
                whole = wire.normalised(part, schema, [column_name(number, c) for c in schema.names])
                self._count_entry(source, whole)
                for edge in self.topology.out_edges[source]:
                    self._route(edge, Rows(whole, source_time=now()))

    def _count_entry(self, source: str, batch: pa.RecordBatch) -> None:
        self.event_times.read(source, Rows(batch))
        self.report.rows += batch.num_rows
        self.report.bytes += batch.nbytes

    def _receive(self, batch: pa.RecordBatch) -> None:
        heads = [batch.column(c).to_pylist() for c in ("kind", "edge", "source_time", "sender")]
        for kind, edge, source_time, sender, payload in zip(*heads, wire.payloads(batch), strict=True):
            self._receive_blob(kind, edge, source_time, payload, sender)

    def _receive_blob(
        self, kind: int, edge: int, source_time: int, payload: pa.Buffer, sender: str = ""
    ) -> None:
        if kind & wire.ADDRESSED:
            kind, payload = kind - wire.ADDRESSED, self.handoff_reader.fetch(payload)
        if kind == wire.CONTROL:
            self.carried.append(self.keeper.hear(decode_report(payload)))
        elif kind == wire.STATISTICS and self.key_counter is not None:
            self.key_counter.add(payload.to_pybytes())
        elif kind == wire.DATA:
            target = self.topology.edges[edge]
            rows = self._unpack(kind, edge, payload, target.schema)
            self.report.rows += rows.num_rows
            self.report.bytes += payload.size
            self.distances.count(self._count(target).arrived, sender, rows.num_rows, payload.size)
            self._deliver(target, Rows(rows, source_time=source_time))
        elif kind == wire.PARTIAL:
            node = self.topology.nodes[edge]
            self._see(node, source_time)
            part = self._unpack(kind, edge, payload, partial_schema(node))
            if node.splits:
                self.distances.count(self.report.partials, sender, part.num_rows, payload.size)
            self._instance(node).absorb(part)

    def _unpack(self, kind: int, edge: int, payload: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        batch = wire.unpack(payload, schema)
        self.received[kind, edge] += batch.num_rows
        return batch

    # ------------------------------------------------------------------ rows through operators

    def _deliver(self, edge: Edge, rows: Rows) -> None:
        """Hand rows to an operator on this server, or keep them for the step in which it can start."""
        if not len(rows):
            return
        node = self.topology.by_name[edge.target]
        if node.waits and self.step < node.level and not self.arrival_order:
            self._send_batch(edge, self.server, rows.to_batch(edge.schema), rows.source_time)
            return
        if node.operator.reads_source:
            self.unread.append((node, rows))
            return
        instance = self._instance(node)
        instance.report.rows_in += len(rows)
        origin = (node.name, rows.hash(node.key)) if node.operator.stateful else None
        if self.key_counter is not None and origin is not None:
            self.key_counter.key(*origin)
        self._see(node, rows.source_time)
        began = time.perf_counter()
        out = list(instance.push_side(rows, edge.side))
        group = (rows.source_time, len(rows), self.began)
        if instance.buffers_rows:
            self.unserved.setdefault(node.name, []).append(group)
        self._served(instance, began, [] if instance.buffers_rows else [group])
        for emitted in out:
            if origin is not None and emitted.batch is rows.batch:
                emitted = Rows(emitted.batch, emitted.index, origin=origin)
            emitted.source_time = rows.source_time
            self._emit(node, emitted)

    def _see(self, node: Node, source_time: int) -> None:
        """Remember the oldest row of an operator: what it emits at the end is as old as that."""
        if source_time > 0:
            self.oldest[node.name] = min(source_time, self.oldest.get(node.name, source_time))

    def _served(self, instance: Instance, began: float, groups: Groups) -> None:
        """Count a call of an operator: busy time, how long rows waited (on average half of it), how old they are."""
        took = time.perf_counter() - began
        report, done = instance.report, now()
        report.busy += took
        for source_time, rows, came in groups:
            report.waited += rows * (began - max(came, self.began) + took / 2)
            count_age(report.ages, source_time, rows, done)

    def _emit(self, node: Node, rows: Rows) -> None:
        self.event_times.read(node.name, rows)
        if self.key_counter is not None and rows.origin is None and node.operator.stateful:
            rows.origin = sent_by(node, rows)
        passed = node.operator.stateful and node.passes
        if node.name in self.topology.sinks and not passed:
            self.outputs.add(node.name, rows.to_batch(node.sink_out), rows.source_time)
        for edge in self.topology.out_edges[node.name]:
            self._route(edge, rows)

    def _route(self, edge: Edge, rows: Rows) -> None:
        node = self.topology.by_name[edge.target]
        # hashes belong to the sender's key
        rows = Rows(rows.batch, rows.index, origin=rows.origin, source_time=rows.source_time)
        rows = self._with_key(edge, rows)
        if not len(rows):
            return
        if self.key_counter is not None and rows.origin is not None and node.operator.stateful:
            self.key_counter.pair(rows.origin, node.name, rows.hash(node.key))
        if not edge.crosses and (self.server >= 0 or self.topology.runs_at_source(node)):
            self._count(edge).local += len(rows)
            self._deliver(edge, rows)
        elif edge.grouping.order_free or self.arrival_order:
            self._dispatch(edge, rows, self.routers.router(edge, node).route(rows.hash(node.key)))
        else:
            self.waiting.setdefault(edge.index, []).append(rows)

    def _dispatch(self, edge: Edge, rows: Rows, instances: NDArray[np.int32]) -> None:
        """Send the rows whose instance lives elsewhere, so that they travel while the others are worked on here."""
        node = self.topology.by_name[edge.target]
        servers = np.asarray(node.placement, np.int32)[instances]
        here = servers == self.server
        if not here.all():
            away = np.flatnonzero(~here)
            order = away[np.argsort(servers[away], kind="stable")]
            batch, to = rows.select(order).to_batch(edge.schema), servers[order]
            cuts = np.flatnonzero(np.diff(to)) + 1
            for start, end in itertools.pairwise([0, *cuts.tolist(), len(to)]):
                self._send_batch(edge, int(to[start]), batch[start:end], rows.source_time)
        if here.any():
            local = rows if here.all() else rows.select(here)
            self._count(edge).local += len(local)
            self._deliver(edge, local)

    def _send_batch(self, edge: Edge, server: int, batch: pa.RecordBatch, source_time: int) -> None:
        pieces = max(1, -(-batch.nbytes // self.outbox.longest(server)))
        step = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, step):
            part = batch[start : start + step]
            payload = wire.pack(part)
            if server != self.server:
                count = self._count(edge)
                count.remote += part.num_rows
                count.bytes += payload.size
            self.outbox.put(server, wire.DATA, edge.index, payload, source_time, part.num_rows)

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
        self._operator(node).null_keys += int(missing.sum())
        return rows.select(~missing)

    # ------------------------------------------------------------------ the end of a step

    def _finish(self) -> None:
        if self.server >= 0 and self.step == 1:
            self.keeper.change_owners(self.report)
            self.keeper.merge_segments()
        for source in self.topology.sources:
            self._flush_waiting(source)
        for node in self.topology.nodes:
            if self.server >= 0:
                self._finish_operator(node)
            self._flush_waiting(node.name)
        self._write()

    def _finish_operator(self, node: Node) -> None:
        idle = self.server not in node.placement and (node.name, self._step_of(node)) not in self.instances
        if idle and not (node.operator.stateful and self.keeper.has_state(node)):
            return
        instance = self._instance(node)
        self._serve(node, instance, instance.finish(), self.unserved.pop(node.name, []))
        self._send_partials(node, instance)
        if node.operator.stateful:
            self._save(node, instance)

    def _serve(self, node: Node, instance: Instance, work: Iterator[Rows], groups: Groups) -> None:
        """Let an operator work on rows that were put by; what it emits is as old as the oldest of them."""
        began = time.perf_counter()
        out = list(work)
        self._served(instance, began, groups)
        for emitted in out:
            emitted.source_time = self.oldest.get(node.name, 0)
            self._emit(node, emitted)

    def _write(self) -> None:
        self.outputs.write()
        self.routers.save(self.files)
        self.report.weights = self.routers.shares()

    def _flush_waiting(self, source: str) -> None:
        """Route what waited for a router that must see all rows of the task, in canonical order."""
        for edge in self.topology.out_edges[source]:
            kept = self.waiting.pop(edge.index, None)
            if not kept:
                continue
            node = self.topology.by_name[edge.target]
            source_time = min((r.source_time for r in kept if r.source_time > 0), default=0)
            parts = [Rows(r.to_batch(edge.schema), source_time=source_time) for r in kept]
            hashes = [row_hashes(part.batch) for part in parts]
            order = np.lexsort([np.concatenate(h) for h in zip(*hashes, strict=True)][::-1])
            keys = [part.hash(node.key) for part in parts]
            instances = np.empty(len(order), np.int32)
            instances[order] = self.routers.router(edge, node).route(np.concatenate(keys)[order])
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            for part, chosen in zip(parts, np.split(instances, cuts), strict=True):
                self._dispatch(edge, part, chosen)

    def _send_partials(self, node: Node, instance: Instance) -> None:
        table = instance.partials()
        if table is None or not table.num_rows:
            return
        source_time = self.oldest.get(node.name, 0)
        if not node.splits:
            for batch in table.combine_chunks().to_batches():
                self.outbox.put(
                    self.server, wire.PARTIAL, node.index, wire.pack(batch), source_time, batch.num_rows
                )
            return
        key_groups = key_groups_in_force(self.storage, self.plan.layout, node.name)
        homes = homes_of(node, self.routers.grouping(node), table[H1].to_numpy(), key_groups)
        for server in np.unique(homes).tolist():
            part = table.filter(pa.array(homes == server)).combine_chunks()
            for batch in part.to_batches():
                self.outbox.put(
                    server, wire.PARTIAL, node.index, wire.pack(batch), source_time, batch.num_rows
                )

    def _save(self, node: Node, instance: Instance) -> None:
        table = instance.written()
        if table is not None and table.num_rows:
            with instance.spending("writing"):
                self.keeper.write(node, newest(table))
        if self.step == node.state_level and node.name in self.topology.sinks:
            updates = instance.updates()
            if updates is not None and updates.num_rows:
                self.outputs.add(node.name, updates, self.oldest.get(node.name, 0))

    def _send_reports(self) -> None:
        self.files.settle()
        self.report.left_bytes = self.handoff.bytes if self.handoff is not None else 0
        self.report.posted = [(*at, *sums) for at, sums in self.outbox.posted.items()]  # type: ignore[misc]
        self.report.received = [(*where, rows) for where, rows in self.received.items()]
        home = self._home
        reports = [*self.carried, self.report]
        for report in condensed(reports, self.server, self.topology) if self.last else reports:
            self.outbox.put(home, wire.CONTROL, 0, encode_report(report))
        if self.key_counter is not None and (stats := self.key_counter.stats(self.last)) is not None:
            self.outbox.put(home, wire.STATISTICS, 0, stats.encode())

    @property
    def _home(self) -> int:
        """The server whose reports in the next step carry those of this task."""
        return self.server if self.server >= 0 else self.task % self.plan.servers

    def _step_of(self, node: Node) -> int:
        """Return the step of an operator's running copy."""
        return self.step

    def _instance(self, node: Node) -> Instance:
        step = self._step_of(node)
        instance = self.instances.get((node.name, step))
        if instance is None:
            plan = self.plan
            context = Context(
                node=node,
                report=self._operator(node),
                batch=plan.batch,
                step=step,
                first=step == (node.level if self.arrival_order else 1),
                clock=plan.clock,
                previous_clock=plan.previous_clock,
                watermark=plan.watermarks.get(node.name),
                previous_watermark=plan.previous_watermarks.get(node.name),
                side=lambda: value(self.storage, node, plan.sides),
                view=lambda: self.keeper.view(node),
                divert=self.outputs.divert,
                late=partial(self.outputs.late, node),
                set_aside=partial(self.outputs.set_aside, node),
                to_sink=lambda rows: self.outputs.add(node.name, rows, self.oldest.get(node.name, 0)),
                want_updates=node.name in self.topology.sinks,
                passes_on=node.passes and bool(self.topology.out_edges[node.name]),
            )
            instance = self.instances[node.name, step] = node.operator.instance(context)
        return instance

    def _operator(self, node: Node) -> OperatorReport:
        return self.report.operators.setdefault(node.name, OperatorReport())

    def _count(self, edge: Edge) -> EdgeReport:
        return self.report.edges.setdefault(edge.index, EdgeReport())
