"""Which keys move when an operator gets more or fewer instances: the fewest that balance requires.

Two granularities, one rule. :func:`spread` moves *items* between instances. Items may be

* **keys**, when each one's weight is known (heavy keys, routing tables).
* **key groups** (:class:`~weir.routing.key_groups.KeyGroups`): contiguous ranges of the hash, and an array that says
  where each lives. :func:`regroup` moves as few as balance requires, in runs: state is sorted by hash, so a run of
  key groups is one slice of every file.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.compiled import compiled
from weir.elasticity.graph import Machine
from weir.errors import ParameterError
from weir.routing.base import Instances

SLACK = 0.03  # above the average, as everywhere where load is balanced


@dataclass(frozen=True, eq=False)
class Moved:
    """The instance of each item after a move."""

    homes: Instances  # the instance of each item
    moved: NDArray[np.bool_]  # which items have another home than before
    # the fewest items that any way to balance moves: those without a home and, of each instance above
    # the limit, as many of the heaviest as bring it below
    least: int
    load: NDArray[np.float64]  # load of each instance

    @property
    def count(self) -> int:
        return int(self.moved.sum())

    @property
    def imbalance(self) -> float:
        """Return the largest load over the average, less 1."""
        return float(self.load.max() / self.load.mean() - 1) if self.load.sum() > 0 else 0.0


def spread(
    homes: ArrayLike,
    n: int,
    *,
    weights: ArrayLike | None = None,
    shares: ArrayLike | None = None,
    slack: float = SLACK,
    prefer: ArrayLike | None = None,
) -> Moved:
    """Balance items over ``n`` instances with few moves.

    Instances above their limit, ``1 + slack`` times their fair part, give away items, the heaviest first (below
    the fair part only such as fit elsewhere as a whole). These and items without a home go, the heaviest first,
    where the most room is. An item heavier than a fair part stays, and the rest is shared by the other instances.

    Parameters
    ----------
    homes
        The instance of each item now; anything outside 0 … n − 1 has to find a new home.
    weights
        Load of each item; all the same by default.
    shares
        Strength of each instance; all the same by default.
    slack
        How far above its fair part an instance may stay.
    prefer
        An instance for each item that is as good as the emptiest if it has room, such as its hash's (then a
        table need not list it).

    Returns
    -------
    Moved
        With equal weights exactly the least number of moves; at most 1.2 times as many, and no load above the
        limit, as long as no item is heavier than a tenth of a fair part. Heavier ones may fit nowhere; then
        several lighter ones move in their stead.

    Examples
    --------
    From two instances to three: a third of the keys moves, all to the new one.

    >>> after = spread([0, 1] * 300, 3, slack=0.0)
    >>> after.count, after.least, after.load.tolist(), set(after.homes[after.moved].tolist())
    (200, 200, [200.0, 200.0, 200.0], {2})

    And back: only what lived on the one that goes.

    >>> back = spread(after.homes, 2, slack=0.0)
    >>> back.count, back.load.tolist()
    (200, [300.0, 300.0])
    """
    if n < 1:
        raise ParameterError(f"keys need at least one instance, got {n}")
    if slack < 0:
        raise ParameterError(f"slack must not be negative, got {slack}")
    old = np.asarray(homes, np.int64)
    load = np.ones(len(old)) if weights is None else np.asarray(weights, np.float64)
    strength = np.ones(n) if shares is None else np.asarray(shares, np.float64)
    wish = np.full(len(old), -1, np.int64) if prefer is None else np.asarray(prefer, np.int64)
    if len(load) != len(old) or len(wish) != len(old) or len(strength) != n:
        raise ParameterError("one weight and one preference per item, one share per instance")
    if len(load) and (load.min() < 0 or strength.min() <= 0):
        raise ParameterError("weights must not be negative, shares must be positive")
    here = np.where((old >= 0) & (old < n), old, -1).astype(np.int32)
    fair, hub = _fair(load, here, strength)
    # an excess of less than one item is no reason to move one
    limit = fair * (1 + slack) + (1 - 1e-9 if weights is None else 1e-9 * load.sum())
    # of equals, those that are not on their preferred instance go first
    order = np.lexsort((np.arange(len(old)), here == wish, -load))
    new, total = here.copy(), np.zeros(n)
    stays = np.full(n, -1)  # the item of each instance that alone is more than a fair part
    least = _spread(here, load, fair, hub, limit, order, wish, new, total, stays, np.zeros(n))
    return Moved(new, new != old, int(least), total)


def regroup(homes: ArrayLike, n: int) -> Instances:
    """Return the instance of each key group, balanced to within one over ``n`` instances, with the fewest moves.

    Groups outside 0 … n − 1 have to find a home. Groups that leave an instance are the last of its own, and they go to
    new homes in runs.

    >>> regroup([0, 0, 0, 0, 1, 1, 1, 1], 3).tolist()
    [0, 0, 0, 2, 1, 1, 1, 2]
    >>> regroup([0, 0, 0, -1, 1, 1, 1, -1], 2).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    old = np.asarray(homes, np.int32)
    here = np.where((old >= 0) & (old < n), old, -1).astype(np.int32)
    count = np.bincount(here[here >= 0], minlength=n)
    quota = np.full(n, len(old) // n)
    quota[np.argsort(-count, kind="stable")[: len(old) % n]] += 1  # who has more keeps one more
    order = np.argsort(
        here, kind="stable"
    )  # by instance, each one's groups in order; those without one first
    rank = np.arange(len(old)) - np.searchsorted(here[order], here[order])
    leaves = np.sort(order[(here[order] < 0) | (rank >= quota[here[order]])])
    new = here.copy()
    new[leaves] = np.repeat(np.arange(n), np.maximum(quota - count, 0))
    return new


def _fair(
    load: NDArray[np.float64], homes: NDArray[np.int32], strength: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the fair load of each instance, its share or its heaviest item if that is more; and where it is more."""
    heaviest = np.zeros(len(strength))
    housed = homes >= 0
    np.maximum.at(heaviest, homes[housed], load[housed])
    hub = np.zeros(len(strength), np.bool_)
    fair = strength / strength.sum() * load.sum()
    while (over := (heaviest > fair) & ~hub).any() and not (hub | over).all():
        hub |= over
        rest = max(0.0, load.sum() - heaviest[hub].sum())
        fair = np.where(hub, heaviest, strength / strength[~hub].sum() * rest)
    return fair, hub


@compiled(
    *("int32[]", "float64[]", "float64[]", "bool[]", "float64[]", "int64[]", "int64[]"),
    *("out int32[]", "out float64[]", "out int64[]", "out float64[]"),
)
def _spread(homes, weight, fair, hub, limit, order, wish, new, load, stays, left):  # type: ignore[no-untyped-def]
    """Give items that have to leave, and those without a home, a new one; return the least number of moves."""
    n = len(limit)
    for i in order:
        s = homes[i]
        if s >= 0:
            load[s] += weight[i]
            if hub[s] and stays[s] < 0:
                stays[s] = i
    least = 0
    for s in range(n):
        left[s] = load[s]
    for i in order:
        s = homes[i]
        if s < 0:
            least += 1
        elif left[s] > limit[s] and weight[i] > 0 and stays[s] != i:
            left[s] -= weight[i]
            least += 1
    # an item given away may bring its new instance above the limit: a few rounds settle it
    taken = left  # no longer needed
    for _ in range(4):
        for s in range(n):
            taken[s] = 0.0
        for i in order:
            s = new[i]
            if s < 0 or load[s] <= limit[s] or weight[i] <= 0 or stays[s] == i:
                continue
            if load[s] - weight[i] < fair[s] - 1e-9:
                # below its fair part only for an item that fits elsewhere as a whole
                best = 0
                for t in range(1, n):
                    if limit[t] - load[t] - taken[t] > limit[best] - load[best] - taken[best]:
                        best = t
                if limit[best] - load[best] - taken[best] < weight[i]:
                    continue
                taken[best] += weight[i]
            load[s] -= weight[i]
            new[i] = -1
        some = False
        for i in order:
            if new[i] >= 0:
                continue
            best = 0
            for t in range(1, n):
                if fair[t] - load[t] > fair[best] - load[best]:
                    best = t
            w = wish[i]
            if 0 <= w < n and load[w] + weight[i] <= fair[w]:
                best = w
            new[i] = best
            load[best] += weight[i]
            some = True
        if not some:
            break
    return least


def carried(before: Sequence[Machine], after: Sequence[Machine]) -> NDArray[np.int32]:
    """Return the number after a scaling of each instance that an operator had before; −1 for one that is gone.

    Instances keep their numbers, wherever they live, as long as none of them goes. Operators that live everywhere
    lose those on machines that leave; the others are renumbered without gaps. Keys have their homes, by number, in
    ``carried(…)[homes]``; :func:`spread` does the rest.

    >>> carried(["a", "b"], ["a", "c"]).tolist(), carried(["a", "b", "c"], ["a", "c"]).tolist()
    ([0, 1], [0, -1, 1])
    """
    if len(after) >= len(before):
        return np.arange(len(before), dtype=np.int32)
    number = {machine: i for i, machine in enumerate(after)}
    return np.array([number.get(machine, -1) for machine in before], np.int32)
