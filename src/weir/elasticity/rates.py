"""Input and processing rates of every operator over the last few batches, and which operators are congested."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.elasticity.graph import Graph
from weir.errors import ParameterError

CONGESTED = 1.2  # input over processing rate above which an operator is congested
WINDOW = 20  # batches that a rate is taken over


@dataclass(frozen=True)
class Sample:
    """What one operator did in one batch."""

    rows_in: float  # rows that all its instances processed
    rows_out: float  # rows that they emitted
    busy: float  # seconds that its instances spent on them, added up
    parallelism: int  # how many instances there were
    # rows that arrived for it; None where every batch processes all that arrives
    arrived: float | None = None
    # seconds that its instances could have worked, added up; None for the length of the batch, each.
    # Instances that take turns on one server have less: their part of its busy time
    available: float | None = None


@dataclass(frozen=True)
class Rates:
    """Rows per second of one operator, over all its instances.

    ``input`` is what arrives, ``processing`` what it can process when it never waits, ``emit`` what leaves it
    towards each child. What it does process is the smaller of the first two.

    >>> slow = Rates(input=900, processing=600, emit=600, parallelism=2)
    >>> slow.congested(), slow.throughput, slow.selectivity
    (True, 600, 1.0)
    """

    input: float
    processing: float
    emit: float
    parallelism: int = 1

    @property
    def throughput(self) -> float:
        return min(self.input, self.processing)

    @property
    def selectivity(self) -> float:
        """Return the rows emitted per row processed."""
        return self.emit / self.throughput if self.throughput > 0 else 0.0

    @property
    def ratio(self) -> float:
        """Return the input over the processing rate; 0 for an operator that nothing reaches."""
        if self.input <= 0:
            return 0.0
        return self.input / self.processing if self.processing > 0 else float("inf")

    def congested(self, rate: float = CONGESTED) -> bool:
        return self.ratio > rate


class Meter:
    """Rates over a sliding window of batches; all of them are forgotten when the parallelism changes.

    The processing rate comes from *busy* time: rows per second of work, times the seconds there are. So it is
    known without ever driving an operator to its limit, and an operator that merely keeps up with a slow
    parent is not taken for a slow one.

    Notes
    -----
    Stela reads the processing rate off an operator as it runs, which equals the input rate wherever the
    operator keeps up. Useful time was proposed as a measure by Kalavri et al., Three steps is all you need
    (OSDI 2018).

    Examples
    --------
    Two instances worked 8 of 10 seconds each on 1600 rows, while 2400 arrived: they can process 200 rows/s.

    >>> meter = Meter()
    >>> meter.observe(10.0, {"join": Sample(1600, 800, busy=16.0, parallelism=2, arrived=2400)})
    >>> meter.rates()["join"]
    Rates(input=240.0, processing=200.0, emit=80.0, parallelism=2)
    >>> meter.rates()["join"].congested()
    False
    """

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise ParameterError(f"a window needs at least one batch, got {window}")
        self._seen: deque[tuple[float, dict[str, Sample]]] = deque(maxlen=window)

    def observe(self, seconds: float, operators: Mapping[str, Sample]) -> None:
        """Take in one batch that took ``seconds``."""
        if seconds <= 0:
            raise ParameterError(f"a batch takes time, got {seconds} seconds")
        now = {name: sample.parallelism for name, sample in operators.items()}
        if self._seen and {n: s.parallelism for n, s in self._seen[-1][1].items()} != now:
            self._seen.clear()
        self._seen.append((seconds, dict(operators)))

    def rates(self) -> dict[str, Rates]:
        """Return the rates of every operator; empty before the first batch."""
        if not self._seen:
            return {}
        return {name: self._rate(name) for name in self._seen[-1][1]}

    def _rate(self, name: str) -> Rates:
        seen = [(seconds, samples[name]) for seconds, samples in self._seen]
        total = sum(seconds for seconds, _ in seen)
        rows = sum(s.rows_in for _, s in seen)
        busy = sum(s.busy for _, s in seen)
        arrived = sum(s.rows_in if s.arrived is None else s.arrived for _, s in seen)
        could = sum(t * s.parallelism if s.available is None else s.available for t, s in seen)
        # an operator that had no work counts as fast as its input
        processing = rows / busy * could / total if busy > 0 and rows > 0 else arrived / total
        return Rates(
            arrived / total, processing, sum(s.rows_out for _, s in seen) / total, seen[-1][1].parallelism
        )


def propagate(
    graph: Graph, rates: Mapping[str, Rates], external: Mapping[str, float] | None = None
) -> dict[str, Rates]:
    """Return the rates with inputs that follow from processing rates, from the sources to the sinks.

    Inputs of operators with parents are computed anew. ``external`` is what enters at an operator from outside, by
    default its input less what its parents emit. Give it where every batch processes all there is: measured inputs then
    don't show what more would come.

    200 rows/s come out of a source whose stream would offer 500:

    >>> graph = Graph(("a", "b"), (("a", "b"),))
    >>> seen = {"a": Rates(200, 300, 200), "b": Rates(200, 240, 200)}
    >>> {name: round(r.ratio, 2) for name, r in propagate(graph, seen, {"a": 500}).items()}
    {'a': 1.67, 'b': 1.25}
    """
    enters = dict(external) if external is not None else outside(graph, rates)
    out: dict[str, Rates] = {}
    for name in graph.order:
        own = rates[name]
        arriving = enters.get(name, 0.0) + sum(out[p].emit for p in graph.parents[name])
        emit = min(arriving, own.processing) * own.selectivity
        out[name] = replace(own, input=arriving, emit=emit)
    return {name: out[name] for name in graph.operators}


def outside(graph: Graph, rates: Mapping[str, Rates]) -> dict[str, float]:
    """Return what reaches each operator from outside of the graph: its input less what its parents emit."""
    return {
        name: max(0.0, rates[name].input - sum(rates[p].emit for p in graph.parents[name]))
        for name in graph.operators
    }


def congested(rates: Mapping[str, Rates], rate: float = CONGESTED) -> set[str]:
    """Return the operators that cannot keep up.

    >>> sorted(congested({"a": Rates(100, 100, 100), "b": Rates(100, 50, 50), "c": Rates(55, 50, 50)}))
    ['b']
    """
    return {name for name in rates if rates[name].congested(rate)}
