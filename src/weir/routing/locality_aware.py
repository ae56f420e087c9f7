"""Key grouping by tables that are learnt while the stream runs (LAR): what ``routing=weir.Locality()`` means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weir.hashing import hash_home, mix
from weir.routing.base import (
    Counters,
    Feedback,
    Grouping,
    InstanceLoad,
    Instances,
    Keys,
    PlannedRouting,
    Router,
    RouterContext,
    RoutingRule,
)
from weir.routing.hash import Hash
from weir.routing.table import NO_TABLE, Table

_SPARE = np.uint64(0x5BA2E)  # makes which keys are spare independent of where they live


@dataclass(frozen=True)
class LocalityAware(Grouping):
    """Each key lives where the table in force says, or by its hash if the table doesn't list it.

    The table belongs to a batch's plan, not to the application; see :mod:`weir.locality`. ``settings`` are those
    that the tables are learnt by.

    Reference: M. Caneill, A. El Rheddane, V. Leroy, N. De Palma, "Locality-aware routing in stateful streaming
    applications", Middleware 2016.

    >>> keys = np.array([5, 6], np.uint64)
    >>> LocalityAware(Table(keys[:1], np.array([2], np.int32))).router(3).route(keys).tolist()
    [2, 0]
    """

    table: Table = NO_TABLE
    settings: Any = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "LAR"
    learnt: ClassVar[bool] = True
    scales_by_key_group: ClassVar[bool] = True

    @property
    def home_rule(self) -> Table:
        """The rule by which every key has its one home."""
        return self.table

    def in_force(self, planned: PlannedRouting) -> LocalityAware:
        return replace(self, table=NO_TABLE if planned.table is None else planned.table)

    def make_router(self, context: RouterContext) -> Router:
        return self.home_rule.make_router(context)

    def rule(self, n: int) -> RoutingRule | None:
        return self.home_rule.rule(n)

    def signature(self) -> list[Any]:
        return [self.name]  # states live by tables that a commit names


@dataclass(frozen=True)
class LocalityAwareSplit(LocalityAware):
    """The same for operators that merge: some keys are worked on where their rows are.

    Keys that nobody has placed yet (``first_seen``) and keys too hot for one server (``hot``) stay with the row
    that brings them; with ``overflow``, another grouping deals out the rows of hot keys, and of a part of all others
    (``spare``, picked by hash) as far as their homes have too much to do. Once a server has become slow in mid-batch,
    all keys may overflow. What a server learns of such a key in a batch is a partial state, which goes to the key's
    home, one small row instead of many large ones, and is merged there in the same batch: the key's state has one
    owner all the same.

    >>> keys = np.array([5, 6, 7], np.uint64)
    >>> table = Table(keys[:2], np.array([2, 1], np.int32))
    >>> grouping = LocalityAwareSplit(table, first_seen=True, hot=keys[1:2])
    >>> grouping.router(3, local=0).route(keys).tolist()
    [2, 0, 0]
    """

    first_seen: bool = False
    hot: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64), compare=False, repr=False)
    overflow: Grouping | None = None
    spare: float = 0.0
    deals: bool = True  # whether the plan of a batch has rows to deal out

    splits_keys: ClassVar[bool] = True

    @property
    def order_free(self) -> bool:  # type: ignore[override]
        """Not where shares decide which rows of a key stay."""
        return self.overflow is None or not self.deals

    @property
    def uses_distances(self) -> bool:  # type: ignore[override]
        """As whoever deals out the rows of hot keys."""
        return self.overflow is not None and self.overflow.uses_distances

    @property
    def follows_load(self) -> bool:  # type: ignore[override]
        """As whoever deals out the rows of hot keys."""
        return self.overflow is not None and self.overflow.follows_load

    def in_force(self, planned: PlannedRouting) -> LocalityAwareSplit:
        return replace(
            self,
            table=NO_TABLE if planned.table is None else planned.table,
            hot=self.hot if planned.hot is None else np.sort(planned.hot),
            spare=planned.spare,
            overflow=None if self.overflow is None else self.overflow.in_force(planned),
            deals=bool(planned.spare or len(self.hot if planned.hot is None else planned.hot)),
        )

    def feedback(self, load: InstanceLoad) -> Feedback | None:
        return None if self.overflow is None else self.overflow.feedback(load)

    def make_router(self, context: RouterContext) -> Router:
        dealer = self.overflow
        if dealer is not None and getattr(dealer, "default", None) == Hash():
            # rows that would go by hash go home first: there the key's state is
            dealer = replace(dealer, default=self.home_rule)  # type: ignore[type-var]
        overflow = None if dealer is None else dealer.make_router(context)
        return SplitRouter(context.n, self, context.local, overflow)


class SplitRouter(Router):
    """Homes by table, but for keys that stay with their rows or overflow."""

    def __init__(self, n: int, grouping: LocalityAwareSplit, local: int, overflow: Any = None) -> None:
        super().__init__(n)
        self._grouping = grouping
        self._local = local
        self.overflow = overflow
        if overflow is not None:
            overflow.share_all()
        self.spare = 0.0 if overflow is None else grouping.spare

    @property
    def _deals(self) -> bool:
        return self.overflow is not None and (self.spare > 0 or len(self._grouping.hot) > 0)

    def route(self, keys: Keys) -> Instances:
        home = self._grouping.table.find(keys)
        if self._local >= 0:
            if self._grouping.first_seen:
                home = np.where(home < 0, self._local, home)
            if len(self._grouping.hot) and self.overflow is None:
                home = np.where(np.isin(keys, self._grouping.hot), self._local, home)
        unlisted = hash_home(keys, self.n, self._grouping.table.key_groups)
        out = np.where(home < 0, unlisted, home).astype(np.int32)
        if self.overflow is not None and self._deals:
            dealt = np.isin(keys, self._grouping.hot)
            dealt |= mix(keys, _SPARE) < np.uint64(self.spare * (2**64 - 2**11))
            self.overflow.deal(keys, out, dealt)
        return out

    def server_slowed(self) -> None:
        if self.overflow is not None:
            self.spare = 1.0

    def counters(self) -> Counters:
        return self.overflow.counters() if self.overflow is not None and self._deals else {}

    def restore(self, counters: Counters) -> None:
        if self.overflow is not None and counters:  # none if nothing was dealt out before
            self.overflow.restore(counters)

    def listen(self, feedback: Feedback) -> None:
        if self.overflow is not None and self._deals:  # else what servers do is not for shares to change
            self.overflow.listen(feedback)

    def shares(self) -> list[int] | None:
        return self.overflow.shares() if self.overflow is not None and self._deals else None

    @property
    def shares_decide(self) -> bool:
        """Once all keys overflow; before, homes decide as well."""
        return self.spare >= 1
