"""Groupings: who receives a row. One file per grouping, named as in the papers.

To write a grouping of your own, subclass :class:`Grouping` and :class:`Router`.
"""

from weir.routing.base import Grouping, InstanceLoad, PlannedRouting, Router, RouterContext, RoutingRule
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
from weir.routing.weight_balance import BalancedWeights
from weir.routing.weight_control import DynamicWeights
from weir.routing.weighted import Weighted

__all__ = [
    "BalancedWeights",
    "BoundedRing",
    "Consistent",
    "DChoices",
    "DynamicWeights",
    "Grouping",
    "Hash",
    "HeavyKeys",
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
    "TwoChoices",
    "WChoices",
    "Weighted",
    "WorstCase",
]
