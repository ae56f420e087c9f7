"""Look keys up in a table by open addressing: a probe or two per key, where a search in sorted order takes a dozen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled

EMPTY = -1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@compiled("uint64[]", "int64", "out int32[]")
def _fill(hashes, bits, index):  # type: ignore[no-untyped-def]
    """Put the position of each hash into one of 2^bits empty slots; hashes are distinct and fill at most half."""
    mask, shift = np.uint64(len(index) - 1), np.uint64(64 - bits)
    for i in range(len(hashes)):
        at = (hashes[i] * _SPREAD) >> shift
        while index[at] != EMPTY:
            at = (at + np.uint64(1)) & mask
        index[at] = i


@compiled("int32[]", "uint64[]", "int32[]", "int64", "uint64[]", "out int32[]")
def _find(index, hashes, values, bits, keys, out):  # type: ignore[no-untyped-def]
    mask, shift = np.uint64(len(index) - 1), np.uint64(64 - bits)
    for i in range(len(keys)):
        at = (keys[i] * _SPREAD) >> shift
        while index[at] != EMPTY and hashes[index[at]] != keys[i]:
            at = (at + np.uint64(1)) & mask
        out[i] = EMPTY if index[at] == EMPTY else values[index[at]]


class Lookup:
    """The value of each of some distinct hashes.

    >>> lookup = Lookup(np.array([7, 8], np.uint64), np.array([3, 1], np.int32))
    >>> lookup.find(np.array([8, 9, 7, 8], np.uint64)).tolist()
    [1, -1, 3, 1]
    """

    def __init__(self, hashes: NDArray[np.uint64], values: NDArray[np.int32]) -> None:
        self._hashes, self._values = hashes, values
        self._bits = max(4, (2 * len(hashes)).bit_length())
        self._index = np.full(1 << self._bits, EMPTY, np.int32)
        _fill(hashes, self._bits, self._index)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the value of each key, −1 where there is none."""
        values = np.empty(len(keys), np.int32)
        _find(self._index, self._hashes, self._values, self._bits, keys, values)
        return values
