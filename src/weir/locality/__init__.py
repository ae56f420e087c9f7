"""Keys that travel together live together: locality-aware routing, learnt and changed while the stream runs."""

from weir.locality.config import Costs, Locality
from weir.locality.counts import BatchCounter, PairCounts, count_keys, count_pairs, merge
from weir.locality.forecast import Decision, Forecast
from weir.locality.graph import KeyGraph
from weir.locality.manager import LocalityManager, Plan
from weir.locality.partition import partition
from weir.locality.proposal import Proposal, Snapshot, propose
from weir.locality.stats import BatchStats
from weir.locality.table import Moves, Patch, RoutingTable

__all__ = [
    "BatchCounter",
    "BatchStats",
    "Costs",
    "Decision",
    "Forecast",
    "KeyGraph",
    "Locality",
    "LocalityManager",
    "Moves",
    "PairCounts",
    "Patch",
    "Plan",
    "Proposal",
    "RoutingTable",
    "Snapshot",
    "count_keys",
    "count_pairs",
    "merge",
    "partition",
    "propose",
]
