"""Which rows of two sides belong together: equal group, times within a bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled

I64 = NDArray[np.int64]
AT_ONCE = 1 << 19  # pairs that are handed over together


@compiled(*["int64[]"] * 5, "int64", "int64", "out int64[]", "out int64[]")
def _ranges(groups, times, starts, ends, others, before, after, low, high):  # type: ignore[no-untyped-def]
    """For each row: where in the sorted other side those begin and end whose time is within its bounds."""
    for i in range(len(groups)):
        lo, hi = starts[groups[i]], ends[groups[i]]
        least, most = times[i] - before, times[i] + after
        end = hi
        while lo < hi:
            mid = (lo + hi) >> 1
            if others[mid] < least:
                lo = mid + 1
            else:
                hi = mid
        low[i] = lo
        hi = end
        while lo < hi:
            mid = (lo + hi) >> 1
            if others[mid] <= most:
                lo = mid + 1
            else:
                hi = mid
        high[i] = lo


def pairs(
    groups: tuple[I64, I64], times: tuple[I64, I64], before: int, after: int
) -> Iterator[tuple[I64, I64]]:
    """Yield positions of rows, left and right, of equal group where ``left − before ≤ right ≤ left + after``.

    Costs a sort of the right side, two binary searches per left row, and the pairs themselves, in bounded portions.

    >>> left, right = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> ten = np.array([10, 20, 10]), np.array([12, 10, 30])
    >>> [[p.tolist() for p in both] for both in pairs((left, right), ten, before=0, after=5)]
    [[[0, 2], [0, 1]]]
    """
    left, right = groups
    if not len(left) or not len(right):
        return
    order = np.lexsort((times[1], right))
    sorted_groups = right[order]
    numbers = np.arange(int(max(left.max(), right.max())) + 1)
    starts = np.searchsorted(sorted_groups, numbers, "left")
    ends = np.searchsorted(sorted_groups, numbers, "right")
    low, high = np.empty(len(left), np.int64), np.empty(len(left), np.int64)
    _ranges(left, times[0], starts, ends, times[1][order], before, after, low, high)
    counts = high - low
    total = np.cumsum(counts)
    first = 0
    while first < len(left):
        done = total[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(total, done + AT_ONCE, "right")))
        here = counts[first:last]
        if here.sum():
            offsets = np.arange(here.sum()) - np.repeat(np.cumsum(here) - here, here)
            yield (
                np.repeat(np.arange(first, last), here),
                order[np.repeat(low[first:last], here) + offsets],
            )
        first = last
