"""Placement of new keys, at every batch boundary, by the keys they were seen with."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray


def place(
    ties: NDArray[np.float64],
    weight: NDArray[np.float64],
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    hashes: NDArray[np.uint64],
    near: NDArray[np.float64] | None = None,
) -> NDArray[np.int32]:
    """Return a server for each new key of one operator: the one with the most ties that has room.

    A key without any ties gets −1.

    Heaviest keys choose first, equals in the order of their hashes, so the answer doesn't depend on the order
    in which keys are given. A key goes to the server with the most rows tied to it whose load, with the key,
    stays within its limit; when all with any tie are full, to the one nearest to those that has room;
    without distances, or without room anywhere, to the one with the most room.

    ``ties`` are the rows in which each key (first axis) was seen with a key of each server (second axis),
    ``weight`` the rows of each key, ``load`` and ``limit`` the rows of each server now and the most it may get,
    ``near`` how close any two servers are (:func:`~weir.network.tree.closeness`).

    >>> ties = np.array([[5.0, 1.0], [4.0, 3.0], [0.0, 0.0]])
    >>> keys = np.array([7, 8, 9], np.uint64)
    >>> place(ties, np.array([6.0, 7.0, 1.0]), np.zeros(2), np.full(2, 10.0), keys).tolist()
    [1, 0, -1]

    The server it is tied to is full: the key goes to the nearest (server 1), although server 2 has more room.

    >>> near = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    >>> full = np.array([10.0, 5.0, 0.0])
    >>> place(np.array([[5.0, 0.0, 0.0]]), np.array([3.0]), full, np.full(3, 10.0), keys[:1], near).tolist()
    [1]
    """
    order = np.lexsort((hashes, -weight))
    if near is None:
        near = np.zeros((len(load), len(load)))
    return np.asarray(_place(ties, weight, load.astype(np.float64).copy(), limit, order, near))


@nb.njit(cache=True, nogil=True)
def _place(ties, weight, load, limit, order, near):  # type: ignore[no-untyped-def]
    out = np.full(len(order), -1, np.int32)
    n = len(load)
    for v in order:
        best = -1
        some = False
        for s in range(n):
            if ties[v, s] <= 0:
                continue
            some = True
            if load[s] + weight[v] > limit[s]:
                continue
            better = best < 0 or ties[v, s] > ties[v, best]
            if not better and ties[v, s] == ties[v, best]:
                better = load[s] / limit[s] < load[best] / limit[best]
            if better:
                best = s
        if not some:
            continue
        if best < 0:
            closest = 0.0
            for s in range(n):
                if load[s] + weight[v] > limit[s]:
                    continue
                close = 0.0
                for t in range(n):
                    close += ties[v, t] * near[t, s]
                better = close > closest
                if not better and best >= 0 and close == closest:
                    better = load[s] / limit[s] < load[best] / limit[best]
                if better:
                    best, closest = s, close
        if best < 0:
            best = 0
            for s in range(1, n):
                if load[s] / limit[s] < load[best] / limit[best]:
                    best = s
        out[v] = best
        load[best] += weight[v]
    return out
