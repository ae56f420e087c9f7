"""Counts of the keys, and pairs of keys, that rows carry between keyed operators; in bounded memory.

A row that passes operator *a* with key ``k`` and operator *b* with key ``k'`` is one sighting of the pair
``(k, k')``. A micro-batch is counted exactly, and its heaviest pairs are kept; on data that arrives in batches this
is closer to the truth than the stream summary of the locality-aware routing paper.

Counts are canonical: whatever the order in which rows arrived, the same rows give the same arrays, so a task
that Spark runs again reports the same statistics.

References
----------
M. Caneill, A. El Rheddane, V. Leroy, N. De Palma. *Locality-aware routing in stateful streaming
applications.* Middleware 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.locality._hashmap import PairIndex

_NO_KEYS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class PairCounts:
    """Distinct pairs in ascending order, and how often each was seen.

    ``right`` is all zero where single keys are counted instead of pairs, see :func:`count_keys`.

    >>> counts = count_pairs(np.array([2, 1, 2], np.uint64), np.array([5, 9, 5], np.uint64))
    >>> counts.left.tolist(), counts.right.tolist(), counts.count.tolist()
    ([1, 2], [9, 5], [1.0, 2.0])
    """

    left: NDArray[np.uint64]
    right: NDArray[np.uint64]
    count: NDArray[np.float64]

    @classmethod
    def empty(cls) -> PairCounts:
        return cls(_NO_KEYS, _NO_KEYS, np.zeros(0))

    def __len__(self) -> int:
        return len(self.left)

    @property
    def total(self) -> float:
        """Return the sum of the counts."""
        return float(self.count.sum())

    def truncate(self, capacity: int, seed: int = 0) -> PairCounts:
        """Return the ``capacity`` most frequent pairs; among equals a random choice that the seed fixes.

        A tail of pairs seen once is mostly ties. Taking the first ones of a sorted list would favour the same
        keys in every batch and on every server; a seeded draw doesn't.
        """
        if len(self) <= capacity:
            return self
        chosen = heaviest(
            self.count, capacity, mix(self.left ^ mix(self.right, np.uint64(0)), np.uint64(seed))
        )
        return PairCounts(self.left[chosen], self.right[chosen], self.count[chosen])

    def without(self, left: NDArray[np.uint64], right: NDArray[np.uint64] = _NO_KEYS) -> PairCounts:
        """Return the pairs of which neither key is among those given."""
        if not len(left) and not len(right):
            return self
        kept = ~(np.isin(self.left, left) | np.isin(self.right, right))
        return PairCounts(self.left[kept], self.right[kept], self.count[kept])

    def scaled(self, factor: float) -> PairCounts:
        return PairCounts(self.left, self.right, self.count * factor)


def heaviest(count: NDArray[np.float64], capacity: int, tie: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the positions, ascending, of the ``capacity`` largest counts; equals are ranked by ``tie``."""
    if capacity <= 0:
        return np.zeros(0, np.int64)
    if len(count) <= capacity:
        return np.arange(len(count))
    least = np.partition(count, len(count) - capacity)[len(count) - capacity]
    sure = np.flatnonzero(count > least)
    equal = np.flatnonzero(count == least)
    equal = equal[np.argsort(tie[equal], kind="stable")[: capacity - len(sure)]]
    return np.sort(np.concatenate([sure, equal]))


def count_pairs(
    left: NDArray[np.uint64], right: NDArray[np.uint64], count: NDArray[np.float64] | None = None
) -> PairCounts:
    """Count the pairs of two columns exactly; with ``count``, each row stands for that many."""
    index = PairIndex()
    ids = index.add(np.ascontiguousarray(left, np.uint64), np.ascontiguousarray(right, np.uint64))
    sums = np.bincount(ids, weights=count, minlength=index.n).astype(np.float64)
    order = np.lexsort((index.right, index.left)) if index.right.any() else np.argsort(index.left)
    return PairCounts(index.left[order], index.right[order], sums[order])


def count_keys(keys: NDArray[np.uint64], count: NDArray[np.float64] | None = None) -> PairCounts:
    """Count single keys exactly, as pairs whose right side is zero.

    >>> count_keys(np.array([4, 3, 4], np.uint64)).count.tolist()
    [1.0, 2.0]
    """
    return count_pairs(keys, np.zeros(len(keys), np.uint64), count)


PRIOR = 8  # rows of usual cost that a key's time is averaged with: of few rows it is chance
TWICE = 2.0  # factor by which a key must differ from the usual to weigh more or less


def weighed(counts: PairCounts, seconds: PairCounts, other: float = 0.0) -> PairCounts:
    """Return a server's counts of keys with those weighing more that take longer for a row, as measured there.

    What is usual is the median over its rows: how fast the server is plays no part, and one dear key does not make all
    others cheap. ``other`` seconds go into every row besides.

    >>> counts = count_keys(np.arange(5, dtype=np.uint64), np.full(5, 100.0))
    >>> weighed(counts, counts.scaled(0.001)).count.tolist()
    [100.0, 100.0, 100.0, 100.0, 100.0]
    >>> dear = PairCounts(counts.left, counts.right, np.array([0.1, 0.1, 0.1, 0.1, 5.0]))
    >>> weighed(counts, dear).count.round(-2).tolist()
    [100.0, 100.0, 100.0, 100.0, 4400.0]
    """
    at = np.searchsorted(seconds.left, counts.left)
    at[at == len(seconds)] = 0
    known = seconds.left[at] == counts.left if len(seconds) else np.zeros(len(counts), np.bool_)
    rows = counts.count[known]
    took = seconds.count[at[known]] + other * rows
    if not took.sum() > 0:
        return counts
    usual = took.sum() / rows.sum()
    for _ in range(2):  # the mean is a start only: it counts the dear keys, too
        cost = (took + PRIOR * usual) / (rows + PRIOR)
        order = np.argsort(cost)
        usual = cost[order[np.searchsorted(np.cumsum(rows[order]), rows.sum() / 2)]]
    factor = cost / usual
    factor[(factor < TWICE) & (factor > 1 / TWICE)] = 1.0
    out = counts.count.copy()
    out[known] *= factor
    return PairCounts(counts.left, counts.right, out)


def merge(counts: Sequence[PairCounts], capacity: int | None = None, seed: int = 0) -> PairCounts:
    """Add up the counts of several servers or batches, truncated again if a capacity is given.

    >>> one = count_keys(np.array([1, 2], np.uint64))
    >>> merge([one, one]).count.tolist()
    [2.0, 2.0]
    """
    whole = [c for c in counts if len(c)]
    if not whole:
        return PairCounts.empty()
    merged = whole[0]
    if len(whole) > 1:
        merged = count_pairs(
            np.concatenate([c.left for c in whole]),
            np.concatenate([c.right for c in whole]),
            np.concatenate([c.count for c in whole]),
        )
    return merged if capacity is None else merged.truncate(capacity, seed)


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
