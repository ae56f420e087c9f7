"""Operators: what happens to the rows of a stream. One file per kind: its specification and its instance on a server.

To write an operator of your own, subclass :class:`Operator` and :class:`Instance`.
"""

from weir.operators.aggregate import Aggregate, Count
from weir.operators.aggregate.aggregate_functions import AggregateFunction, PythonAggregate
from weir.operators.base import Operator
from weir.operators.deduplicate import Deduplicate
from weir.operators.instance import Context, Instance, keyed_schema
from weir.operators.join import AsOfJoin, Join
from weir.operators.lookup import Lookup
from weir.operators.map_async import MapAsync
from weir.operators.process import KeyedBatch, Process, ProcessBatch
from weir.operators.stateless import Filter, FilterRows, FlatMapRows, Map, MapRows
from weir.operators.timers import Timer, Timers
from weir.operators.windows import Window
from weir.rows import Rows

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AsOfJoin",
    "Context",
    "Count",
    "Deduplicate",
    "Filter",
    "FilterRows",
    "FlatMapRows",
    "Instance",
    "Join",
    "KeyedBatch",
    "Lookup",
    "Map",
    "MapAsync",
    "MapRows",
    "Operator",
    "Process",
    "ProcessBatch",
    "PythonAggregate",
    "Rows",
    "Timer",
    "Timers",
    "Window",
    "keyed_schema",
]
