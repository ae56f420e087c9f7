"""Locality-aware routing: keys that are seen together live on one server, learnt and changed as the stream runs.

* :mod:`~weir.locality.config`, :mod:`~weir.locality.auto`: what a user sets
* :mod:`~weir.locality.capacity`: how fast servers are
* :mod:`~weir.locality.counts`, :mod:`~weir.locality.stats`: how often keys and pairs of keys were seen in a batch
* :mod:`~weir.locality.history`, :mod:`~weir.locality.key_homes`: what is remembered of pairs and of keys
* :mod:`~weir.locality.graph`, :mod:`~weir.locality.partition`: the graph of keys, and its partition over servers
* :mod:`~weir.locality.forecast`, :mod:`~weir.locality.proposal`: new tables, and whether they pay
* :mod:`~weir.locality.placement`: servers for new keys at every batch boundary
* :mod:`~weir.locality.manager`: all of this for one application, batch after batch

Nothing here depends on Spark or on the engine.

Reference: M. Caneill, A. El Rheddane, V. Leroy, N. De Palma, "Locality-aware routing in stateful streaming
applications", Middleware 2016.
"""

from weir.locality.auto import Auto
from weir.locality.config import Costs, Locality
from weir.locality.counts import PairCounts, count_keys, count_pairs, merge
from weir.locality.forecast import Forecast, Reconfiguration
from weir.locality.graph import KeyGraph
from weir.locality.manager import LocalityManager, Plan
from weir.locality.partition import partition
from weir.locality.proposal import Proposal, Snapshot, propose
from weir.locality.stats import BatchStats

__all__ = [
    "Auto",
    "BatchStats",
    "Costs",
    "Forecast",
    "KeyGraph",
    "Locality",
    "LocalityManager",
    "PairCounts",
    "Plan",
    "Proposal",
    "Reconfiguration",
    "Snapshot",
    "count_keys",
    "count_pairs",
    "merge",
    "partition",
    "propose",
]
