"""A cuckoo table: a look-up is two comparisons, whoever makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled


@compiled("uint64[]", "int32[]", "out uint64[]", "out int32[]")
def _place(hashes, homes, keys, values):  # type: ignore[no-untyped-def]
    """Fill an empty table; return whether there was room."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(hashes)):
        key, home = hashes[i], homes[i]
        at = key & mask
        placed = False
        for _ in range(200):
            if values[at] < 0:
                keys[at], values[at] = key, home
                placed = True
                break
            other_key, other_home = keys[at], values[at]
            keys[at], values[at] = key, home
            key, home = other_key, other_home
            one, two = key & mask, (key >> np.uint64(32)) & mask
            at = two if at == one else one
        if not placed:
            return False
    return True


def two_choice_table(
    hashes: NDArray[np.uint64], homes: NDArray[np.int32], least: int = 8, factor: int = 2
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """A cuckoo table: every key is in one of two places, so a look-up is two comparisons.

    Its size is ``least``, or that times the smallest power of ``factor`` that will do. Empty places hold −1 as home.
    An empty place's key is one that could never be found there.

    >>> keys, homes = two_choice_table(np.array([5, 9], np.uint64), np.array([1, 0], np.int32))
    >>> int(homes[keys == 9][0])
    0
    """
    size = least
    while size < 2.5 * len(hashes):
        size *= factor
    while True:
        keys, values = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
        if _place(hashes, homes, keys, values):
            break
        size *= factor
    # 0 would match the hash 0 in an empty place; give empty places a key whose first choice is elsewhere
    empty = values < 0
    places = np.flatnonzero(empty).astype(np.uint64)
    flipped = places ^ np.uint64(1)
    keys[empty] = flipped | (flipped << np.uint64(32))
    return keys, values
