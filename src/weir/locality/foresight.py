"""Whether it pays to count a batch's keys before it is planned (``look_ahead="auto"``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weir.locality.counts import PairCounts
from weir.locality.key_homes import LIGHT, KeyHomes, SeenBatch, ties_of

# of the rows that looking ahead could have kept on their servers, in two batches on end: it begins
ENOUGH = 0.1
LITTLE = 0.05  # of the rows that it did keep there, on average of so many batches: it ends
JUDGED = 4
PAUSES = 8, 64  # batches until it may begin again: first, and at most; each time twice as many
BUDGET = 0.005  # of an operator's states that looking ahead moves in a batch, at most


class Foresight:
    """Decides whether batches are looked at before they are planned, by what that gains.

    Before it begins, the gain is estimated from batches that were counted while they ran (:func:`attainable`). Once it
    has begun, it is measured: how many more rows stay on their server than without the homes that were changed for
    them. It lasts for :data:`JUDGED` batches at least.

    >>> foresight = Foresight("auto")
    >>> [foresight.judge(gain) or foresight.active for gain in (0.3, 0.3, 0.2, 0.0, 0.0, 0.0, 0.0)]
    [False, True, True, True, True, True, False]
    """

    def __init__(self, mode: bool | Literal["auto"]) -> None:
        self.automatic, self.active = mode == "auto", mode is True
        self._gains: deque[float] = deque(maxlen=JUDGED)
        self._waits, self._pause = 0, PAUSES[0]

    @property
    def wonders(self) -> bool:
        """Whether it wants to know what looking ahead would have gained."""
        return self.automatic and not self.active

    def judge(self, gain: float) -> None:
        """Take in what looking ahead has gained in a batch, as a share of its rows, or could have gained."""
        if not self.automatic:
            return
        if self._waits:
            self._waits -= 1
            return
        self._gains.append(gain)
        if not self.active and len(self._gains) >= 2 and min(list(self._gains)[-2:]) >= ENOUGH:
            self._turn(True)
        elif self.active and len(self._gains) == JUDGED and np.mean(self._gains) < LITTLE:
            self._turn(False)
            self._waits, self._pause = self._pause, min(PAUSES[1], 2 * self._pause)

    def _turn(self, active: bool) -> None:
        self.active = active
        self._gains.clear()

    def state(self) -> list[Any]:
        """Return what later answers depend on."""
        return [self.active, list(self._gains), self._waits, self._pause]

    def restore(self, state: list[Any]) -> None:
        """Go on from :meth:`state`."""
        if self.automatic:
            self.active, gains, self._waits, self._pause = state
            self._gains = deque(gains, maxlen=JUDGED)


def _kept(
    entries: NDArray[np.int64],
    servers: NDArray[np.int32],
    count: NDArray[np.float64],
    homes: NDArray[np.int32],
    cost: NDArray[np.float64],
    most: int,
) -> float:
    """Return how many rows more had been with their key's home, had each key lived where most of its rows were.

    ``entries`` are keys, with the ``servers`` of those they were seen with, and how often. By entry, ``homes`` is where
    keys live, and ``cost`` the rows that moving their state weighs: 0 for a key without one. Of those with one,
    ``most`` move.

    >>> entries, servers = np.array([0, 0, 1]), np.array([1, 0, 1], np.int32)
    >>> rows, homes, cost = np.array([5.0, 1.0, 2.0]), np.zeros(2, np.int32), np.array([0.5, 0.0])
    >>> _kept(entries, servers, rows, homes, cost, most=1), _kept(entries, servers, rows, homes, cost, most=0)
    (6.0, 2.0)
    """
    if not len(entries):
        return 0.0
    n = int(max(servers.max(), homes.max())) + 1
    places, at = np.unique(entries * n + servers, return_inverse=True)
    rows = np.bincount(at, weights=count)
    key = places // n
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    keys = key[starts]
    here = np.where(places % n == homes[key], rows, 0.0)
    gain = np.maximum.reduceat(rows, starts) - np.add.reduceat(here, starts)
    gain = np.where(gain > cost[keys], gain, 0.0)
    with_state = np.sort(gain[cost[keys] > 0])[::-1]
    return float(gain[cost[keys] == 0].sum() + with_state[:most].sum())


def states_to_move(homes: KeyHomes) -> int:
    """Return how many states of an operator may move for one batch."""
    return max(1, int(BUDGET * len(homes)))


def attainable(operators: Sequence[KeyHomes], seen: SeenBatch, state_rows: Mapping[int, float]) -> float:
    """Return how many of a batch's rows more had stayed on their server, had it been known before, as a share.

    The keys of one of the operators in ``state_rows`` move, which is how many rows a state weighs there.
    """
    best = 0.0
    for o, state in state_rows.items():
        homes, ties = operators[o], ties_of(operators, o, seen)
        rows = sum(float(count.sum()) for _, _, count in ties)
        if not rows:
            continue
        own, server, count = (np.concatenate(parts) for parts in zip(*ties, strict=True))
        weight = homes.counts.values()
        before = weight.copy()
        before[seen.keys[o]] -= seen.stats.keys.get(o, PairCounts.empty()).count
        cost = np.where(before > 1e-6, max(state, 1e-9), 0.0)
        cost[weight > LIGHT * weight.sum() / homes.n] = np.inf  # heavy keys are left to reconfigurations
        live = homes.live(np.arange(len(homes)))
        best = max(best, _kept(own, server, count, live, cost, states_to_move(homes)) / rows)
    return best
