"""Open-addressing hash maps over pairs of 64-bit numbers, shared by the counters and the manager.

Entries live in dense arrays in order of arrival; a separate index of slots points into them. Growing or
rebuilding only touches the index, and the dense arrays are what vectorised code wants to see.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, helper

EMPTY = -1


@helper
def _spread(left, right):  # type: ignore[no-untyped-def]
    x = left ^ (right * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@helper
def _slot(index, lefts, rights, left, right):  # type: ignore[no-untyped-def]
    """Return the slot that holds a pair, or the empty one where it belongs."""
    mask = np.uint64(len(index) - 1)
    at = _spread(left, right) & mask
    while index[at] != EMPTY and (lefts[index[at]] != left or rights[index[at]] != right):
        at = (at + np.uint64(1)) & mask
    return at


@compiled("out int32[]", "out uint64[]", "out uint64[]", "int64", "uint64[]", "uint64[]", "out int64[]")
def _insert_all(index, lefts, rights, n, left, right, ids):  # type: ignore[no-untyped-def]
    """Note the entry of each pair, new ones added at the end where there is room; return the number of entries."""
    for i in range(len(left)):
        at = _slot(index, lefts, rights, left[i], right[i])
        if index[at] == EMPTY:
            index[at], lefts[n], rights[n] = n, left[i], right[i]
            n += 1
        ids[i] = index[at]
    return n


@compiled("int32[]", "uint64[]", "uint64[]", "uint64[]", "uint64[]", "out int64[]")
def _find_all(index, lefts, rights, left, right, ids):  # type: ignore[no-untyped-def]
    """Note the entry of each pair, −1 where there is none."""
    for i in range(len(left)):
        ids[i] = index[_slot(index, lefts, rights, left[i], right[i])]


@compiled("out int32[]", "uint64[]", "uint64[]", "int64")
def _rebuild(index, lefts, rights, n):  # type: ignore[no-untyped-def]
    """Fill an empty index from the dense arrays, whose entries are all different."""
    mask = np.uint64(len(index) - 1)
    for e in range(n):
        at = _spread(lefts[e], rights[e]) & mask
        while index[at] != EMPTY:
            at = (at + np.uint64(1)) & mask
        index[at] = e


class PairIndex:
    """Numbers distinct pairs 0, 1, 2 … in order of arrival.

    >>> index = PairIndex()
    >>> index.add(np.array([7, 8, 7], np.uint64), np.array([1, 1, 1], np.uint64)).tolist()
    [0, 1, 0]
    >>> index.find(np.array([8, 9], np.uint64), np.array([1, 1], np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self, room: int = 512) -> None:
        nothing = np.empty(0, np.uint64)
        self._lay_out(nothing, nothing, room)

    def _lay_out(self, left: NDArray[np.uint64], right: NDArray[np.uint64], room: int) -> None:
        """Take these pairs as entries 0, 1, 2 …, with room for so many."""
        self.n = len(left)
        self._left, self._right = np.empty(room, np.uint64), np.empty(room, np.uint64)
        self._left[: self.n], self._right[: self.n] = left, right
        self._index = np.full(1 << max(10, (3 * room // 2).bit_length()), EMPTY, np.int32)  # 2/3 full at most
        _rebuild(self._index, self._left, self._right, self.n)

    @property
    def left(self) -> NDArray[np.uint64]:
        return self._left[: self.n]

    @property
    def right(self) -> NDArray[np.uint64]:
        return self._right[: self.n]

    def add(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of each pair; new pairs get the next numbers."""
        ids = np.empty(len(left), np.int64)
        # in pieces, so that repeated pairs don't make it reserve room for every row
        step = max(65_536, self.n)
        for at in range(0, len(left), step):
            piece = slice(at, at + step)
            room = self.n + len(left[piece])
            if room > len(self._left):
                # not twice as many: counts are pruned when they have a quarter too many
                self._lay_out(self.left, self.right, max(room, 11 * len(self._left) // 8))
            self.n = _insert_all(
                self._index, self._left, self._right, self.n, left[piece], right[piece], ids[piece]
            )
        return ids

    def find(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of each pair, −1 for pairs never added."""
        ids = np.empty(len(left), np.int64)
        _find_all(self._index, self._left, self._right, left, right, ids)
        return ids

    def keep(self, entries: NDArray[np.int64]) -> None:
        """Keep only these entries, renumbered in the order given."""
        self._lay_out(self._left[entries], self._right[entries], max(512, len(entries)))
