"""OpenTelemetry gets a span per batch and phase, metrics, and failures."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import weir
import weir.otel
from support import posts, two_counts
from weir.testing import start


@pytest.fixture
def told():
    """Providers that keep what they are told: a listener, the spans, and a function that returns the metrics."""
    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))

    def metrics():
        scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
        return {metric.name: metric.data.data_points[0] for metric in scope.metrics}

    return weir.otel.Telemetry(tracers, MeterProvider([reader])), spans, metrics


def test_a_batch_is_a_span_with_its_phases_one_after_the_other(told, checkpoint):
    listener, spans, metrics = told
    delivered = []
    with start(
        two_counts(), checkpoint, servers=2, sink=lambda table, batch: delivered.append(batch)
    ) as query:
        query.add_listener(listener)
        query.feed(posts(50, 0))
        query.feed(posts(70, 1))
        did = query.recent_progress
    made = spans.get_finished_spans()
    batches = [span for span in made if span.name == "weir.batch"]
    assert [span.attributes["weir.batch"] for span in batches] == [0, 1] == delivered
    assert [span.attributes["weir.rows"] for span in batches] == [50, 70]
    assert batches[1].attributes["weir.locality"] == did[1].locality
    for batch, progress in zip(batches, did, strict=True):
        inside = [span for span in made if span.parent and span.parent.span_id == batch.context.span_id]
        assert [span.name for span in inside] == ["weir.plan", "weir.job", "weir.commit", "weir.deliver"]
        took = [(span.end_time - span.start_time) / 1e9 for span in inside]
        assert took == pytest.approx([getattr(progress.seconds, span.name[5:]) for span in inside], abs=1e-6)
        ends = [batch.start_time, *(span.end_time for span in inside)]
        assert ends[:-1] == [span.start_time for span in inside]
        assert ends[-1] == batch.end_time
    points = metrics()
    assert (points["weir.batches"].value, points["weir.rows"].value) == (2, 120)
    assert points["weir.rows"].attributes == {"weir.checkpoint": query.checkpoint}
    assert (points["weir.lag"].value, points["weir.locality"].value) == (did[1].load.lag, did[1].locality)
    assert points["weir.batch.duration"].count == 2


def test_a_failure_is_a_span_with_its_error(told):
    listener, spans, _ = told

    def fussy(row):
        raise ValueError("bad place")

    with start(weir.source("place string").filter(fussy).count("place"), servers=2) as query:
        query.add_listener(listener)
        with pytest.raises(weir.WeirError, match="bad place"):
            query.feed([{"place": "x"}])
    (span,) = spans.get_finished_spans()
    assert (span.name, span.status.is_ok) == ("weir.failure", False)
    assert "bad place" in span.status.description
