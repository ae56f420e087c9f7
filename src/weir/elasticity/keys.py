"""Which keys move when an operator gets more or fewer instances: the fewest that balance requires.

:func:`spread` moves keys whose weights are known, those of routing tables. :func:`regroup` moves key groups
(:class:`~weir.routing.key_groups.KeyGroups`) in runs: state is sorted by hash, so a run is one slice of every file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.compiled import compiled
from weir.errors import ParameterError, refuse
from weir.routing.base import Instances

SLACK = 0.03  # above the average, as everywhere where load is balanced


def spread(homes: ArrayLike, n: int, *, weights: ArrayLike | None = None, slack: float = SLACK) -> Instances:
    """Return the instance of each key, balanced over ``n`` instances with few moves.

    Instances above their limit, ``1 + slack`` times their fair part, give away keys, the heaviest first (below
    the fair part only such as fit elsewhere as a whole). These and keys without a home go, the heaviest first,
    where the most room is. A key heavier than a fair part stays, and the rest is shared by the other instances.

    ``homes`` has the instance of each key now; anything outside 0 … n − 1 has to find a new home. ``weights`` are all
    the same by default.

    **Guarantee.** With equal weights exactly the least number of moves; at most 1.2 times as many, and no load above
    the limit, as long as no key is heavier than a tenth of a fair part. Heavier ones may fit nowhere; then several
    lighter ones move in their stead.

    From two instances to three, a third of the keys moves, all to the new one. And back, only what lived there:

    >>> three = spread([0, 1] * 300, 3, slack=0.0)
    >>> np.bincount(three).tolist(), int((three != [0, 1] * 300).sum())
    ([200, 200, 200], 200)
    >>> back = spread(three, 2, slack=0.0)
    >>> np.bincount(back).tolist(), int((three != back).sum())
    ([300, 300], 200)
    """
    old = np.asarray(homes, np.int64)
    load = np.ones(len(old)) if weights is None else np.asarray(weights, np.float64)
    refuse(
        "",
        (n < 1, f"keys need at least one instance, got {n}"),
        (slack < 0, f"slack must not be negative, got {slack}"),
        (len(load) != len(old), f"one weight per key: there are {len(old)} keys, got {len(load)} weights"),
        ((load < 0).any(), "weights must not be negative"),
        error=ParameterError,
    )
    new = np.where((old >= 0) & (old < n), old, -1).astype(np.int32)
    fair, hub = _fair(load, new, n)
    # an excess of less than one key is no reason to move one
    limit = fair * (1 + slack) + (1 - 1e-9 if weights is None else 1e-9 * load.sum())
    order = np.lexsort((np.arange(len(old)), -load))
    stays = np.full(n, -1)  # the key of each instance that alone is more than a fair part
    _spread(load, fair, hub, limit, order, new, np.zeros(n), stays, np.zeros(n))
    return new


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
    # by instance, each one's groups in order; those without one first
    order = np.argsort(here, kind="stable")
    rank = np.arange(len(old)) - np.searchsorted(here[order], here[order])
    leaves = np.sort(order[(here[order] < 0) | (rank >= quota[here[order]])])
    new = here.copy()
    new[leaves] = np.repeat(np.arange(n), np.maximum(quota - count, 0))
    return new


def _fair(
    load: NDArray[np.float64], homes: NDArray[np.int32], n: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the fair load of each instance, its share or its heaviest key if that is more; and where it is more."""
    heaviest = np.zeros(n)
    housed = homes >= 0
    np.maximum.at(heaviest, homes[housed], load[housed])
    hub = np.zeros(n, np.bool_)
    fair = np.full(n, load.sum() / n)
    while (over := (heaviest > fair) & ~hub).any() and not (hub | over).all():
        hub |= over
        rest = max(0.0, load.sum() - heaviest[hub].sum())
        fair = np.where(hub, heaviest, rest / (~hub).sum())
    return fair, hub


@compiled(
    *("float64[]", "float64[]", "bool[]", "float64[]", "int64[]"),
    *("out int32[]", "out float64[]", "out int64[]", "out float64[]"),
)
def _spread(weight, fair, hub, limit, order, new, load, stays, taken):  # type: ignore[no-untyped-def]
    """Give keys that have to leave, and those without a home, a new one."""
    n = len(limit)
    for i in order:
        s = new[i]
        if s >= 0:
            load[s] += weight[i]
            if hub[s] and stays[s] < 0:
                stays[s] = i
    # a key given away may bring its new instance above the limit: a few rounds settle it
    for _ in range(4):
        for s in range(n):
            taken[s] = 0.0
        for i in order:
            s = new[i]
            if s < 0 or load[s] <= limit[s] or weight[i] <= 0 or stays[s] == i:
                continue
            if load[s] - weight[i] < fair[s] - 1e-9:
                # below its fair part only for a key that fits elsewhere as a whole
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
            new[i] = best
            load[best] += weight[i]
            some = True
        if not some:
            break
