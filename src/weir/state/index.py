"""Finding keys by their 128-bit hash: group the rows of a batch, look keys up in sorted segments.

A key is known by two independent 64-bit hashes, ``(h1, h2)``. ``h1`` also decides where the key lives, so the
entries of one key are neighbours in a segment sorted by ``(h1, h2)``. With 128 bits, a billion keys meet by
chance with probability below 10⁻²⁰; no byte comparison of keys is needed anywhere.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


@nb.njit(cache=True)
def _group(h1, h2, capacity):  # type: ignore[no-untyped-def]
    n = len(h1)
    mask = np.uint64(capacity - 1)
    slots = np.full(capacity, -1, dtype=np.int64)
    group = np.empty(n, dtype=np.int64)
    first = np.empty(n, dtype=np.int64)
    groups = 0
    for i in range(n):
        at = (h1[i] ^ (h2[i] >> np.uint64(7))) & mask
        while True:
            g = slots[at]
            if g < 0:
                slots[at] = groups
                first[groups] = i
                group[i] = groups
                groups += 1
                break
            j = first[g]
            if h1[j] == h1[i] and h2[j] == h2[i]:
                group[i] = g
                break
            at = (at + np.uint64(1)) & mask
    return group, first[:groups].copy()


def group_rows(h1: U64, h2: U64) -> tuple[I64, I64]:
    """Number the distinct keys of a batch.

    Returns the group of each row, numbered in order of first appearance, and the first row of each group.

    >>> h = np.array([7, 9, 7], dtype=np.uint64)
    >>> [x.tolist() for x in group_rows(h, h)]
    [[0, 1, 0], [0, 1]]
    """
    capacity = 16
    while capacity < 2 * len(h1):
        capacity *= 2
    return _group(h1, h2, capacity)


@nb.njit(cache=True)
def _find(seg1, seg2, h1, h2, found, pending):  # type: ignore[no-untyped-def]
    """For each pending key: its row in one sorted segment; keeps those not found pending."""
    still = 0
    size = len(seg1)
    for p in range(len(pending)):
        i = pending[p]
        lo, hi = 0, size
        key = h1[i]
        while lo < hi:
            mid = (lo + hi) >> 1
            if seg1[mid] < key:
                lo = mid + 1
            else:
                hi = mid
        row = -1
        while lo < size and seg1[lo] == key:
            if seg2[lo] == h2[i]:
                row = lo
                break
            lo += 1
        if row >= 0:
            found[i] = row
        else:
            pending[still] = i
            still += 1
    return still


def find_in_segments(segments: list[tuple[U64, U64]], h1: U64, h2: U64) -> tuple[I64, I64]:
    """Return the newest entry of each key in a list of segments, oldest first, each sorted by ``(h1, h2)``.

    Returns (segment, row) per key, both −1 where the key is unknown. The cost grows with the number of keys
    asked for, and only with the logarithm of what is stored.

    >>> a = np.array([1, 5], dtype=np.uint64)
    >>> b = np.array([5], dtype=np.uint64)
    >>> ask = np.array([5, 1, 2], dtype=np.uint64)
    >>> [x.tolist() for x in find_in_segments([(a, a), (b, b)], ask, ask)]
    [[1, 0, -1], [0, 0, -1]]
    """
    which = np.full(len(h1), -1, dtype=np.int64)
    row = np.full(len(h1), -1, dtype=np.int64)
    pending = np.arange(len(h1), dtype=np.int64)
    for number in range(len(segments) - 1, -1, -1):
        if len(pending) == 0:
            break
        seg1, seg2 = segments[number]
        before = pending.copy()
        still = _find(seg1, seg2, h1, h2, row, pending)
        hit = before[row[before] >= 0]
        which[hit] = number
        pending = pending[:still]
    return which, row


def rows_of(seg1: U64, keys: U64) -> I64:
    """Return the rows of one segment, sorted by ``h1``, that belong to any of the keys with these hashes.

    >>> rows_of(np.array([2, 5, 5, 9], np.uint64), np.array([9, 5, 4], np.uint64)).tolist()
    [3, 1, 2]
    """
    start, end = np.searchsorted(seg1, keys, "left"), np.searchsorted(seg1, keys, "right")
    count = end - start
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(count.sum())
