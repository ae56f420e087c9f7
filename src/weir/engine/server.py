"""One server in one step: rows come in, go through every operator that lives here, and leave if they must.

This is the engine without Spark. It is handed the batches that an exchange delivered to a server and yields
the batches for the next exchange. Spark code only moves them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.arrays import load_arrays, save_arrays, write_table
from weir.engine.documents import (
    DEAD_LETTERS,
    BatchPlan,
    EdgeReport,
    MadeSegment,
    Manifest,
    OperatorReport,
    TaskReport,
)
from weir.engine.exchange import wire
from weir.engine.exchange.parcels import Depot, Parcels
from weir.engine.feedback import weighted_in
from weir.engine.instances import AggregateInstance, Context, Instance, make_instance
from weir.engine.learning import Learning, Sightings
from weir.engine.metrics.latency import count_age, now
from weir.engine.migrate import homes_of
from weir.engine.tables import buckets_in_force, grouping_in_force
from weir.engine.take_over import take_over
from weir.engine.whereabouts import places_of
from weir.errors import NullKeyError
from weir.graph.model import Edge, Node, Topology
from weir.hashing import mix
from weir.network.distance import distances
from weir.operators.read import Read
from weir.routing.base import Grouping, Router
from weir.routing.consistent import ConsistentRouter
from weir.routing.locality_aware import LearntSplit, StayRouter
from weir.routing.weighted import WeightedRouter
from weir.rows import Rows, canonical_order
from weir.state.segment import (
    H1,
    SegmentRef,
    StateView,
    newest,
    stored_schema,
    write_segment,
)
from weir.state.storage import Storage

SOURCE_NUMBER = "__source"
DEAD_LETTER_SCHEMA = pa.schema(
    [("operator", pa.string()), ("key", pa.string()), ("row", pa.string()), ("error", pa.string())]
)


@dataclass(frozen=True)
class EntryLayout:
    """How the rows of the first exchange look: which columns belong to which source."""

    tagged: bool  # has the columns kind, edge (a set of entry edges, as bits) and payload
    native: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # source → number, column names


@dataclass(frozen=True)
class Job:
    """What every task of a batch needs to know."""

    topology: Topology
    plan: BatchPlan
    manifest: Manifest
    location: str
    slots: list[int]
    layout: EntryLayout
    learning: Learning | None = None
    before: Manifest | None = None  # the state by the servers' old numbers, in a batch that changes these
    began: int = 0  # µs; the marker of rows that the JVM takes from a source
    query: str = ""  # a name of this run of the query alone
    hosts: list[str] | None = None  # where servers are expected; None: nobody leaves rows in files


class Server:
    """Runs one step of a batch on one server.

    ``server`` −1 stands for a source task (step 0): no state, only stateless operators and routing. In ``folder``, on
    this host, rows may be left for other servers here.
    """

    def __init__(self, job: Job, step: int, server: int, task: int = 0, folder: str | None = None) -> None:
        self.job = job
        self.topology, self.plan = job.topology, job.plan
        self.step, self.server, self.task = step, server, task
        self.storage = Storage(job.location)
        self.depot = _depot(job, folder)
        self.outbox = wire.Outbox(job.slots, self.depot)
        self.parcels = Parcels()
        self.report = TaskReport(
            server=server,
            step=step,
            host=host_name(),
            process=f"{host_name()}:{os.getppid()}",
        )
        self.carried: list[bytes] = []  # reports of earlier steps, on their way to the driver
        self.fresh: dict[str, list[SegmentRef]] = {}  # segments this server wrote in this batch
        self.instances: dict[str, Instance] = {}
        self.routers: dict[int, Router] = {}
        self.waiting: dict[int, list[Rows]] = {}  # edges whose router wants all rows at once
        self.sinks: dict[str, list[pa.RecordBatch]] = {}
        self.dead: list[dict[str, str]] = []
        self.arrived: dict[str, list[pa.RecordBatch]] = {}  # states from servers that change places
        self.sightings = Sightings(job.learning) if job.learning else None
        self.unread: list[tuple[Node, Rows]] = []  # listings of files to be read here
        self.statistics: list[bytes] = []  # of earlier steps, on their way to the driver
        self.began = time.perf_counter()
        self.oldest: dict[str, int] = {}  # operator → marker of the oldest row it has had in this step
        self.unserved: dict[str, list[tuple[int, int]]] = {}  # operators that work at the end → marker, rows
        self.sunk: dict[str, list[tuple[int, int]]] = {}  # sink → marker, rows

    # ------------------------------------------------------------------ the step

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes what the exchange (in step 0: a source) delivers, yields what goes into the next exchange."""
        receive = self._receive_source if self.step == 0 else self._receive
        with contextlib.closing(self.depot) if self.depot is not None else contextlib.nullcontext():
            for batch in batches:
                if batch.num_rows:
                    with _Busy(self.report):
                        receive(batch)
                    yield from self._read()
                    if self.outbox.full():
                        yield from self.outbox.flush()
            with _Busy(self.report):
                self._finish()
            self._send_reports()
            yield from self.outbox.flush()

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Reads the files that reached this server, chunk by chunk; what must leave leaves in between."""
        while self.unread:
            node, listing = self.unread.pop()
            instance = self._instance(node)
            chunks = instance.push(listing)
            while True:
                with _Busy(self.report):
                    with _Busy(instance.report):
                        rows = next(chunks, None)
                    if rows is None:
                        break
                    rows.born = now()
                    self.report.read_rows += len(rows)
                    self.report.read_bytes += rows.batch.nbytes
                    if self.sightings is not None and rows.origin is not None:
                        self.sightings.key(*rows.origin)
                    self._emit(node, rows)
                if self.outbox.full():
                    yield from self.outbox.flush()

    def _receive_source(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        numbers = batch.column(SOURCE_NUMBER).to_numpy() if SOURCE_NUMBER in names else None
        for number, (source, schema) in enumerate(self.topology.sources.items()):
            part = batch if numbers is None else batch.filter(pa.array(numbers == number))
            if part.num_rows:
                whole = wire.normalised(part, schema, [f"{number}:{c}" for c in schema.names])
                self._count_entry(source, whole)
                for edge in self.topology.out_edges[source]:
                    self._route(edge, Rows(whole, born=now()))

    def _receive(self, batch: pa.RecordBatch) -> None:
        layout = self.job.layout
        if self.step > 1 or not layout.native:
            self._receive_wire(batch)
        elif not layout.tagged:
            (source,) = layout.native
            self._receive_native(source, batch, None)
        else:
            kinds = batch.column("kind").to_numpy()
            packed = kinds < wire.NATIVE
            if packed.any():
                self._receive_wire(batch.select(wire.WIRE.names).filter(pa.array(packed)))
            for source, (number, _) in layout.native.items():
                mine = kinds == wire.NATIVE + number
                if mine.any():
                    part = batch if mine.all() else batch.filter(pa.array(mine))
                    self._receive_native(source, part, part.column("edge").to_numpy())

    def _receive_native(self, source: str, batch: pa.RecordBatch, edges: NDArray[np.int32] | None) -> None:
        schema = self.topology.sources[source]
        whole = wire.normalised(batch, schema, self.job.layout.native[source][1])
        self._count_entry(source, whole)
        for bit, edge in enumerate(self.topology.out_edges[source]):
            rows = Rows(whole, born=self.job.began)
            if edges is not None:
                rows = rows.select((edges >> bit) & 1 == 1)
            kept = self._with_key(self.topology.by_name[edge.target], rows)
            if source not in self.topology.listings:
                count = self._count(edge)
                size = whole.nbytes * len(kept) // whole.num_rows
                count.entered = count.entered[0] + len(kept), count.entered[1] + size
            self._deliver(edge, kept)

    def _count_entry(self, source: str, batch: pa.RecordBatch) -> None:
        if source not in self.topology.listings:  # of files, the rows count that are read
            self.report.rows += batch.num_rows
            self.report.bytes += batch.nbytes

    def _receive_wire(self, batch: pa.RecordBatch) -> None:
        heads = [batch.column(c).to_pylist() for c in ("kind", "edge", "born")]
        for kind, edge, born, payload in zip(*heads, wire.payloads(batch), strict=True):
            if kind & wire.ADDRESSED:
                kind, payload = kind - wire.ADDRESSED, self.parcels.fetch(payload)
            if kind == wire.DATA:
                target = self.topology.edges[edge]
                rows = wire.unpack(payload, target.schema)
                self.report.rows += rows.num_rows
                self.report.bytes += payload.size
                self._deliver(target, Rows(rows, born=born))
            elif kind == wire.CONTROL:
                self._carry(payload.to_pybytes())
            elif kind == wire.STATISTICS:
                self.statistics.append(payload.to_pybytes())
            elif kind == wire.PARTIAL:
                node = self.topology.nodes[edge]
                self._see(node, born)
                self._instance(node).absorb(wire.unpack(payload, partial_schema(node)))
            elif kind == wire.STATE:
                node = self.topology.nodes[edge]
                self.arrived.setdefault(node.name, []).append(wire.unpack(payload, stored_schema(node.state)))

    def _carry(self, payload: bytes) -> None:
        self.carried.append(payload)
        report = msgspec.json.decode(payload, type=TaskReport)
        for made in report.segments:
            if made.replaces is None and made.ref is not None and report.server == self.server:
                self.fresh.setdefault(made.operator, []).append(made.ref)

    # ------------------------------------------------------------------ rows through operators

    def _deliver(self, edge: Edge, rows: Rows) -> None:
        """Hands rows to an operator on this server, or keeps them for the step in which it can start."""
        if not len(rows):
            return
        node = self.topology.by_name[edge.target]
        if node.waits and self.step < node.level:
            self._send(edge, self.server, rows)
            return
        if isinstance(node.operator, Read):
            self.unread.append((node, rows))
            return
        instance = self._instance(node)
        instance.report.rows_in += len(rows)
        origin = (node.name, rows.hash(node.key)) if node.operator.stateful else None
        if self.sightings is not None and origin is not None:
            self.sightings.key(*origin)
        self._see(node, rows.born)
        began = time.perf_counter()
        out = list(instance.push(rows))
        group = (rows.born, len(rows))
        if instance.works_at_end:
            self.unserved.setdefault(node.name, []).append(group)
        self._served(instance, began, [] if instance.works_at_end else [group])
        for emitted in out:
            if origin is not None and emitted.batch is rows.batch:
                emitted = Rows(emitted.batch, emitted.index, origin=origin)
            emitted.born = rows.born
            self._emit(node, emitted)

    def _see(self, node: Node, born: int) -> None:
        """Remembers the oldest row of an operator: what it emits at the end is as old as that."""
        if born > 0:
            self.oldest[node.name] = min(born, self.oldest.get(node.name, born))

    def _served(self, instance: Instance, began: float, groups: list[tuple[int, int]]) -> None:
        """Counts a call of an operator: busy time, how long its rows waited for it, and how old they are now.

        The rows of a call are taken one after the other, so on average they wait for half of it.
        """
        took = time.perf_counter() - began
        report, done = instance.report, now()
        report.busy += took
        for born, rows in groups:
            report.waited += rows * (began - self.began + took / 2)
            count_age(report.ages, born, rows, done)

    def _emit(self, node: Node, rows: Rows) -> None:
        passed = node.operator.stateful and node.operator.passes_rows and node.window is None
        if node.name in self.topology.sinks and not passed:
            self.sinks.setdefault(node.name, []).append(rows.to_batch(node.sink_out))
            self.sunk.setdefault(node.name, []).append((rows.born, len(rows)))
        for edge in self.topology.out_edges[node.name]:
            self._route(edge, rows)

    def _route(self, edge: Edge, rows: Rows) -> None:
        node = self.topology.by_name[edge.target]
        # hashes belong to the sender's key
        rows = Rows(rows.batch, rows.index, origin=rows.origin, born=rows.born)
        rows = self._with_key(node, rows)
        if not len(rows):
            return
        if self.sightings is not None and rows.origin is not None and node.operator.stateful:
            self.sightings.pair(rows.origin, node.name, rows.hash(node.key))
        if not edge.crosses and (self.server >= 0 or self.topology.runs_at_source(node)):
            self._count(edge).local += len(rows)
            self._deliver(edge, rows)
        elif edge.grouping.order_free:
            self._dispatch(edge, rows, self._router(edge, node).route(rows.hash(node.key)))
        else:
            self.waiting.setdefault(edge.index, []).append(rows)

    def _dispatch(self, edge: Edge, rows: Rows, instances: NDArray[np.int32]) -> None:
        """Keeps the rows whose instance lives here, sends the others."""
        node = self.topology.by_name[edge.target]
        servers = np.asarray(node.placement, np.int32)[instances]
        here = servers == self.server
        stays = here.any()
        if stays:
            count = self._count(edge)
            local = rows.select(here)
            count.local += len(local)
            self._deliver(edge, local)
            if here.all():
                return
            rows, servers = rows.select(~here), servers[~here]
        order = np.argsort(servers, kind="stable")
        batch = rows.select(order).to_batch(edge.schema)
        servers = servers[order]
        cuts = np.flatnonzero(np.diff(servers)) + 1
        starts = [0, *cuts.tolist()]
        for start, end in zip(starts, [*cuts.tolist(), len(servers)], strict=True):
            self._send_batch(edge, int(servers[start]), batch[start:end], rows.born)

    def _send(self, edge: Edge, server: int, rows: Rows) -> None:
        self._send_batch(edge, server, rows.to_batch(edge.schema), rows.born)

    def _send_batch(self, edge: Edge, server: int, batch: pa.RecordBatch, born: int) -> None:
        pieces = max(1, -(-batch.nbytes // self.outbox.longest(server)))
        step = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, step):
            part = batch[start : start + step]
            payload = wire.pack(part)
            if server != self.server:
                count = self._count(edge)
                count.remote += part.num_rows
                count.bytes += payload.size
                _add(count.sent, server, part.num_rows, payload.size)
            self.outbox.put(server, wire.DATA, edge.index, payload, born)

    def _with_key(self, node: Node, rows: Rows) -> Rows:
        """Without the rows that lack a key, by the operator's policy."""
        missing = rows.nulls(node.key) if node.key else None
        if missing is None:
            return rows
        if node.declared.null_keys == "error":
            row = rows.select(np.flatnonzero(missing)[:1]).to_batch(node.input).to_pylist()[0]
            raise NullKeyError(
                f"operator {node.name!r}: a row has no key ({', '.join(node.key)} is null): {row!r}. "
                'Filter such rows out before, or set null_keys="drop".'
            )
        self._operator(node).null_keys += int(missing.sum())
        return rows.select(~missing)

    # ------------------------------------------------------------------ the end of a step

    def _finish(self) -> None:
        if self.server >= 0 and self.step == 1:
            self._change_owners()
            self._merge_segments()
        for source in self.topology.sources:
            self._flush_waiting(source)
        for node in self.topology.nodes:
            if self.server < 0:
                self._flush_waiting(node.name)
                continue
            idle = self.server not in node.placement and node.name not in self.instances
            if idle and not (node.operator.stateful and self._has_state(node)):
                continue
            instance = self._instance(node)
            began = time.perf_counter()
            out = list(instance.finish())
            self._served(instance, began, self.unserved.pop(node.name, []))
            for emitted in out:
                emitted.born = self.oldest.get(node.name, 0)
                self._emit(node, emitted)
            if node.held is not None and self.step == node.level:
                self._hold_or_release(node, instance)
            self._send_partials(node, instance)
            if node.operator.stateful:
                self._save(node, instance)
            self._flush_waiting(node.name)
        self._write_outputs()
        self._save_counters()

    def _has_state(self, node: Node) -> bool:
        return any(self.job.manifest.get(node.name, [[]] * self.plan.servers)[self.server])

    def _flush_waiting(self, source: str) -> None:
        """Routes what waited for a router that must see all rows of the task, in canonical order."""
        for edge in self.topology.out_edges[source]:
            kept = self.waiting.pop(edge.index, None)
            if not kept:
                continue
            node = self.topology.by_name[edge.target]
            batch = (
                pa.Table.from_batches([r.to_batch(edge.schema) for r in kept])
                .combine_chunks()
                .to_batches()[0]
            )
            born = min((r.born for r in kept if r.born > 0), default=0)
            rows = Rows(batch.take(pa.array(canonical_order(batch))), born=born)
            keys = rows.hash(node.key) if node.key else np.zeros(len(rows), np.uint64)
            self._dispatch(edge, rows, self._router(edge, node).route(keys))

    def _hold_or_release(self, node: Node, instance: Instance) -> None:
        """Periodic aggregation: partial states wait on this server, or all leave for their homes."""
        assert node.held is not None
        assert isinstance(instance, AggregateInstance)
        refs = self.job.manifest[node.held][self.server]
        held = StateView(self.storage, refs, node.state)
        if node.aggregates(self.plan.batch, self.plan.end_of_input):
            made = instance.release(held)
        else:
            made = instance.hold(held)
        if made is not None and made.num_rows:
            ref = write_segment(self.storage, self._file(f"state/{node.held}"), newest(made))
            self.report.segments.append(MadeSegment(node.held, ref))

    def _send_partials(self, node: Node, instance: Instance) -> None:
        table = instance.partials()
        if table is None or not table.num_rows:
            return
        born = self.oldest.get(node.name, 0)
        if not node.splits or (node.held is not None and self.step < node.level):
            for batch in table.combine_chunks().to_batches():
                self.outbox.put(self.server, wire.PARTIAL, node.index, wire.pack(batch), born)
            return
        buckets = buckets_in_force(self.storage, self.plan.layout, node.name)
        homes = homes_of(node, self._grouping(node), table[H1].to_numpy(), buckets)
        for server in np.unique(homes).tolist():
            part = table.filter(pa.array(homes == server)).combine_chunks()
            for batch in part.to_batches():
                payload = wire.pack(batch)
                self.outbox.put(server, wire.PARTIAL, node.index, payload, born)
                _add(self.report.partials, server, batch.num_rows, payload.size)

    def _save(self, node: Node, instance: Instance) -> None:
        made = instance.written()
        if made is not None and made.num_rows:
            self._write_segment(node, newest(made))
        final = self.step == node.state_level
        if final and node.name in self.topology.sinks and node.operator.passes_rows and node.window is None:
            updates = instance.updates()
            if updates is not None and updates.num_rows:
                self.sinks.setdefault(node.name, []).append(updates)
                self.sunk.setdefault(node.name, []).append((self.oldest.get(node.name, 0), updates.num_rows))

    def _write_segment(self, node: Node, table: pa.Table) -> SegmentRef:
        ref = write_segment(self.storage, self._file(f"state/{node.name}"), table)
        self.report.segments.append(MadeSegment(node.name, ref))
        self.fresh.setdefault(node.name, []).append(ref)
        return ref

    def _change_owners(self) -> None:
        """States of keys that move here become this server's own before any state is read; others go."""
        for name, batches in self.arrived.items():
            node = self.topology.by_name[name]
            table = newest(pa.Table.from_batches(batches))
            self._operator(node).keys_delta += table.num_rows
            self._write_segment(node, table)
        for move in self.plan.moves:
            node = self.topology.by_name[move.operator]
            segments = self.job.manifest.get(node.name, [])
            changes = take_over(self.storage, node.state, segments, move, self.server)
            if changes.entries.num_rows:
                self._operator(node).keys_delta += changes.arrived - changes.left
                self._write_segment(node, changes.entries)

    def _merge_segments(self) -> None:
        """Merges runs of old segments as planned."""
        for name, runs in self.plan.merges.items():
            run = runs[self.server]
            if run is None:
                continue
            node = self.topology.by_name[name.removesuffix("~held")]
            refs = self.job.manifest[name][self.server]
            view = StateView(self.storage, refs[run[0] : run[1]], node.state)
            table = view.everything(keep_dead=run[0] > 0)
            ref = None
            if table.num_rows:
                ref = write_segment(self.storage, self._file(f"state/{name}", "merged"), table)
            self.report.segments.append(MadeSegment(name, ref, (run[0], run[1])))

    def _write_outputs(self) -> None:
        for name, batches in self.sinks.items():
            self._write_output(name, pa.Table.from_batches(batches))
            for born, rows in self.sunk.pop(name, []):
                count_age(self.report.sink_ages.setdefault(name, {}), born, rows)
        if self.dead:
            self._write_output(DEAD_LETTERS, pa.Table.from_pylist(self.dead, schema=DEAD_LETTER_SCHEMA))

    def _write_output(self, sink: str, table: pa.Table) -> None:
        ref = write_table(self.storage, self._file(f"outputs/{sink}"), table.combine_chunks())
        self.report.outputs.setdefault(sink, []).append(ref)

    def _save_counters(self) -> None:
        for edge, router in self.routers.items():
            counters = router.counters()
            if counters:
                key = f"{edge}/{self._source_number()}"
                self.report.counters[key] = save_arrays(self.storage, self._file("routers"), counters)

    def _send_reports(self) -> None:
        self.report.left_bytes = self.depot.bytes if self.depot is not None else 0
        home = self.server if self.server >= 0 else self.task % self.plan.servers
        for payload in [*self.carried, msgspec.json.encode(self.report)]:
            self.outbox.put(home, wire.CONTROL, 0, payload)
        stats = self.sightings.stats() if self.sightings is not None else None
        for payload in self.statistics + ([stats.to_ipc()] if stats is not None else []):
            self.outbox.put(home, wire.STATISTICS, 0, payload)

    # ------------------------------------------------------------------ small helpers

    def _instance(self, node: Node) -> Instance:
        instance = self.instances.get(node.name)
        if instance is None:
            sink = node.name in self.topology.sinks
            plan = self.plan
            context = Context(
                step=self.step,
                clock=plan.clock,
                previous_clock=plan.previous_clock,
                watermark=plan.watermarks.get(node.name),
                previous_watermark=plan.previous_watermarks.get(node.name),
                view=lambda: self._view(node),
                divert=self._divert,
                want_updates=sink,
                passes_on=node.operator.passes_rows
                and node.window is None
                and bool(self.topology.out_edges[node.name]),
            )
            instance = make_instance(node, context, self._operator(node))
            self.instances[node.name] = instance
        return instance

    def _view(self, node: Node) -> StateView:
        saved = self.job.manifest.get(node.name)
        refs = list(saved[self.server]) if saved else []
        return StateView(self.storage, [*refs, *self.fresh.get(node.name, ())], node.state)

    def _operator(self, node: Node) -> OperatorReport:
        return self.report.operators.setdefault(node.name, OperatorReport())

    def _count(self, edge: Edge) -> EdgeReport:
        return self.report.edges.setdefault(edge.index, EdgeReport())

    def _grouping(self, node: Node) -> Grouping:
        return grouping_in_force(self.storage, self.plan, node.name, self.topology.grouping_of(node))

    def _source_number(self) -> int:
        return self.server if self.server >= 0 else self.plan.servers + self.task

    def _router(self, edge: Edge, node: Node) -> Router:
        router = self.routers.get(edge.index)
        if router is None:
            grouping = self._grouping(node)
            source = self._source_number()
            # the same for every batch and source: a key must keep its choices
            seed = int(mix(np.uint64(self.plan.salt), np.uint64(edge.index))) >> 1
            local = node.instance_on.get(self.server, -1) if self.server >= 0 else -1
            router = self._made(grouping, node, seed=seed, source=source, local=local)
            saved = self.plan.counters.get(f"{edge.index}/{source}")
            if saved is not None:
                router.restore(load_arrays(self.storage, saved))
            if isinstance(router, ConsistentRouter):
                for slot, signals in self.plan.signals.get(node.name, ()):
                    router.feedback(np.array(signals, np.int8), slot)
            weights = router.overflow if isinstance(router, StayRouter) else router
            if isinstance(weights, WeightedRouter):
                if node.name in self.plan.times:
                    slot, execution, waiting = self.plan.times[node.name]
                    weights.observe(np.array(execution, float), np.array(waiting, float), slot)
                self.report.weights[edge.index] = weights.weights.tolist()
            self.routers[edge.index] = router
        return router

    def _made(self, grouping: Grouping, node: Node, **terms: int) -> Router:
        """A router; one with weights is told how far its receivers are.

        Distances are those of the plan, never those of the place where this task happens to run: run again
        elsewhere, it must route the same. A source task has no place that the plan could know of, so all receivers
        are equally far from it.
        """
        n = len(node.placement)
        weighted = weighted_in(grouping)
        if weighted is None:
            return grouping.router(n, **terms)
        places, far = places_of(self.plan.network), None
        if places and self.server >= 0:
            far = distances([places[self.server]], [places[s] for s in node.placement])[0]
        if isinstance(grouping, LearntSplit):
            weighted = grouping_in_force(self.storage, self.plan, node.name, weighted)  # type: ignore[assignment]
            return grouping.router(n, **terms, overflow=weighted.router(n, **terms, distances=far))
        return weighted.router(n, **terms, distances=far)

    def _divert(self, node: Node, key: Any, row: Any, error: BaseException) -> None:
        self.dead.append(
            {
                "operator": node.name,
                "key": "" if key is None else str(key),
                "row": _as_json(row),
                "error": f"{type(error).__name__}: {error}",
            }
        )

    def _file(self, folder: str, what: str = "") -> str:
        who = f"s{self.server}" if self.server >= 0 else f"t{self.task}"
        suffix = f"-{what}" if what else ""
        return f"{folder}/{self.plan.batch:012d}/{who}-{self.step}{suffix}-{uuid.uuid4().hex[:12]}.arrow"


class _Busy:
    """Adds the time spent inside to a report."""

    def __init__(self, report: TaskReport | OperatorReport) -> None:
        self.report = report

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.report.busy += time.perf_counter() - self.began


def _depot(job: Job, folder: str | None) -> Depot | None:
    if folder is None or job.hosts is None:
        return None
    here = host_name()
    return Depot(folder, job.query, job.plan.batch, [host == here for host in job.hosts])


def host_name() -> str:
    """The host as Spark knows it: a name given to it, else the machine's own."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname()


def _add(sent: dict[int, tuple[int, int]], server: int, rows: int, size: int) -> None:
    before = sent.get(server, (0, 0))
    sent[server] = before[0] + rows, before[1] + size


def partial_schema(node: Node) -> pa.Schema:
    """How partial states of an operator travel."""
    return pa.schema([f for f in stored_schema(node.state) if f.name not in ("__dead", "__deadline")])


def _as_json(row: Any) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()


__all__ = ["EntryLayout", "Job", "Server"]
