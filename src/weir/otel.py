"""Traces and metrics for OpenTelemetry, from the events of a query.

It speaks to the API alone: where spans and metrics go is set up by the program, or by ``opentelemetry-instrument`` and
its variables. Needs ``pip install 'weir-streams[otel]'``.
"""

from __future__ import annotations

import time
from typing import Any

from weir.engine.batch.events import BatchDelivered, Event, Failed
from weir.engine.progress import Progress
from weir.extras import require

PHASES = ("plan", "job", "commit", "deliver")


class Telemetry:
    """A listener that makes a span of every batch, with one of each phase below it, and metrics.

    Spans are called ``weir.batch`` and ``weir.plan``, ``weir.job``, ``weir.commit``, ``weir.deliver``. A failure is a
    span ``weir.failure`` with the error's status. Metrics are ``weir.batches``, ``weir.rows``, ``weir.batch.duration``,
    ``weir.lag``, ``weir.utilisation`` and ``weir.locality``, with the checkpoint as attribute.

    Parameters
    ----------
    tracers, meters
        Providers of OpenTelemetry; the global ones if not given.

    Examples
    --------
    ::

        query = app.start("ckpt", servers=4)
        query.add_listener(weir.otel.Telemetry())
    """

    def __init__(self, tracers: Any = None, meters: Any = None) -> None:
        trace = require("opentelemetry.trace", "otel")
        metrics = require("opentelemetry.metrics", "otel")
        self._trace = trace
        self._tracer = trace.get_tracer("weir", tracer_provider=tracers)
        meter = metrics.get_meter("weir", meter_provider=meters)
        self._batches = meter.create_counter("weir.batches", description="Batches committed and delivered")
        self._rows = meter.create_counter("weir.rows", description="Rows taken from the sources")
        self._duration = meter.create_histogram("weir.batch.duration", "s", "From a batch's plan to its end")
        self._gauges = {
            name: meter.create_gauge(f"weir.{name}", unit)
            for name, unit in (("lag", "s"), ("utilisation", "1"), ("locality", "1"))
        }

    def __call__(self, event: Event) -> None:
        """Take an event of the query."""
        match event:
            case BatchDelivered(progress=progress):
                self._batch(event.checkpoint, progress)
            case Failed(error=error):
                span = self._tracer.start_span(
                    "weir.failure", attributes={"weir.checkpoint": event.checkpoint}
                )
                span.record_exception(error)
                span.set_status(self._trace.StatusCode.ERROR, str(error))
                span.end()

    def _batch(self, checkpoint: str, did: Progress) -> None:
        where = {"weir.checkpoint": checkpoint}
        seconds = {phase: getattr(did.seconds, phase) or 0.0 for phase in PHASES}
        at = time.time_ns() - int((did.seconds.batch or sum(seconds.values())) * 1e9)
        about = {"weir.batch": did.batch, "weir.rows": did.rows, "weir.execution": did.execution}
        about |= {"weir.servers": len(did.servers), "weir.table_version": did.table_version}
        if did.locality is not None:
            about["weir.locality"] = did.locality
        batch = self._tracer.start_span("weir.batch", start_time=at, attributes={**where, **about})
        inside = self._trace.set_span_in_context(batch)
        for phase, took in seconds.items():
            end = at + int(took * 1e9)
            self._tracer.start_span(f"weir.{phase}", inside, start_time=at).end(end)
            at = end
        batch.end(at)
        self._batches.add(1, where)
        self._rows.add(did.rows, where)
        self._duration.record(sum(seconds.values()), where)
        values = {"lag": did.load.lag, "utilisation": did.load.utilisation, "locality": did.locality}
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(value, where)
