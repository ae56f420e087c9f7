"""Weir steers keyed streams on Spark.

Keys that travel together live together, no server is overloaded, near servers come before far ones, and servers are
added and removed while the stream runs. Start with :func:`source`.

All groupings are in :mod:`weir.routing`, all operators in :mod:`weir.operators`, functions of aggregates in
:mod:`weir.agg`, all errors in :mod:`weir.errors`.
"""

import logging
from typing import TYPE_CHECKING, Any

from weir import agg
from weir.elasticity.autoscale import Autoscale
from weir.engine.batch.fork import fork
from weir.errors import WeirError
from weir.flow import Application, Stream
from weir.graph.declare import State
from weir.locality.auto import Auto
from weir.locality.config import Locality
from weir.migration import migrate_state
from weir.network.racks import Racks
from weir.operators.aggregate import Aggregate, Count
from weir.operators.process import Process
from weir.operators.process.parts import ListState, MapState
from weir.operators.side_input import SideInput
from weir.operators.windows import session, sliding, tumbling
from weir.options import Options
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir.routing.table import Table
from weir.routing.weighted import Weighted
from weir.sources import files, kafka, source

if TYPE_CHECKING:
    from weir.spark.query import Query
    from weir.spark.state import read_state

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet, unless the program wants to hear

__all__ = [
    "Aggregate",
    "Application",
    "Auto",
    "Autoscale",
    "Consistent",
    "Count",
    "Hash",
    "ListState",
    "Locality",
    "MapState",
    "Options",
    "PartialKey",
    "Process",
    "Query",
    "Racks",
    "Shuffle",
    "SideInput",
    "State",
    "Stream",
    "Table",
    "Weighted",
    "WeirError",
    "agg",
    "files",
    "fork",
    "kafka",
    "migrate_state",
    "read_state",
    "session",
    "sliding",
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
