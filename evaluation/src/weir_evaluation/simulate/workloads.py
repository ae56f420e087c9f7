"""The two applications of Squirrel's evaluation on its cluster, for figures and benchmarks.

Where every number comes from:

* *Cluster*: four machines of one rack with a process each (the fifth was the master), a source and an instance of
  every operator on each. More cores than threads, so threads do not disturb each other.
* *Wordcount*: source → (shuffle) split → (key) count. Work on a row and its way: :data:`~weir.network.profile.PAPER`,
  which follows from Table 1 and Fig. 3 of the paper alone. The receiver pays for serialisation; Fig. 3 only gives
  the sum of both sides (``at_sender`` of :func:`~weir_evaluation.simulate.pipeline.saturate` shares it out otherwise).
* *Advertising*: receive → (shuffle) parse, filter, join → (key) windowed count, store. One event in three passes
  the filter (views, not clicks or purchases), 100 campaigns of 10 ads, as in the Yahoo benchmark. The paper has no
  costs by distance for it: a row costs as much of wordcount's as makes the *plain* grouping reach its 76,173 rows/s
  on four machines, three quarters of all rows crossing the network.
* *Rows in flight*: throughput times latency of the paper's *plain* runs (Little's law), 57,162/s · 1.91 ms and
  76,173/s · 3.26 ms, a quarter for each source.
* *Not modelled*: the merging of partial states behind weights, which the paper's runs do not have either; Flink's
  buffers beyond the bound on rows in flight; the time to start a job.
* *Heterogeneity*: the paper gives the ratio of the fastest machine to the slowest only; speeds between them are
  spaced evenly on a logarithmic scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.network.distance import Place
from weir.network.profile import PAPER
from weir.routing.base import Grouping
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle
from weir.routing.weighted import BalancedWeights, Weighted
from weir_evaluation.routing import DynamicWeights, PrintedWeights
from weir_evaluation.simulate.pipeline import PipelineResult, PipelineStage, saturate
from weir_evaluation.simulate.streams import SimulatedStream, zipf

Method = Literal["plain", "WG", "WG+DWC", "WG+BW", "WG+A2"]
METHODS: tuple[Method, ...] = ("plain", "WG", "WG+DWC", "WG+BW", "WG+A2")
CLUSTER = tuple(Place("1", f"host-{i}", "rack") for i in range(4))
CAMPAIGNS, ADS = 100, 10


@dataclass(frozen=True)
class Workload:
    """A source and two operators: the first takes rows by shuffle, the second by key.

    ``cost`` is that of a row, in work and in bytes, with a row of wordcount as the unit; ``keep`` is the share of
    rows that the first operator hands on.
    """

    name: str
    cost: float
    keep: float
    plain_rows_per_s: float  # the paper's, for the plain grouping
    plain_latency_ms: float

    @property
    def window(self) -> int:
        """Rows in flight per source."""
        return round(self.plain_rows_per_s * self.plain_latency_ms / 1000 / len(CLUSTER))

    def run(
        self, method: Method, stream: SimulatedStream, *, heterogeneity: float = 1.0, **more: Any
    ) -> PipelineResult:
        """Under full load; ``more`` goes to :func:`~weir_evaluation.simulate.pipeline.saturate`.

        Examples
        --------
        >>> stream = zipf(30_000, 1000, z=1.0)
        >>> plain, ours = (WORDCOUNT.run(method, stream) for method in ("plain", "WG+DWC"))
        >>> ours.rows_per_s > plain.rows_per_s
        True
        """
        seconds = self.cost * PAPER.handling_s
        stages = [
            PipelineStage(grouping(method, Shuffle()), seconds, self.keep),
            PipelineStage(grouping(method, Hash()), seconds),
        ]
        options: dict[str, Any] = {
            "window": self.window,
            "speeds": graded(heterogeneity),
            "places": CLUSTER,
        } | more
        return saturate(stream, stages, row_bytes=self.cost * PAPER.row_bytes, **options)


def grouping(method: Method, default: Grouping) -> Grouping:
    """The default grouping itself, or with fixed weights (WG), or with weights that follow load.

    These are Squirrel's with what makes them settle (DWC), balanced ones (BW, ours), or Squirrel's to the letter (A2).
    """
    if method == "plain":
        return default
    controls = {
        "WG": None,
        "WG+DWC": DynamicWeights(),
        "WG+BW": BalancedWeights(),
        "WG+A2": PrintedWeights(),
    }
    return Weighted(default, control=controls[method])


def graded(ratio: float, machines: int = len(CLUSTER)) -> NDArray[np.float64]:
    """Speeds from 1 down to 1/ratio.

    >>> graded(8).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    return float(ratio) ** (-np.arange(machines) / (machines - 1))


def events(rows: int, seed: int = 0) -> SimulatedStream:
    """Advertising events: ads at random, each of one of a hundred campaigns, which is what counts are kept by.

    >>> stream = events(50_000)
    >>> len(np.unique(stream.hashes[stream.ids]))
    100
    """
    ads = zipf(rows, CAMPAIGNS * ADS, 0.0, seed=seed)
    campaigns = mix(np.arange(CAMPAIGNS * ADS, dtype=np.uint64) // np.uint64(ADS), np.uint64(seed + 7))
    return SimulatedStream("events", ads.ids, campaigns)


def _cost_of_plain(rows_per_s: float) -> float:
    remote = 1 - 1 / len(CLUSTER)
    wordcount = PAPER.handling_s + remote * PAPER.row_bytes * PAPER.serialise_s_per_byte[2]
    return len(CLUSTER) / rows_per_s / wordcount


WORDCOUNT = Workload("wordcount", 1.0, 1.0, 57_162, 1.91)
ADVERTISING = Workload("advertising", _cost_of_plain(76_173), 1 / 3, 76_173, 3.26)
