"""Finding keys by their 128-bit hash: group the rows of a batch, look keys up in sorted segments.

A key is known by two independent 64-bit hashes, ``(h1, h2)``. ``h1`` also decides where the key lives, so the
entries of one key are neighbours in a segment sorted by ``(h1, h2)``. With 128 bits, a billion keys meet by
chance with probability below 10⁻²⁰; no byte comparison of keys is needed anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, subroutine

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


@compiled("uint64[]", "uint64[]", "out int64[]", "out int64[]", "out int64[]")
def _group(key_hash, key_check, slots, group, first):  # type: ignore[no-untyped-def]
    """Note the group of each row and the first row of each group; return how many there are."""
    mask = np.uint64(len(slots) - 1)
    groups = 0
    for i in range(len(key_hash)):
        at = (key_hash[i] ^ (key_check[i] >> np.uint64(7))) & mask
        while True:
            g = slots[at]
            if g < 0:
                slots[at] = groups
                first[groups] = i
                group[i] = groups
                groups += 1
                break
            j = first[g]
            if key_hash[j] == key_hash[i] and key_check[j] == key_check[i]:
                group[i] = g
                break
            at = (at + np.uint64(1)) & mask
    return groups


def group_rows(key_hash: U64, key_check: U64) -> tuple[I64, I64]:
    """Number the distinct keys of a batch.

    Returns the group of each row, numbered in order of first appearance, and the first row of each group.

    >>> h = np.array([7, 9, 7], dtype=np.uint64)
    >>> [x.tolist() for x in group_rows(h, h)]
    [[0, 1, 0], [0, 1]]
    """
    capacity = 16
    while capacity < 2 * len(key_hash):
        capacity *= 2
    group, first = np.empty(len(key_hash), np.int64), np.empty(len(key_hash), np.int64)
    groups = _group(key_hash, key_check, np.full(capacity, -1, np.int64), group, first)
    return group, first[:groups].copy()


@compiled("int64[]", "int64[]", "out int64[]", "out int64[]")
def _by_group(groups, order, begins, out):  # type: ignore[no-untyped-def]
    for i in order:
        out[begins[groups[i]]] = i
        begins[groups[i]] += 1


def by_group(groups: I64, n: int, order: I64) -> tuple[I64, I64]:
    """Return rows in the order of their ``n`` groups, each as in ``order``, and where groups begin.

    >>> [x.tolist() for x in by_group(np.array([1, 0, 1]), 2, np.array([2, 1, 0]))]
    [[1, 2, 0], [0, 1]]
    """
    counts = np.bincount(groups, minlength=n)
    begins = np.cumsum(counts) - counts
    out = np.empty(len(groups), np.int64)
    _by_group(groups, order, begins.copy(), out)
    return out, begins


@compiled("uint64[]", "uint64[]", "uint64", "out int64[]", "out int64[]")
def _hash_order(key_hash, key_check, shift, begins, order):  # type: ignore[no-untyped-def]
    for h in key_hash:
        begins[np.int64(h >> shift) + 1] += 1
    for b in range(1, len(begins)):
        if begins[b] > 64:
            return False
        begins[b] += begins[b - 1]
    for i in range(len(key_hash)):
        bucket = np.int64(key_hash[i] >> shift)
        order[begins[bucket]] = i
        begins[bucket] += 1
    for i in range(1, len(order)):
        row, at = order[i], i
        while at > 0:
            before = order[at - 1]
            if key_hash[before] < key_hash[row]:
                break
            if key_hash[before] == key_hash[row] and key_check[before] <= key_check[row]:
                break
            order[at] = before
            at -= 1
        order[at] = row
    return True


def hash_order(key_hash: U64, key_check: U64) -> I64:
    """Return the positions of keys in the order of their hashes; equal ones stay in their order.

    Hashes are spread evenly, so each of as many buckets, by their first bits, has few of them.

    >>> hash_order(np.array([9, 5, 9], np.uint64), np.array([1, 0, 0], np.uint64)).tolist()
    [1, 2, 0]
    """
    bits = max(1, len(key_hash).bit_length())
    order, begins = np.empty(len(key_hash), np.int64), np.zeros((1 << bits) + 1, np.int64)
    if _hash_order(key_hash, key_check, np.uint64(64 - bits), begins, order):
        return order
    return np.lexsort((key_check, key_hash))  # not so evenly


@subroutine
def _before(one, other, major, minor):  # type: ignore[no-untyped-def]
    if major[one] != major[other]:
        return major[one] < major[other]
    return minor[one] < minor[other]


@compiled("int64[]", "int64[]", "int64[]", "uint64[]", "out int64[]", "out bool[]")
def sort_within(begins, ends, major, minor, order, tied):  # type: ignore[no-untyped-def]
    """Sort rows between some positions of ``order`` by two columns; note where two are equal in both."""
    for g in range(len(begins)):
        begin, size = begins[g], ends[g] - begins[g]
        if size <= 24:
            for i in range(begin + 1, begin + size):
                row, at = order[i], i
                while at > begin and _before(row, order[at - 1], major, minor):
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = row
        else:  # by a heap
            for step in range(size // 2 + size - 1):
                if step < size // 2:
                    root, last = size // 2 - 1 - step, size
                else:
                    root, last = 0, size - 1 - (step - size // 2)
                    order[begin], order[begin + last] = order[begin + last], order[begin]
                while 2 * root + 1 < last:
                    child = 2 * root + 1
                    if child + 1 < last and _before(
                        order[begin + child], order[begin + child + 1], major, minor
                    ):
                        child += 1
                    if not _before(order[begin + root], order[begin + child], major, minor):
                        break
                    swapped = order[begin + root]
                    order[begin + root] = order[begin + child]
                    order[begin + child] = swapped
                    root = child
        for i in range(begin + 1, begin + size):
            if not _before(order[i - 1], order[i], major, minor):
                tied[i - 1] = tied[i] = True


def positions_among(key_hash: U64, key_check: U64, among_hash: U64, among_check: U64) -> I64:
    """Return where each key is among others, where last if it is there more than once; −1 where it is not.

    >>> ask, others = np.array([5, 1], np.uint64), np.array([7, 5], np.uint64)
    >>> positions_among(ask, ask, others, others).tolist()
    [1, -1]
    """
    n = len(key_hash)
    groups, first = group_rows(
        np.concatenate([key_hash, among_hash]), np.concatenate([key_check, among_check])
    )
    at = np.full(len(first), -1, np.int64)
    at[groups[n:]] = np.arange(len(among_hash))
    return at[groups[:n]]


@compiled("uint64[]", "uint64[]", "uint64[]", "uint64[]", "out int64[]", "out int64[]")
def _find(seg1, seg2, key_hash, key_check, found, pending):  # type: ignore[no-untyped-def]
    """For each pending key: its row in one sorted segment; keeps those not found pending.

    The search begins where the key before was found, if keys are in order, else where the key would be if hashes were
    spread quite evenly; it goes on from there in steps that double.
    """
    still = 0
    size = len(seg1)
    if size == 0:
        return len(pending)
    lowest, highest = seg1[0], seg1[size - 1]
    ordered = True
    for p in range(1, len(pending)):
        ordered &= key_hash[pending[p]] >= key_hash[pending[p - 1]]
    scale = (size - 1) / max(1.0, float(highest - lowest))
    at = 0
    for p in range(len(pending)):
        i = pending[p]
        key = key_hash[i]
        row = -1
        if lowest <= key <= highest:  # one of many blocks: mostly not this one
            if not ordered:
                at = min(size - 1, int(float(key - lowest) * scale))
            step = 1 if ordered else 8
            if seg1[at] < key:
                lo = hi = at + 1
                while hi < size and seg1[hi] < key:
                    lo, hi = hi + 1, hi + 1 + step
                    step += step
                hi = min(hi, size)
            else:
                lo = hi = at
                while lo > 0 and seg1[lo - 1] >= key:
                    lo, hi = max(0, lo - 1 - step), lo - 1
                    step += step
            while lo < hi:
                mid = (lo + hi) >> 1
                if seg1[mid] < key:
                    lo = mid + 1
                else:
                    hi = mid
            at = hi = lo
            step = 1  # a key with a long list has many entries
            while hi < size and seg1[hi] == key and seg2[hi] < key_check[i]:
                lo, hi = hi + 1, hi + 1 + step
                step += step
            hi = min(hi, size)
            while lo < hi:
                mid = (lo + hi) >> 1
                if seg1[mid] == key and seg2[mid] < key_check[i]:
                    lo = mid + 1
                else:
                    hi = mid
            if lo < size and seg1[lo] == key and seg2[lo] == key_check[i]:
                row = lo
        if row >= 0:
            found[i] = row
        else:
            pending[still] = i
            still += 1
    return still


class Search:
    """Keys looked for in one sorted run of entries after another, the newest first.

    ``which`` has for each key the number of the run that holds its newest entry, ``row`` its row there; both are −1
    for a key that is in none. The cost grows with the number of keys asked for, and only with the logarithm of what
    is stored.

    >>> ask = np.array([5, 1, 2], dtype=np.uint64)
    >>> search = Search(ask, ask)
    >>> newer, older = np.array([5], dtype=np.uint64), np.array([1, 5], dtype=np.uint64)
    >>> search.look(1, newer, newer).tolist(), search.look(0, older, older).tolist()
    ([0], [1])
    >>> search.which.tolist(), search.row.tolist(), search.missing.tolist()
    ([1, 0, -1], [0, 0, -1], [2])
    """

    def __init__(self, key_hash: U64, key_check: U64) -> None:
        self.key_hash, self.key_check = key_hash, key_check
        self.which = np.full(len(key_hash), -1, dtype=np.int64)
        self.row = np.full(len(key_hash), -1, dtype=np.int64)
        self.missing = np.arange(len(key_hash), dtype=np.int64)  # positions of keys not seen yet

    def look(self, number: int, seg1: U64, seg2: U64) -> I64:
        """Look for the missing keys in a run sorted by ``(h1, h2)``; return the positions of those it has."""
        asked = self.missing.copy()
        still = _find(seg1, seg2, self.key_hash, self.key_check, self.row, self.missing)
        if still == len(asked):
            return asked[:0]
        self.missing = self.missing[:still]
        hit = asked[self.row[asked] >= 0]
        self.which[hit] = number
        return hit

    def leave_out(self, holds: Callable[[U64], NDArray[np.bool_]]) -> I64:
        """Stop looking for the missing keys that the next runs do not hold; return their positions."""
        held = holds(self.key_hash[self.missing])
        elsewhere, self.missing = self.missing[~held], self.missing[held]
        return elsewhere

    def drop(self, positions: I64) -> None:
        """Count keys as seen and gone."""
        self.which[positions] = self.row[positions] = -1


def bits_at(bits: NDArray[np.uint8], first: int, rows: I64) -> NDArray[np.bool_]:
    """Return some of the bits of a bitmap whose first one is bit ``first``."""
    at = rows + first
    return (bits[at >> 3] >> (at & 7).astype(np.uint8)) & np.uint8(1) != 0


def rows_of(seg1: U64, keys: U64) -> I64:
    """Return the rows of one segment, sorted by ``h1``, that belong to any of the keys with these hashes.

    >>> rows_of(np.array([2, 5, 5, 9], np.uint64), np.array([9, 5, 4], np.uint64)).tolist()
    [3, 1, 2]
    """
    start, end = np.searchsorted(seg1, keys, "left"), np.searchsorted(seg1, keys, "right")
    count = end - start
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(count.sum())
