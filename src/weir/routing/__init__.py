"""Groupings: who receives a row. One file per grouping, named as in the papers; rivals are in weir_evaluation.routing.

To write a grouping of your own, subclass :class:`Grouping` and :class:`Router`.
"""

from weir.routing.base import Grouping, InstanceLoad, PlannedRouting, Router, RouterContext, RoutingRule
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.random_choices import RandomChoices
from weir.routing.shuffle import LocalOrShuffle, Shuffle
from weir.routing.table import Table
from weir.routing.weight_balance import BalancedWeights
from weir.routing.weight_control import DynamicWeights
from weir.routing.weighted import Weighted

__all__ = [
    "BalancedWeights",
    "Consistent",
    "DynamicWeights",
    "Grouping",
    "Hash",
    "InstanceLoad",
    "LocalOrShuffle",
    "PartialKey",
    "PlannedRouting",
    "RandomChoices",
    "Router",
    "RouterContext",
    "RoutingRule",
    "Shuffle",
    "Table",
    "Weighted",
]


def __getattr__(name: str) -> None:
    if name in ("BoundedRing", "DChoices", "HeavyKeys", "TwoChoices", "WChoices", "WorstCase"):
        raise AttributeError(f"weir.routing.{name} has moved: it is weir_evaluation.routing.{name} now")
    raise AttributeError(f"module 'weir.routing' has no attribute {name!r}")
