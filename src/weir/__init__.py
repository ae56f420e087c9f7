"""Weir steers keyed streams on Spark.

Keys that travel together live together, no server drowns, near beats far, and the river bed widens while the
water runs. Start with :func:`source`.
"""

from typing import TYPE_CHECKING, Any

from weir.elasticity.autoscale import Autoscale
from weir.errors import (
    CheckpointError,
    CheckpointMismatch,
    EngineError,
    GroupingError,
    NullKeyError,
    OperatorError,
    SourceError,
    TopologyError,
    UnknownColumn,
    WeirError,
)
from weir.flow import Flow, Stream, files, source, tumbling
from weir.locality.config import Locality
from weir.locality.table import RoutingTable
from weir.network.racks import Racks
from weir.operators.aggregate import Aggregate, Count
from weir.operators.process import Process
from weir.operators.stateless import Filter, Map
from weir.routing.base import Grouping, Router
from weir.routing.bounded_ring import BoundedRing
from weir.routing.consistent import Consistent
from weir.routing.d_choices import DChoices
from weir.routing.dkg import HeavyKeys
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.random_choices import RandomChoices
from weir.routing.shuffle import LocalOrShuffle, Shuffle
from weir.routing.table import Table, WorstCase
from weir.routing.two_choices import TwoChoices
from weir.routing.w_choices import WChoices
from weir.routing.weight_control import DynamicWeights
from weir.routing.weighted import Weighted

if TYPE_CHECKING:
    from weir.spark.query import Query
    from weir.spark.state import read_state

__version__ = "0.2.0"

__all__ = [
    "Aggregate",
    "Autoscale",
    "BoundedRing",
    "CheckpointError",
    "CheckpointMismatch",
    "Consistent",
    "Count",
    "DChoices",
    "DynamicWeights",
    "EngineError",
    "Filter",
    "Flow",
    "Grouping",
    "GroupingError",
    "Hash",
    "HeavyKeys",
    "LocalOrShuffle",
    "Locality",
    "Map",
    "NullKeyError",
    "OperatorError",
    "PartialKey",
    "Process",
    "Query",
    "Racks",
    "RandomChoices",
    "Router",
    "RoutingTable",
    "Shuffle",
    "SourceError",
    "Stream",
    "Table",
    "TopologyError",
    "TwoChoices",
    "UnknownColumn",
    "WChoices",
    "Weighted",
    "WeirError",
    "WorstCase",
    "files",
    "read_state",
    "source",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    # what needs pyspark is imported when it is used: the algorithms work without it
    if name == "read_state":
        from weir.spark.state import read_state

        return read_state
    if name == "Query":
        from weir.spark.query import Query

        return Query
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
