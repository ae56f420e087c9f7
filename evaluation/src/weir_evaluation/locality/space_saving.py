"""SpaceSaving: the most frequent pairs of a stream with a fixed number of counters."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.locality._hashmap import EMPTY, _spread
from weir.locality.counts import PairCounts, count_pairs
from weir_evaluation.locality.batch_counter import check_capacity


class PairSpaceSaving:
    """The ``capacity`` most frequent pairs by Metwally's stream summary, as the paper counts them.

    A known pair is counted. An unknown one, when all counters are taken, inherits the smallest counter: it
    replaces that pair and continues from its count. So no count is too small, none is too large by more than
    the smallest counter, and every pair seen more than ``total / capacity`` times is present.

    The smallest counter is found with a heap: a row costs one hash probe and O(log capacity) at worst.

    Parameters
    ----------
    capacity
        Number of counters.
    canonical
        Rows of one call are counted in an order of their own instead of as they come, so that a repeated task
        reports the same. Turn it off for the algorithm as printed.
    seed
        Fixes that order.

    References
    ----------
    A. Metwally, D. Agrawal, A. El Abbadi. *Efficient computation of frequent and top-k elements in data
    streams.* ICDT 2005.

    Examples
    --------
    >>> summary = PairSpaceSaving(capacity=2)
    >>> summary.observe(np.array([1, 1, 1, 2, 3], np.uint64), np.array([1, 1, 1, 2, 3], np.uint64))
    >>> summary.counts().total, summary.error
    (5.0, 1)
    """

    def __init__(self, capacity: int, *, canonical: bool = True, seed: int = 0) -> None:
        check_capacity(capacity)
        self.capacity, self.canonical, self.seed = capacity, canonical, seed
        self.reset()

    def reset(self) -> None:
        """Forgets everything, as the paper does whenever routing changes."""
        self._index = np.full(1 << max(4, (2 * self.capacity).bit_length()), EMPTY, np.int64)
        self._pair = np.zeros((2, self.capacity), np.uint64)
        self._count = np.zeros((2, self.capacity), np.int64)  # count, and what of it may be inherited
        self._heap = np.zeros((2, self.capacity), np.int64)  # entry at a heap place, heap place of an entry
        self._n = 0

    def observe(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> None:
        """Takes in rows."""
        left, right = np.ascontiguousarray(left, np.uint64), np.ascontiguousarray(right, np.uint64)
        if self.canonical:
            order = np.lexsort((right, left, mix(left ^ mix(right, np.uint64(1)), np.uint64(self.seed))))
            left, right = left[order], right[order]
        self._n = _count_rows(self._index, self._pair, self._count, self._heap, self._n, left, right)

    def counts(self) -> PairCounts:
        """The pairs held and their counts."""
        n = self._n
        return count_pairs(self._pair[0, :n], self._pair[1, :n], self._count[0, :n].astype(np.float64))

    @property
    def error(self) -> int:
        """The most by which any count may exceed the truth."""
        return int(self._count[1, : self._n].max(initial=0))


@nb.njit(cache=True, nogil=True)
def _sink(count, heap, at, n):  # type: ignore[no-untyped-def]
    entry = heap[0, at]
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and count[0, heap[0, child + 1]] < count[0, heap[0, child]]:
            child += 1
        if count[0, heap[0, child]] >= count[0, entry]:
            break
        heap[0, at] = heap[0, child]
        heap[1, heap[0, at]] = at
        at = child
    heap[0, at] = entry
    heap[1, entry] = at


@nb.njit(cache=True, nogil=True)
def _forget(index, pair, entry):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(index) - 1)
    at = _spread(pair[0, entry], pair[1, entry]) & mask
    while index[at] != entry:
        at = (at + np.uint64(1)) & mask
    # close the gap: later entries of the same run move up, or a probe would stop too early
    gap = at
    while True:
        at = (at + np.uint64(1)) & mask
        e = index[at]
        if e == EMPTY:
            break
        home = _spread(pair[0, e], pair[1, e]) & mask
        if ((at - home) & mask) >= ((at - gap) & mask):
            index[gap] = e
            gap = at
    index[gap] = EMPTY


@nb.njit(cache=True, nogil=True)
def _count_rows(index, pair, count, heap, n, left, right):  # type: ignore[no-untyped-def]
    capacity = pair.shape[1]
    mask = np.uint64(len(index) - 1)
    for i in range(len(left)):
        l = left[i]
        r = right[i]
        at = _spread(l, r) & mask
        entry = index[at]
        while entry != EMPTY and not (pair[0, entry] == l and pair[1, entry] == r):
            at = (at + np.uint64(1)) & mask
            entry = index[at]
        if entry != EMPTY:
            count[0, entry] += 1
            _sink(count, heap, heap[1, entry], n)
            continue
        if n < capacity:
            entry = n
            n += 1
            count[0, entry] = 1
            count[1, entry] = 0
            place = n - 1  # a count of one is the least there is: it may have to rise
            while place > 0 and count[0, heap[0, (place - 1) // 2]] > 1:
                heap[0, place] = heap[0, (place - 1) // 2]
                heap[1, heap[0, place]] = place
                place = (place - 1) // 2
            heap[0, place] = entry
            heap[1, entry] = place
        else:
            entry = heap[0, 0]
            _forget(index, pair, entry)
            count[1, entry] = count[0, entry]
            count[0, entry] += 1
            _sink(count, heap, 0, n)
            at = _spread(l, r) & mask
            while index[at] != EMPTY:
                at = (at + np.uint64(1)) & mask
        pair[0, entry] = l
        pair[1, entry] = r
        index[at] = entry
    return n
