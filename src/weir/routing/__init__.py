"""Groupings: who receives a row. One file per grouping, named as in the papers; rivals are in weir_evaluation.routing.

To write one of your own, subclass :class:`Grouping` and :class:`Router`. :func:`weir.testing.check_grouping` tries it.
"""

from weir.hashing import key_group, mix
from weir.routing.base import (
    Counters,
    CountingGrouping,
    Grouping,
    InstanceLoad,
    Instances,
    Keys,
    OperatorTraits,
    PlannedRouting,
    Router,
    RouterContext,
    RoutingRule,
)
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import LocalOrShuffle, Shuffle
from weir.routing.table import Table
from weir.routing.weighted import BalancedWeights, Weighted

__all__ = [
    "BalancedWeights",
    "Consistent",
    "Counters",
    "CountingGrouping",
    "Grouping",
    "Hash",
    "InstanceLoad",
    "Instances",
    "Keys",
    "LocalOrShuffle",
    "OperatorTraits",
    "PartialKey",
    "PlannedRouting",
    "Router",
    "RouterContext",
    "RoutingRule",
    "Shuffle",
    "Table",
    "Weighted",
    "key_group",
    "mix",
]

_MOVED = (
    *("BoundedRing", "DChoices", "DynamicWeights", "HeavyKeys", "RandomChoices", "TwoChoices", "WChoices"),
    "WorstCase",
)


def __getattr__(name: str) -> None:
    if name in _MOVED:
        raise AttributeError(f"weir.routing.{name} has moved: it is weir_evaluation.routing.{name} now")
    raise AttributeError(f"module 'weir.routing' has no attribute {name!r}")
