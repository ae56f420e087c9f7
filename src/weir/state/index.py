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


@compiled(
    "uint64[]",
    "uint64[]",
    "uint64",
    "out int64[]",
    "out int64[]",
    "out uint64[]",
    "out uint64[]",
    "out int64[]",
)
def _hash_order(key_hash, key_check, shift, begins, order, hashes, checks, first):  # type: ignore[no-untyped-def]
    """Sort keys into buckets, and those within; return how many distinct ones there are, −1 if a bucket is full."""
    for h in key_hash:
        begins[np.int64(h >> shift) + 1] += 1
    for b in range(1, len(begins)):
        if begins[b] > 64:
            return -1
        begins[b] += begins[b - 1]
    for i in range(len(key_hash)):
        bucket = np.int64(key_hash[i] >> shift)
        at = begins[bucket]
        begins[bucket] += 1
        order[at], hashes[at], checks[at] = i, key_hash[i], key_check[i]
    for i in range(1, len(order)):
        h, check, row, at = hashes[i], checks[i], order[i], i
        while at > 0 and (hashes[at - 1] > h or (hashes[at - 1] == h and checks[at - 1] > check)):
            hashes[at], checks[at], order[at] = hashes[at - 1], checks[at - 1], order[at - 1]
            at -= 1
        hashes[at], checks[at], order[at] = h, check, row
    keys = 0
    for i in range(len(order)):
        if i == 0 or hashes[i] != hashes[i - 1] or checks[i] != checks[i - 1]:
            first[keys] = i
            keys += 1
    return keys


def hash_order(key_hash: U64, key_check: U64) -> tuple[I64, I64] | None:
    """Return the positions of keys in the order of their hashes, and where in it each distinct key begins.

    Equal keys stay in their order. Hashes are spread evenly, so each of as many buckets, by their first bits, has few
    of them. If some key is there very often, that is not so: then None.

    >>> order, first = hash_order(np.array([9, 5, 9], np.uint64), np.array([1, 0, 1], np.uint64))
    >>> order.tolist(), first.tolist()
    ([1, 0, 2], [0, 1])
    """
    bits, n = max(1, len(key_hash).bit_length()), len(key_hash)
    order, first, begins = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros((1 << bits) + 1, np.int64)
    hashes, checks = np.empty(n, np.uint64), np.empty(n, np.uint64)
    keys = _hash_order(key_hash, key_check, np.uint64(64 - bits), begins, order, hashes, checks, first)
    return None if keys < 0 else (order, first[:keys])


@subroutine
def _before(one, other, major, minor):  # type: ignore[no-untyped-def]
    if len(major) and major[one] != major[other]:
        return major[one] < major[other]
    return minor[one] < minor[other]


@compiled("int64[]", "int64[]", "int64[]", "uint64[]", "out int64[]", "out bool[]")
def sort_within(begins, ends, major, minor, order, tied):  # type: ignore[no-untyped-def]
    """Sort rows between some positions of ``order`` by one column or two; note where two are equal in both.

    The first of them may be empty.
    """
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


@subroutine
def _lower_bound(values, start, end, at, step, value):  # type: ignore[no-untyped-def]
    """Return where the first value not less than one is among sorted ones: from ``at``, in steps that double."""
    if values[at] < value:
        lo = hi = at + 1
        while hi < end and values[hi] < value:
            lo, hi = hi + 1, hi + 1 + step
            step += step
        hi = min(hi, end)
    else:
        lo = hi = at
        while lo > start and values[lo - 1] >= value:
            lo, hi = max(start, lo - 1 - step), lo - 1
            step += step
    while lo < hi:
        mid = (lo + hi) >> 1
        if values[mid] < value:
            lo = mid + 1
        else:
            hi = mid
    return lo


@subroutine
def _find_in_run(values, start, end, value):  # type: ignore[no-untyped-def]
    """Return where a value is among sorted ones, or −1; as for keys, from where it would be if they were even."""
    lowest, highest = values[start], values[end - 1]
    if value < lowest or value > highest:
        return -1
    at = start + int(float(value - lowest) / max(1.0, float(highest - lowest)) * (end - 1 - start))
    at = min(at, end - 1)
    lo = _lower_bound(values, start, end, at, 4, value)
    return lo if lo < end and values[lo] == value else -1


@compiled("uint64[]", "uint64[]", "uint64[]", "uint64[]", "out int64[]", "out int64[]", "out int64[]")
def _find(seg1, seg2, key_hash, key_check, found, pending, hits):  # type: ignore[no-untyped-def]
    """For each pending key: its row in one sorted segment; keeps those not found pending, and notes the others.

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
    at = run_end = 0
    run_key = lowest
    for p in range(len(pending)):
        i = pending[p]
        key = key_hash[i]
        row = -1
        if lowest <= key <= highest:  # one of many blocks: mostly not this one
            if not ordered:
                at = min(size - 1, int(float(key - lowest) * scale))
            at = lo = _lower_bound(seg1, 0, size, at, 1 if ordered else 8, key)
            if lo < size and seg1[lo] == key:
                if key != run_key or run_end <= at:  # where its entries end: a key with a long list has many
                    run_key, run_end, step = key, lo + 1, 1
                    while run_end < size and seg1[run_end] == key:
                        lo, run_end = run_end, run_end + step
                        step += step
                    lo, hi = lo + 1, min(run_end, size)
                    while lo < hi:
                        mid = (lo + hi) >> 1
                        if seg1[mid] == key:
                            lo = mid + 1
                        else:
                            hi = mid
                    run_end = lo
                row = _find_in_run(seg2, at, run_end, key_check[i])
        if row >= 0:
            found[i] = row
            hits[p - still] = i
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
        hits = np.empty(len(self.missing), np.int64)
        still = _find(seg1, seg2, self.key_hash, self.key_check, self.row, self.missing, hits)
        hits, self.missing = hits[: len(hits) - still], self.missing[:still]
        self.which[hits] = number
        return hits

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
