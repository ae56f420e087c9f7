"""Placement of keys at every batch boundary, by the keys they were seen with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, subroutine

# What another server must have more than a key's home: what chance alone may give, which of r rows that fall on either
# is about √r; twice that for a settled key. In replays of recorded streams less moves many more keys for little.
CHANCE, CHANCE_SETTLED = 1.0, 2.0


def place(
    servers: NDArray[np.int32],
    rows: NDArray[np.float32],
    weight: NDArray[np.float64],
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    hashes: NDArray[np.uint64],
    near: NDArray[np.float64] | None = None,
    present: NDArray[np.int32] | None = None,
    settled: NDArray[np.bool_] | None = None,
    cost: float = 0.0,
) -> NDArray[np.int32]:
    """Return a server for each key of one operator: the one it has most rows with, if that has room.

    A key without any affinity and without a home gets −1.

    Heaviest keys choose first, equals in the order of their hashes, so the answer doesn't depend on the order
    in which keys are given. A key goes to the server with which it shares most rows and whose load, with the key,
    stays within its limit. One that has a home leaves it only for a server with clearly more rows. Where all its
    servers are full, and its home, a key goes to the nearest one that has room; without distances, or
    without room anywhere, to the one with the most room. A settled key is not driven out of its home: that is left
    to reconfigurations.

    ``servers`` and ``rows`` are the :class:`~weir.locality.key_affinity.KeyAffinity` of keys, ``weight`` its
    rows, ``load`` and ``limit`` the rows of each server now and the most it may get, ``near`` how close any two
    servers are (:func:`~weir.network.locator.closeness`), ``present`` the home of each key (−1: none), ``cost`` how
    many rows that leave their server weigh as much as the state of a settled key.

    >>> servers, rows = np.array([[0, 1], [0, 1], [-1, -1]], np.int32), np.array([[5, 1], [4, 3], [0, 0]], np.float32)
    >>> keys = np.array([7, 8, 9], np.uint64)
    >>> place(servers, rows, np.array([6.0, 7.0, 1.0]), np.zeros(2), np.full(2, 10.0), keys).tolist()
    [1, 0, -1]

    A row more elsewhere is no reason to move; five are.

    >>> light, home = np.ones(1), np.zeros(1, np.int32)
    >>> for more in (1, 5):
    ...     rows = np.array([[4, 4 + more]], np.float32)
    ...     place(servers[:1], rows, light, np.zeros(2), np.full(2, 10.0), keys[:1], present=home).tolist()
    [0]
    [1]

    The server it shares rows with is full: the key goes to the nearest (server 1), although server 2 has more room.

    >>> near = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    >>> full, room, five = np.array([10.0, 5.0, 0.0]), np.full(3, 10.0), np.array([[5]], np.float32)
    >>> place(np.array([[0]], np.int32), five, np.array([3.0]), full, room, keys[:1], near).tolist()
    [1]
    """
    order = np.lexsort((hashes, -weight))
    near = np.zeros((0, 0)) if near is None else near
    home = np.full(len(weight), -1, np.int32) if present is None else present.astype(np.int32)
    firm = np.zeros(len(weight), np.bool_) if settled is None else settled
    out = np.full(len(weight), -1, np.int32)
    _place(servers, rows, weight, load.astype(np.float64), limit, order, near, home, firm, cost, out)
    return out


def place_for_next(
    servers: NDArray[np.int32],
    coming: NDArray[np.float32],
    rows: NDArray[np.float32],
    weight: NDArray[np.float64],
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    hashes: NDArray[np.uint64],
    present: NDArray[np.int32],
    cost: float = 0.0,
    stay: float = 0.0,
) -> NDArray[np.int32]:
    """Return a server for each key of one operator, given the rows that are about to come: where most of them are.

    These rows are certain, so nothing is left to chance: a key leaves its home for a server that is about to have more
    of its rows, by what moving its state costs. If its home has had more of its rows so far (``rows``), it will want to
    go back, and the state is counted twice. No key moves for less than ``stay`` rows: of keys with many rows a few
    more are nearly always elsewhere. The keys with the most rows to come choose first, equals in the order of their
    hashes, and none goes where it would exceed the limit.

    ``coming`` are the next batch's rows with the keys of each of ``servers``; the rest is as in :func:`place`.

    One row is to come, with a key of server 1. The first key has no other affinity; the second has, at home.

    >>> servers, coming = np.array([[0, 1], [0, 1]], np.int32), np.array([[0, 1], [0, 1]], np.float32)
    >>> rows = coming + np.array([[0, 0], [3, 0]], np.float32)
    >>> room, keys, homes = np.full(2, 10.0), np.array([7, 8], np.uint64), np.zeros(2, np.int32)
    >>> place_for_next(servers, coming, rows, np.ones(2), np.zeros(2), room, keys, homes, cost=0.5).tolist()
    [1, 0]
    """
    order = np.lexsort((hashes, -coming.max(axis=1, initial=0.0)))
    out = present.astype(np.int32)
    start = load.astype(np.float64)
    _place_for_next(servers, coming, rows, weight, start, limit, order, present, cost, stay, out)
    return out


@subroutine
def _best(servers, rows, load, limit, weight, v, home, bar, chance, cost):  # type: ignore[no-untyped-def]
    """Return the server with room that shares most rows with a key, but for its home; −1 if none is above ``bar``."""
    best = np.int64(-1)
    most = 0.0
    for k in range(servers.shape[1]):
        s, shared = np.int64(servers[v, k]), np.float64(rows[v, k])
        if s < 0 or s == home or shared <= 0 or load[s] + weight[v] > limit[s]:
            continue
        if bar >= 0 and shared <= bar + max(cost, chance * np.sqrt(shared + bar)):
            continue
        if best < 0 or shared > most or (shared == most and load[s] / limit[s] < load[best] / limit[best]):
            best = s
            most = shared
    return best


@subroutine
def _nearest(servers, rows, load, limit, weight, v, near):  # type: ignore[no-untyped-def]
    """Return the server with room that is nearest to those a key shares rows with, −1 if none is near."""
    best = -1
    closest = 0.0
    for s in range(len(near)):
        if load[s] + weight[v] > limit[s]:
            continue
        close = 0.0
        for k in range(servers.shape[1]):
            if servers[v, k] >= 0:
                close += rows[v, k] * near[servers[v, k], s]
        roomier = best >= 0 and load[s] / limit[s] < load[best] / limit[best]
        if close > closest or (close == closest and roomier):
            best = s
            closest = close
    return best


@compiled(
    *("int32[,]", "float32[,]", "float64[]", "out float64[]", "float64[]", "int64[]", "float64[,]"),
    *("int32[]", "bool[]", "float64", "out int32[]"),
)
def _place(  # type: ignore[no-untyped-def]
    servers, rows, weight, load, limit, order, near, present, settled, cost, out
):
    for v in order:
        home = np.int64(present[v])
        own = -1.0 if home < 0 else 0.0  # rows shared with its home; without one there is no bar
        some = home >= 0
        for k in range(servers.shape[1]):
            if servers[v, k] >= 0 and rows[v, k] > 0:
                some = True  # type: ignore[assignment]
                if servers[v, k] == home:
                    own = np.float64(rows[v, k])
        if not some:
            continue
        chance = CHANCE_SETTLED if settled[v] else CHANCE
        price = cost if settled[v] else 0.0
        best = _best(servers, rows, load, limit, weight, v, home, own, chance, price)
        if best < 0 and home >= 0 and (settled[v] or load[home] + weight[v] <= limit[home]):
            best = home
        if best < 0 and home >= 0:
            best = _best(servers, rows, load, limit, weight, v, home, -1.0, 0.0, 0.0)
        if best < 0:
            best = _nearest(servers, rows, load, limit, weight, v, near)
        if best < 0:
            best = 0
            for s in range(1, len(load)):
                if load[s] / limit[s] < load[best] / limit[best]:
                    best = s
        out[v] = best
        load[best] += weight[v]


@compiled(
    *("int32[,]", "float32[,]", "float32[,]", "float64[]", "out float64[]", "float64[]", "int64[]"),
    *("int32[]", "float64", "float64", "out int32[]"),
)
def _place_for_next(  # type: ignore[no-untyped-def]
    servers, coming, rows, weight, load, limit, order, present, cost, stay, out
):
    for v in order:
        home = present[v]
        own = past = 0.0
        for k in range(servers.shape[1]):
            if home >= 0 and servers[v, k] == home:
                own, past = coming[v, k], rows[v, k]
        best = -1
        most = 0.0
        for k in range(servers.shape[1]):
            s = servers[v, k]
            if s < 0 or s == home or load[s] + weight[v] > limit[s]:
                continue
            price = cost if rows[v, k] >= past else 2 * cost
            if coming[v, k] > own + max(price, stay) and coming[v, k] > most:
                best, most = s, coming[v, k]
        if best >= 0:
            out[v] = best
            load[best] += weight[v]
            if home >= 0:
                load[home] -= weight[v]
