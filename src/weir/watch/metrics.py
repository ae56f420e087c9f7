"""Metrics for Prometheus, with names and units as its conventions want them.

Counters begin at zero when the page is started, and grow by each batch that is committed from then on; gauges are about
the last batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric

from weir.engine.documents import Commit
from weir.engine.progress import Progress, Seconds
from weir.watch.reader import RUNS, CheckpointReader

Labels = tuple[str, ...]
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds
# name → help and labels
COUNTERS: dict[str, tuple[str, Labels]] = {
    "weir_batches": ("Batches committed.", ()),
    "weir_rows": ("Rows taken from the sources.", ()),
    "weir_phase_seconds": ("Where the time of batches went.", ("phase",)),
    "weir_operator_rows": (
        "Rows that came to an operator (in) and left it (out).",
        ("operator", "direction"),
    ),
    "weir_operator_busy_seconds": ("Time that an operator worked, on all servers.", ("operator",)),
    "weir_operator_dropped_rows": ("Rows left out: null_keys, late, diverted.", ("operator", "reason")),
    "weir_edge_rows": ("Rows that crossed an edge, by how far they went.", ("edge", "distance")),
    "weir_edge_bytes": ("Bytes that crossed an edge, by how far they went.", ("edge", "distance")),
    "weir_moved_keys": ("Keys whose state moved to another server.", ()),
    "weir_reconfigurations": ("Reconfigurations considered, by what became of them.", ("result",)),
    "weir_scalings": ("Changes of the number of servers.", ()),
    "weir_batches_run_again": ("Batches that had to run twice.", ()),
    "weir_restarts": ("Restarts of the query.", ()),
}


class Metrics:
    """Adds up commits, and answers a scrape."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.reader: CheckpointReader | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)  # type: ignore[arg-type]
        self._counters = {n: Counter(n, *about, registry=self.registry) for n, about in COUNTERS.items()}
        about = "From a batch's plan to its end."
        self._durations = Histogram(
            "weir_batch_duration_seconds", about, buckets=BUCKETS, registry=self.registry
        )

    def add(self, commit: Commit) -> None:
        """Count a commit."""
        did = commit.progress or Progress()
        self._add("weir_batches", 1)
        self._add("weir_rows", did.rows)
        self._add("weir_moved_keys", (did.moved_keys or 0) + (did.scaled or {}).get("moved_keys", 0))
        if did.scaled:
            self._add("weir_scalings", 1)
        if did.ran_again:
            self._add("weir_batches_run_again", 1)
        if did.restarted:
            self._add("weir_restarts", 1)
        for decision in did.routing.new if did.routing else []:
            self._add("weir_reconfigurations", 1, "adopted" if decision.adopted else "refused")
        for name, op in did.operators.items():
            self._add("weir_operator_rows", op.rows_in, name, "in")
            self._add("weir_operator_rows", op.rows_out, name, "out")
            self._add("weir_operator_busy_seconds", op.busy, name)
            for reason in ("null_keys", "late", "diverted"):
                self._add("weir_operator_dropped_rows", getattr(op, reason), name, reason)
        for name, edge in did.edges.items():
            for distance, counts in edge.distance.items():
                self._add("weir_edge_rows", counts["rows"], name, distance)
                self._add("weir_edge_bytes", counts["bytes"], name, distance)
        known_later = did.before or Seconds()  # one batch later
        spent = {"waiting": did.seconds, "plan": did.seconds, "job": did.seconds}
        for phase, seconds in {**spent, "commit": known_later, "deliver": known_later}.items():
            self._add("weir_phase_seconds", getattr(seconds, phase) or 0.0, phase)
        self._durations.observe(did.seconds.plan + did.seconds.job)

    def _add(self, name: str, value: float, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(value)

    def collect(self) -> Iterator[Metric]:
        """Yield what is about the last batch: what the registry asks for."""
        if self.reader is not None:
            yield from _gauges(self.reader)


def _gauges(reader: CheckpointReader) -> Iterator[Metric]:
    status, commit = reader.status(), reader.latest
    up = float(status.state in RUNS)
    yield GaugeMetricFamily("weir_up", "Whether the query runs, as far as can be told.", value=up)
    if commit is None or commit.progress is None:
        return
    did = commit.progress
    plain = {
        "weir_last_commit_timestamp_seconds": ("When the last batch was committed.", did.time),
        "weir_last_batch": ("Number of the last batch.", commit.batch),
        "weir_servers": ("Servers.", commit.servers),
        "weir_lag_seconds": ("Age of the oldest row when the last batch had ended.", did.load.lag),
        "weir_utilisation_ratio": ("Share of the servers' time that went into work.", did.load.utilisation),
        "weir_locality_ratio": ("Share of rows that stayed on their server.", did.locality),
        "weir_table_version": ("Version of the routing tables.", commit.table_version),
    }
    for name, (text, value) in plain.items():
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value))
    state = {name: sum(s.bytes for server in v for s in server) for name, v in commit.manifest.items()}
    operators = did.operators.items()
    yield _by("weir_operator_keys", "Keys in state.", "operator", did.state_keys)
    yield _by("weir_operator_state_bytes", "Size of the state.", "operator", state)
    yield _by(
        "weir_operator_imbalance_ratio",
        "Rows of the busiest server over the average.",
        "operator",
        {name: op.imbalance for name, op in operators if op.imbalance is not None},
    )
    congested = {name: float(name in did.load.congested) for name in did.operators}
    yield _by("weir_operator_congested", "Whether more rows want in than get through.", "operator", congested)
    marks = {name: mark / 1e6 for name, mark in did.watermarks.items() if mark < 1 << 62}
    yield _by("weir_operator_watermark_timestamp_seconds", "Watermark.", "operator", marks)
    yield _quantiles("weir_operator_latency_seconds", "operator", {n: op.latency for n, op in operators})
    yield _quantiles("weir_sink_latency_seconds", "sink", did.sinks)
    busy = GaugeMetricFamily("weir_server_busy_seconds", "Work in the last batch.", labels=["server", "host"])
    for number, server in enumerate(did.servers):
        busy.add_metric([str(number), server.host], server.busy)
    yield busy


class Together:
    """Metrics of several queries, told apart by the label ``query``."""

    def __init__(self, queries: Mapping[str, Metrics]) -> None:
        self._queries = queries

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once, with the samples of all queries."""
        families: dict[str, Metric] = {}
        for query, metrics in self._queries.items():
            for one in metrics.registry.collect():
                family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                family.samples += [s._replace(labels={"query": query, **s.labels}) for s in one.samples]
        yield from families.values()


def _by(name: str, text: str, label: str, values: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def _quantiles(name: str, label: str, values: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, "Age of rows since their source.", labels=[label, "quantile"])
    for key, percentiles in values.items():
        for quantile, seconds in (percentiles or {}).items():
            family.add_metric([key, str(int(quantile[1:]) / 100)], seconds)
    return family
