"""Operators: what happens to the rows of a stream. One file per kind: its specification and its instance on a server.

To write an operator of your own, subclass :class:`Operator` and :class:`Instance`.
"""

from weir.operators.aggregate import Aggregate, Count
from weir.operators.base import Operator, Window
from weir.operators.instance import Context, Instance, keyed_schema
from weir.operators.process import Process
from weir.operators.rowwise import FilterRows, FlatMapRows, MapRows
from weir.operators.stateless import Filter, Map
from weir.rows import Rows

__all__ = [
    "Aggregate",
    "Context",
    "Count",
    "Filter",
    "FilterRows",
    "FlatMapRows",
    "Instance",
    "Map",
    "MapRows",
    "Operator",
    "Process",
    "Rows",
    "Window",
    "keyed_schema",
]
