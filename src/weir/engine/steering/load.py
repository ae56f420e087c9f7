"""How fast every operator is, from the reports of each batch: what scaling decisions start from.

Stela asks for input and processing rates. In a batch engine every operator processes all that a batch brings, so
neither can be read off directly:

* The **processing rate** comes from busy time (:class:`~weir.elasticity.rates.Meter`): rows per second of work, times
  the seconds that its instances could have worked. Operators that share a server leave each other less.
* The **input rate** is what wants to come in. While the stream leaves the servers time to rest, that is rows per
  second of wall clock. When batch follows on batch, and some server is busy, more wants to come in than gets
  through; then it is what the first operators could take, or what all servers could if work were spread evenly over
  them, whichever is more. An operator is congested if each of its instances has more work than that leaves time for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weir.elasticity.decision import Situation
from weir.elasticity.graph import Graph, Placement
from weir.elasticity.rates import CONGESTED, Meter, Rates, Sample, congested, outside, propagate
from weir.engine.documents import TaskReport
from weir.engine.progress import LoadProgress
from weir.engine.steering.rescale import everywhere, graph_of
from weir.graph.model import Topology
from weir.locality.capacity import Capacity

REST = 1.0  # seconds without a batch that count as rest; less is Spark's own book-keeping between batches
REST_PART = 0.25  # and at least this part of the batch's length
BUSY = 0.25  # share of the time that the busiest server works, below which no server holds the stream up


class Load:
    """Rates of a running query, over a sliding window of batches."""

    def __init__(self, topology: Topology, congestion: float = CONGESTED) -> None:
        self.topology = topology
        self.congestion = congestion
        self._meter, self._capacity = Meter(), Capacity(topology.servers)
        self._length = 0.0
        self.utilisation = 0.0
        self.lag = 0.0
        self._rests = False  # whether the last batch had to wait for rows

    def rescale(self, topology: Topology) -> None:
        """Other servers: rates are measured anew."""
        self.topology, self._meter, self._capacity = topology, Meter(), Capacity(topology.servers)

    def observe(self, reports: list[TaskReport], seconds: float, rested: float = 0.0) -> None:
        """Take in one batch that took some seconds, and how long nothing had been going on before."""
        topology, n = self.topology, self.topology.servers
        # a row that came just after the last batch had begun waits for that one, then for its own
        self.lag = self._length + rested + seconds
        self._length = seconds
        apart = seconds + rested
        busy = np.zeros((len(topology.nodes), n))
        outside = np.zeros(len(topology.nodes))  # in source tasks, which belong to no server
        rows = np.zeros((len(topology.nodes), 2))
        taken = np.zeros_like(busy)
        for node in topology.nodes:
            by_server, elsewhere, rows_in, rows_out = [0.0] * n, 0.0, 0, 0
            for report in reports:
                did = report.operators.get(node.name)
                if did is None:
                    continue
                rows_in, rows_out = rows_in + did.rows_in, rows_out + did.rows_out
                if report.server is not None:
                    by_server[report.server] += did.busy
                    taken[node.index, report.server] += did.rows_in
                else:
                    elsewhere += did.busy
            busy[node.index], outside[node.index] = by_server, elsewhere
            rows[node.index] = rows_in, rows_out
        self._capacity.observe(dict(enumerate(taken)), dict(enumerate(busy)))
        total = float(busy.sum() + outside.sum())
        self.utilisation = min(1.0, total / max(n * apart, 1e-9))
        if total <= 0 or not rows.any():
            return
        busiest = max(busy.sum(axis=0).max(), outside.max())
        self._rests = rested > max(REST, REST_PART * seconds) or busiest < BUSY * apart
        span = apart if self._rests else total / n
        on_server = busy.sum(axis=0)
        samples = {}
        for node in topology.nodes:
            where = list(node.placement)
            own = busy[node.index, where]
            others = on_server[where] - own
            part = np.where(on_server[where] > 0, own / np.maximum(on_server[where], 1e-12), 1.0)
            free = np.maximum(span - others, span * part).sum()
            samples[node.name] = Sample(
                rows_in=float(rows[node.index, 0]),
                rows_out=float(rows[node.index, 1]),
                busy=float(own.sum() + outside[node.index]),
                parallelism=len(where),
                available=float(free),
            )
        self._meter.observe(span, samples)

    def rates(self) -> dict[str, Rates]:
        """Rates of every operator; empty before the first batch with rows."""
        seen = self._meter.rates()
        if not seen:
            return {}
        graph = graph_of(self.topology)
        entering = outside(graph, seen)
        if not self._rests:
            # more rows wait than come in: the first operators take as many as they can
            entering |= {name: max(entering[name], seen[name].processing) for name in graph.sources}
        # a batch processes all that comes in: what was emitted was made of that, also where it is more than the
        # operator can process in the time that work spread evenly would take
        able = {n: replace(r, emit=r.emit * r.throughput / r.input) for n, r in seen.items() if r.input > 0}
        return propagate(graph, seen | able, entering)

    def congested(self) -> list[str]:
        """Operators that can't keep up."""
        return sorted(congested(self.rates(), self.congestion))

    def summary(self) -> LoadProgress:
        """Return what progress says of it; :func:`situation` makes sense of that in any process."""
        rates, topology = self.rates(), self.topology
        return LoadProgress(
            utilisation=self.utilisation,
            lag=self.lag,
            congestion=self.congestion,
            congested=sorted(congested(rates, self.congestion)) if rates else [],
            rates={n: [r.input, r.processing, r.emit, r.parallelism] for n, r in rates.items()},
            edges=[list(e) for e in graph_of(topology).edges],
            placement={n.name: list(n.placement) for n in topology.nodes},
            everywhere=sorted(everywhere(topology)),
            servers=topology.servers,
            speeds=[] if self._capacity.shares is None else self._capacity.speeds.round(3).tolist(),
        )

    def situation(self) -> Situation:
        """Return the application as a scaling strategy sees it."""
        return situation(self.summary())


def situation(load: LoadProgress) -> Situation:
    """Return the situation that a commit's progress describes: to ask what scaling would do without a running query."""
    placement = {name: tuple(where) for name, where in load.placement.items()}
    graph = Graph(tuple(placement), tuple((a, b) for a, b in load.edges))
    rates = {name: Rates(a, b, c, int(k)) for name, (a, b, c, k) in load.rates.items()}
    return Situation(
        graph,
        rates,
        Placement(tuple(range(load.servers)), placement),
        load.congestion,
        distinct=True,
        everywhere=frozenset(load.everywhere),
        speeds=dict(enumerate(load.speeds)),
    )
