"""Groupings that Weir is compared with. They work in applications and simulations like Weir's own.

>>> import weir
>>> from weir_evaluation.routing import DChoices
>>> weir.source("word string").keyed("word", weir.Count(), routing=DChoices())
Stream(source → word)
"""

from weir_evaluation.routing.bounded_ring import BoundedRing
from weir_evaluation.routing.d_choices import DChoices
from weir_evaluation.routing.dalton import Dalton
from weir_evaluation.routing.dkg import HeavyKeys
from weir_evaluation.routing.dynamic_weights import DynamicWeights, PrintedWeights
from weir_evaluation.routing.fish import Fish
from weir_evaluation.routing.random_choices import RandomChoices
from weir_evaluation.routing.two_choices import TwoChoices
from weir_evaluation.routing.w_choices import WChoices
from weir_evaluation.routing.worst_case import WorstCase

__all__ = [
    "BoundedRing",
    "DChoices",
    "Dalton",
    "DynamicWeights",
    "Fish",
    "HeavyKeys",
    "PrintedWeights",
    "RandomChoices",
    "TwoChoices",
    "WChoices",
    "WorstCase",
]
