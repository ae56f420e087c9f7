"""The most frequent pairs of a stream of rows, in memory that is bounded while they are counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.locality.counts import PairCounts, count_pairs, merge


class HeavyPairs:
    """Counts pairs (or keys, as pairs with zero); beyond ``hold`` distinct ones the lightest are dropped.

    Rows are counted exactly, piece by piece. When more than twice ``hold`` counts are at hand they are added up, and
    the ``hold`` heaviest stay.

    Guarantees: no count is above the truth. None is below it by more than ``error``, which is the sum of the largest
    counts dropped each time; a pair that is missing has at most so many rows. As long as ``hold`` distinct pairs or
    fewer are seen, counts are exact and ``error`` is 0, whatever the order of the rows. The seed decides among equals.

    >>> heavy = HeavyPairs(hold=2)
    >>> for key in (1, 1, 2, 3, 3, 4):
    ...     heavy.add(np.array([key], np.uint64), np.zeros(1, np.uint64))
    >>> counts = heavy.counts()
    >>> counts.left.tolist(), counts.count.tolist(), heavy.error
    ([1, 3], [2.0, 2.0], 2.0)

    References
    ----------
    G. S. Manku, R. Motwani. *Approximate frequency counts over data streams.* VLDB 2002: lossy counting, which drops by
    a threshold that grows with the stream, where this one drops by rank and tells the threshold afterwards.
    """

    def __init__(self, hold: int, seed: int = 0) -> None:
        self.hold, self.seed = hold, seed
        self.error = 0.0
        self._parts: list[PairCounts] = []
        self._held = 0

    def add(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> None:
        """Count rows."""
        part = count_pairs(left, right)
        self._parts.append(part)
        self._held += len(part)
        if self._held > 2 * self.hold:
            self._reduce()

    def _reduce(self) -> None:
        whole = merge(self._parts)
        kept = whole.truncate(self.hold, self.seed)
        if len(kept) < len(whole):
            self.error += float(np.partition(whole.count, len(whole) - self.hold - 1)[-self.hold - 1])
        self._parts, self._held = [kept], len(kept)

    def counts(self, capacity: int | None = None) -> PairCounts:
        """Return the pairs held, at most ``capacity`` of them, and their counts."""
        self._reduce()
        return self._parts[0] if capacity is None else self._parts[0].truncate(capacity, self.seed)
