"""What a user says about locality-aware routing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import ClassVar, Literal

from weir.errors import GroupingError, TopologyError, did_you_mean, renamed
from weir.locality.partition import Partitioner, Tree
from weir.routing.base import Grouping, OperatorTraits
from weir.routing.hash import Hash
from weir.routing.locality_aware import LocalityAware, LocalityAwareSplit

NEW_KEYS = ("affinity", "first_seen", "hash")
BALANCE = ("rows", "time")


@renamed(calm="min_gain")
@dataclass(frozen=True)
class Costs:
    """What the forecast weighs against each other; rough figures do.

    Attributes
    ----------
    row_bytes
        What a row weighs that has to leave its server. ``None``: as measured while the stream runs, for each pair of
        operators; 200 before that.
    state_bytes
        What the state of an average key weighs when it moves. ``None``: as measured, for each operator; 100 before.
    bytes_per_second
        What the network carries.
    horizon
        Periods within which a reconfiguration must have paid for itself.
    confidence
        By how many standard deviations the gain on held-out rows must exceed chance.
    min_gain
        Locality that moving the whole state would have to gain; moving a part of it, that part. Keeps two
        equally good assignments from taking turns.
    """

    row_bytes: float | None = None
    state_bytes: float | None = None
    bytes_per_second: float = 100e6
    horizon: float = 8.0
    confidence: float = 1.0
    min_gain: float = 0.1


@renamed(racks="hierarchy", start="tables", memory="half_life")
@dataclass(frozen=True)
class Locality:
    """Locality-aware routing: keys that travel together live together, learnt and changed as the stream runs.

    Parameters
    ----------
    alpha
        The busiest server may get this many times the average rows of each operator.
    balance
        ``"rows"`` gives every server as many rows as the others; ``"time"`` measures how fast each server is and gives
        a slow one less: all are busy for as long.
    capacity
        Most pairs remembered per edge, and most keys per operator's table.
    period
        Batches between two reconfigurations. The first ones come earlier, after 1, 2, 4 … batches. ``None``:
        only on demand, by ``query.reconfigure()``.
    partitioner
        ``"multilevel"``, or a callable of your own (:class:`~weir.locality.partition.base.Partitioner`).
    forecast
        Costs to weigh a reconfiguration by; ``None`` adopts every one, as the paper does.
    hierarchy
        Nested lists of servers, e.g. ``[[0, 1], [2, 3]]``: what can't share a server shares a rack. ``"hosts"`` takes
        them from where servers really are, and from ``racks=`` of ``start``. For the multilevel partitioner only.
    tables
        Routing tables to start with: a folder as ``weir advise --out`` writes it, or a dict from operators to files.
    new_keys
        Where a new key lives: ``"affinity"`` places it at the next batch boundary by its affinity; ``"first_seen"``
        also lets it start on the server that sees it, where states merge; ``"hash"`` leaves it where its hash says.
    split_hot
        Work on keys heavier than a server's fair share where their rows are, where the operator merges. With a
        :class:`~weir.Weighted` here, their rows are dealt out by its weights: near servers first, busy ones less.
    half_life
        Half-life of pair counts, in periods. Key counts, which balance, live a quarter of it.
    look_ahead
        Count the keys of every batch before it is planned, and place them for the rows that are about to come. Keys
        must be columns of the source. On live servers the tasks that read the source count, and hold the rows until the
        plan is there; step jobs read the source a second time, its key columns only. ``"auto"`` looks ahead on live
        servers while that keeps more rows on their server, and moves at most half a percent of an operator's states in
        a batch for it.
    stay_bonus
        What staying is worth to a key when tables are refined, as a share of the average key's rows.
    seed
        Fixes every random choice.

    Examples
    --------
    >>> Locality(period=50).alpha
    1.03
    >>> Locality(new_keys="affinty")
    Traceback (most recent call last):
    weir.errors.TopologyError: new_keys='affinty': did you mean 'affinity'? Known: 'affinity', 'first_seen', 'hash'
    """

    alpha: float = 1.03
    capacity: int = 1_000_000
    period: int | None = 20
    partitioner: Literal["multilevel"] | Partitioner = "multilevel"
    forecast: Costs | None = field(default_factory=Costs)
    hierarchy: Tree | Literal["hosts"] | None = None
    tables: str | Path | dict[str, str] | None = None
    new_keys: str = "affinity"
    split_hot: bool | Grouping = False
    half_life: float = 8.0
    look_ahead: bool | Literal["auto"] = False
    stay_bonus: float = 0.05
    balance: Literal["rows", "time"] = "rows"
    seed: int = 0
    adaptive: ClassVar[bool] = False  # whether the stream decides what else is settled here

    @property
    def batches(self) -> int:
        """The period, or what stands for one where reconfigurations come on demand."""
        return 20 if self.period is None else self.period

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.alpha < 1:
            raise TopologyError(f"alpha={self.alpha}: no server can stay below the average, use 1 or more")
        if self.capacity < 1 or self.batches < 1:
            raise TopologyError("capacity and period must be at least 1")
        if not (isinstance(self.look_ahead, bool) or self.look_ahead == "auto"):
            raise TopologyError(f"look_ahead={self.look_ahead!r}: expected True, False or 'auto'")
        if self.new_keys == "company":
            raise TopologyError('new_keys="company" is called new_keys="affinity" now')
        if self.half_life <= 0:
            raise TopologyError(f"half_life={self.half_life}: expected a positive number of periods")
        if self.partitioner != "multilevel" and not callable(self.partitioner):
            raise TopologyError(
                f'partitioner={self.partitioner!r}: expected "multilevel" or a callable such as '
                "weir_evaluation.partition.Metis()"
            )
        if self.hierarchy is not None and self.partitioner != "multilevel":
            raise TopologyError(
                f"partitioner={self.partitioner!r} takes no hierarchy=; use partitioner='multilevel'"
            )
        if isinstance(self.hierarchy, str) and self.hierarchy != "hosts":
            raise TopologyError(
                f"hierarchy={self.hierarchy!r}: {did_you_mean(self.hierarchy, ['hosts'])}; or nested lists of servers"
            )
        if not isinstance(self.split_hot, bool) and not (
            isinstance(self.split_hot, Grouping)
            and self.split_hot.splits_keys
            and self.split_hot.uses_distances
        ):
            raise TopologyError(
                f"split_hot={self.split_hot!r}: expected True, False or a weir.Weighted(…) that deals hot keys out"
            )
        if self.balance not in BALANCE:
            raise TopologyError(f"balance={self.balance!r}: {did_you_mean(self.balance, BALANCE)}")
        if self.new_keys not in NEW_KEYS:
            raise TopologyError(f"new_keys={self.new_keys!r}: {did_you_mean(self.new_keys, NEW_KEYS)}")

    def _check_numbers(self) -> None:
        for name in ("capacity", "period", "seed"):
            value = getattr(self, name)
            if not isinstance(value, Integral) and not (name == "period" and value is None):
                raise TopologyError(f"{name}={value!r}: expected a whole number")
        for name in ("alpha", "half_life", "stay_bonus"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not math.isfinite(value):
                raise TopologyError(f"{name}={value!r}: expected a number")

    def for_operator(self, operator: OperatorTraits) -> Grouping:
        """Return how a learning operator routes: keys stay with their rows at times only where states merge.

        An operator that is not on every server cannot follow its keys' affinity; it stays with the hash.
        """
        if not operator.everywhere:
            if operator.explicit:
                raise GroupingError(
                    f"operator {operator.name!r}: locality-aware routing needs the operator on every server; "
                    "leave out parallelism and placement, or use Hash"
                )
            return Hash()
        first_seen = self.new_keys == "first_seen"
        if operator.mergeable and not operator.timed and (first_seen or self.split_hot):
            overflow = None if isinstance(self.split_hot, bool) else self.split_hot
            return LocalityAwareSplit(settings=self, first_seen=first_seen, overflow=overflow)
        return LocalityAware(settings=self)
