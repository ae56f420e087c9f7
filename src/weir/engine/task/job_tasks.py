"""The tasks of a Spark job: source tasks in step 0, then one task per server and step, with an exchange between.

A task is handed the batches that reached it and yields those for the next exchange; whoever runs it only moves them.
Its report takes the same way, to the server that goes on with its state: what a step has written belongs to the rows
that it has sent, whichever attempt of the task that was. The last step's tasks tell the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from weir.engine.documents import TaskReport, decode_report, encode_report
from weir.engine.exchange import wire
from weir.engine.exchange.host_handoff import HandoffReader
from weir.engine.metrics.latency import Busy
from weir.engine.metrics.traffic import Distances, places_of
from weir.engine.task.batch_context import BatchContext, host_name
from weir.engine.task.reports import condensed
from weir.engine.task.routers import Routers
from weir.engine.task.runtime import OperatorRuntime, new_report
from weir.errors import WeirError


class SourceTask:
    """Routes the rows of a source, and runs the operators in front of the first exchange.

    In ``folder``, on this host, rows may be left for servers here.
    """

    def __init__(self, job: BatchContext, number: int, folder: str | None = None) -> None:
        self._outbox = wire.ExchangeOutbox(
            job.slots, job.handoff(folder), wire.sender_name(None, host_name())
        )
        report = new_report(None, [0], host_name())
        self._runtime = OperatorRuntime(job, report, self._outbox, Routers(job, None, number), 0)
        self._to, self._last = number % job.plan.servers, job.topology.steps == 0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take what a source delivers, yield what goes into the first exchange."""
        runtime, outbox = self._runtime, self._outbox
        with contextlib.closing(outbox):
            for batch in batches:
                if batch.num_rows:
                    with Busy(runtime.report):
                        runtime.receive_source(batch)
                    if outbox.full():
                        yield from outbox.flush()
            with Busy(runtime.report):
                for part in (*runtime.topology.sources, *runtime.topology.by_name):
                    runtime.flush_waiting(part)
            _report(runtime, outbox, self._to, [], self._last)
            yield from outbox.flush()

    def fail(self, error: WeirError) -> Iterator[pa.RecordBatch]:
        """Report that a user's function failed, see :meth:`StepTask.fail`."""
        return _failed(self._runtime.report, error, self._outbox, self._to)


class StepTask:
    """Runs one step of a batch on one server."""

    def __init__(
        self, job: BatchContext, step: int, server: int, folder: str | None = None, host: str = ""
    ) -> None:
        host = host or host_name()
        self._outbox = wire.ExchangeOutbox(job.slots, job.handoff(folder), wire.sender_name(server, host))
        report = new_report(server, [step], host)
        self._runtime = OperatorRuntime(job, report, self._outbox, Routers(job, server), step)
        self._step, self._server, self._last = step, server, step == job.topology.steps
        self._distances = Distances(places_of(job.plan.network), server, host)
        self._handoff = HandoffReader()
        self._carried: list[TaskReport] = []  # of earlier steps, on their way to the driver

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take what the exchange delivers, yield what goes into the next one."""
        runtime, outbox = self._runtime, self._outbox
        with contextlib.closing(outbox):
            if self._step == 1:
                runtime.receive_listing()
                yield from self._read()
            for batch in batches:
                if batch.num_rows:
                    with Busy(runtime.report):
                        self._receive(batch)
                    yield from self._read()
                    if outbox.full():
                        yield from outbox.flush()
            failed = [report for report in self._carried if report.error is not None]
            if failed:
                _forward(failed, outbox, self._server)
            else:
                with Busy(runtime.report):
                    self._finish()
                _report(runtime, outbox, self._server, self._carried, self._last)
            yield from outbox.flush()

    def fail(self, error: WeirError) -> Iterator[pa.RecordBatch]:
        """Report to the driver that a user's function failed, in place of what this task would have sent.

        Raised in a task, it would be tried again by Spark, and logged by each of its layers.
        """
        return _failed(self._runtime.report, error, self._outbox, self._server)

    def _read(self) -> Iterator[pa.RecordBatch]:
        for _ in self._runtime.read():
            if self._outbox.full():
                yield from self._outbox.flush()

    def _receive(self, batch: pa.RecordBatch) -> None:
        runtime = self._runtime
        heads = [batch.column(c).to_pylist() for c in ("kind", "edge", "source_time", "sender")]
        for kind, edge, source_time, sender, payload in zip(*heads, wire.payloads(batch), strict=True):
            if kind == wire.CONTROL:
                self._carried.append(runtime.keeper.hear(decode_report(payload)))
            elif kind == wire.STATISTICS:
                if runtime.key_counter is not None:
                    runtime.key_counter.add(payload.to_pybytes())
            else:
                if kind & wire.ADDRESSED:
                    kind, payload = kind - wire.ADDRESSED, self._handoff.fetch(payload)
                rows = runtime.receive(kind, edge, payload, source_time)
                if kind == wire.DATA:
                    self._distances.count(runtime.edge(edge).arrived, sender, rows, payload.size)
                elif runtime.topology.nodes[edge].splits:
                    self._distances.count(runtime.report.partials, sender, rows, payload.size)

    def _finish(self) -> None:
        runtime = self._runtime
        if self._step == 1:
            runtime.keeper.change_owners()
            runtime.keeper.merge_segments()
        for node in runtime.topology.nodes:
            runtime.save(node, runtime.finish(node, self._step))
            runtime.flush_waiting(node.name)


def _report(
    runtime: OperatorRuntime, outbox: wire.ExchangeOutbox, to: int, carried: list[TaskReport], last: bool
) -> None:
    """Send a task's report, and those it has carried, to the server that goes on with its state."""
    stats = runtime.close(last)
    runtime.report.left_bytes = outbox.left_bytes
    reports = [*carried, runtime.report]
    _forward(condensed(reports, runtime.report.server) if last else reports, outbox, to)
    if stats is not None:
        outbox.put(to, wire.STATISTICS, 0, stats)


def _failed(
    report: TaskReport, error: WeirError, outbox: wire.ExchangeOutbox, to: int
) -> Iterator[pa.RecordBatch]:
    report.error = type(error).__name__, str(error)
    _forward([report], outbox, to)
    return outbox.flush()


def _forward(reports: Iterable[TaskReport], outbox: wire.ExchangeOutbox, to: int) -> None:
    for report in reports:
        outbox.put(to, wire.CONTROL, 0, encode_report(report))
