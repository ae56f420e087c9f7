"""Counts that decay with time, in bounded memory: for what the manager remembers of keys and of pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.locality._hashmap import PairIndex
from weir.locality.counts import PairCounts, heaviest

_RENORMALISE = 1e9
# Of a row. What is left of less says nothing any more; a thousandth still does: where a rare key comes back, that is
# all that speaks for a server.
FADED = 1e-9


class FadingCounts:
    """Counts of pairs (or of keys, as pairs with zero) that halve every so many ticks.

    Instead of shrinking old counts, new ones count more; a tick is one multiplication. When more than
    ``capacity`` and a quarter are held, the lightest are dropped down to ``capacity``; and when a quarter of them have
    faded to nothing, these are.

    Entries are numbered by arrival; :meth:`prune` renumbers and says how, so that arrays beside it can follow.

    >>> counts = FadingCounts(capacity=10, half_life=1)
    >>> keys = np.array([5], np.uint64)
    >>> _ = counts.add(keys, np.zeros(1, np.uint64), np.array([8.0]))
    >>> counts.tick()
    >>> counts.values().tolist()
    [4.0]
    """

    def __init__(self, capacity: int, half_life: float, seed: int = 0) -> None:
        self.capacity, self.seed = capacity, seed
        self._growth = 2.0 ** (1.0 / half_life)
        self._unit = 1.0
        self.index = PairIndex()
        self._count = np.zeros(512)

    def __len__(self) -> int:
        return self.index.n

    def tick(self) -> None:
        """Let one unit of time pass."""
        self._unit *= self._growth
        if self._unit > _RENORMALISE:
            self._renormalise()

    def fade(self, factor: float) -> None:
        """Let every row that was counted so far count for a part of itself."""
        self._count[: len(self)] *= factor

    def _renormalise(self) -> None:
        self._count[: len(self)] /= self._unit
        self._unit = 1.0

    def add(
        self, left: NDArray[np.uint64], right: NDArray[np.uint64], count: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Add counts of distinct pairs; return their entries."""
        ids = self.index.add(left, right)
        if len(self._count) < len(self):
            grown = np.zeros(2 * len(self))
            grown[: len(self._count)] = self._count
            self._count = grown
        self._count[ids] += count * self._unit
        return ids

    def values(self) -> NDArray[np.float64]:
        """Return the decayed count of each entry."""
        return self._count[: len(self)] / self._unit

    def prune(self, needed: NDArray[np.bool_] | None = None) -> NDArray[np.int64] | None:
        """Drop the lightest entries if there are too many; return the old numbers of those kept, or None.

        Those that are ``needed`` stay even if they have faded, while there is room.
        """
        if len(self) > self.capacity + self.capacity // 4:
            tie = mix(self.index.left ^ mix(self.index.right, np.uint64(0)), np.uint64(self.seed))
            kept = heaviest(self._count[: len(self)], self.capacity, tie)
        else:
            lasting = self._count[: len(self)] >= FADED * self._unit
            kept = np.flatnonzero(lasting if needed is None else lasting | needed)
            if len(kept) > len(self) - max(64, len(self) // 4):
                return None
        count = self._count[kept]
        self.index.keep(kept)
        self._count = np.zeros(max(512, len(kept)))
        self._count[: len(kept)] = count
        return kept

    def counts(self, least: float = 0.0) -> PairCounts:
        """Return the entries of at least that count, in ascending order of the pairs."""
        values = self.values()
        chosen = np.flatnonzero(values >= least)
        left, right = self.index.left[chosen], self.index.right[chosen]
        order = np.lexsort((right, left))
        return PairCounts(left[order], right[order], values[chosen][order])

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that later answers depend on, as arrays, which hold until something is added."""
        self._renormalise()  # so that the original and its copy round alike from here on
        return {"left": self.index.left, "right": self.index.right, "count": self._count[: len(self)]}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`."""
        self.index = PairIndex()
        self._unit = 1.0
        self._count = np.zeros(512)
        self.add(state["left"], state["right"], state["count"])  # type: ignore[arg-type]
