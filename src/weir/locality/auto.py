"""``routing="auto"``: one controller for affinity, capacity, distance and hot keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from weir.locality.config import Locality
from weir.locality.partition import Tree
from weir.routing.base import Grouping
from weir.routing.hash import Hash
from weir.routing.weighted import Weighted


@dataclass(frozen=True)
class Auto(Locality):
    """Routing that decides for itself, per operator, from what the operator can do and what the stream shows.

    It begins as a hash and changes while the stream runs:

    * Keys that travel together live together, as with :class:`Locality`, if a forecast on rows that it has not seen
      says that this pays.
    * A server gets the part of the keys that it can carry. Speeds are measured; a share follows once a speed has
      changed by a quarter for two batches.
    * Keys too hot for one server are split where the operator merges, over near and fast servers first
      (:class:`Weighted`); all others keep their one home. Where affinity has nothing to lose, keys are split from a
      fifth of a fair share on.
    * A part of the keys may overflow to near and fast servers while homes do not fit yet, where the operator merges.

    * Where it pays, source tasks of live servers count a batch's keys before it is planned.

    Tables change once per period, and in between only when a server's speed or the stream's affinity has changed.
    ``query.explain()`` says what was decided, and why.

    All parameters are those of :class:`Locality`.

    >>> from weir.routing.base import OperatorTraits
    >>> Auto().for_operator(OperatorTraits("plays", mergeable=True)).splits_keys
    True
    >>> Auto().for_operator(OperatorTraits("sessions")).splits_keys
    False
    """

    hierarchy: Tree | Literal["hosts"] | None = "hosts"
    split_hot: bool | Grouping = field(default_factory=lambda: Weighted(Hash(), scale=64))
    look_ahead: bool | Literal["auto"] = "auto"
    balance: Literal["rows", "time"] = "time"
    adaptive: ClassVar[bool] = True
