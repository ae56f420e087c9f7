"""Exact counts of each batch, truncated and merged with decay: what the paper's stream summary is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.errors import ParameterError
from weir.locality.counts import PairCounts, count_pairs, merge


class BatchCounter:
    """Counts each batch exactly, keeps its heaviest pairs, and merges batches with decay.

    Parameters
    ----------
    capacity
        Pairs kept of one batch and in all. Between batches nothing else is remembered.
    decay
        What a sighting is still worth one batch later, in (0, 1].
    seed
        Fixes which of several equally frequent pairs survive.

    Guarantees: a pair's count is never above its true (decayed) count, and is exact as long as at most
    ``capacity`` distinct pairs were seen. The order of the rows within a batch makes no difference.

    >>> counter = BatchCounter(capacity=2)
    >>> counter.observe(np.array([1, 1, 2, 3], np.uint64), np.array([1, 1, 2, 3], np.uint64))
    >>> counter.observe(np.array([1, 2], np.uint64), np.array([1, 2], np.uint64))
    >>> sorted(counter.counts().count.tolist())[-1]
    3.0
    """

    def __init__(self, capacity: int, *, decay: float = 1.0, seed: int = 0) -> None:
        check_capacity(capacity)
        if not 0 < decay <= 1:
            raise ParameterError(f"decay must be in (0, 1], got {decay}")
        self.capacity, self.decay, self.seed = capacity, decay, seed
        self._counts = PairCounts.empty()

    def observe(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> None:
        """Takes in one batch: all rows that one task saw."""
        batch = count_pairs(left, right).truncate(self.capacity, self.seed)
        self._counts = merge([self._counts.scaled(self.decay), batch], self.capacity, self.seed)

    def counts(self) -> PairCounts:
        """The pairs kept and their counts."""
        return self._counts

    def reset(self) -> None:
        self._counts = PairCounts.empty()


def check_capacity(capacity: int) -> None:
    """Refuses a counter without counters."""
    if capacity < 1:
        raise ParameterError(f"capacity must be at least 1 pair, got {capacity}")
