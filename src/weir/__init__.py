"""Weir steers keyed streams on Spark.

Keys that travel together live together, no server drowns, near beats far, and the river bed widens while the
water runs. Start with :func:`source`.
"""

from typing import TYPE_CHECKING, Any

from weir.app import Flow, Stream, files, source, tumbling
from weir.elasticity.autoscale import Autoscale
from weir.errors import (
    CheckpointError,
    CheckpointMismatch,
    EngineError,
    GroupingError,
    LabError,
    NullKeyError,
    OperatorError,
    SourceError,
    TopologyError,
    UnknownColumn,
    WeirError,
)
from weir.grouping.base import Grouping, Router
from weir.grouping.bounded_ring import BoundedRing
from weir.grouping.consistent import Consistent
from weir.grouping.d_choices import DChoices
from weir.grouping.dkg import HeavyKeys
from weir.grouping.hashed import Hash
from weir.grouping.partial_key import PartialKey
from weir.grouping.random_choices import RandomChoices
from weir.grouping.shuffle import LocalOrShuffle, Shuffle
from weir.grouping.table import Table, WorstCase
from weir.grouping.two_choices import TwoChoices
from weir.grouping.w_choices import WChoices
from weir.grouping.weight_control import DynamicWeights
from weir.grouping.weighted import Weighted
from weir.locality.config import Locality
from weir.locality.table import RoutingTable
from weir.network.racks import Racks
from weir.operators.aggregate import Aggregate, Count
from weir.operators.process import Process
from weir.operators.stateless import Filter, Map

if TYPE_CHECKING:
    from weir.spark.query import Query
    from weir.spark.state import read_state

__version__ = "0.1.0"

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
    "LabError",
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
    if name == "lab":
        import importlib

        return importlib.import_module("weir.lab")
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
