"""Refinement: compiled loops that place, move and balance vertices.

A level of the hierarchy is a graph in compressed rows whose vertices carry one weight per operator
(``weight[v, o]``). ``limit[o, s]`` is what server ``s`` may hold of operator ``o``. ``home`` and ``bonus``
are where a vertex lives now and what staying there is worth, in rows; ``held`` vertices never move.
"""

from __future__ import annotations

import numba as nb
import numpy as np

TINY = 1e-9


@nb.njit(inline="always")
def _fits(load, limit, weight, v, p, k):  # type: ignore[no-untyped-def]
    ok = True
    for o in range(k):
        if weight[v, o] > 0 and load[o, p] + weight[v, o] > limit[o, p] * (1 + TINY):
            ok = False
            break
    return ok


@nb.njit(inline="always")
def _fullness(load, limit, weight, v, p, k):  # type: ignore[no-untyped-def]
    most = 0.0
    for o in range(k):
        if weight[v, o] > 0:
            most = max(most, load[o, p] / limit[o, p])
    return most


@nb.njit(inline="always")
def _count_ties(indptr, indices, edge, home, bonus, parts, v, talk):  # type: ignore[no-untyped-def]
    talk[:] = 0.0
    for e in range(indptr[v], indptr[v + 1]):
        p = parts[indices[e]]
        if p >= 0:
            talk[p] += edge[e]
    if home[v] >= 0:
        talk[home[v]] += bonus[v]


@nb.njit(cache=True, nogil=True)
def loads(weight, parts, n):  # type: ignore[no-untyped-def]
    """Return what each server holds of each operator."""
    out = np.zeros((weight.shape[1], n))
    for v in range(len(weight)):
        for o in range(weight.shape[1]):
            out[o, parts[v]] += weight[v, o]
    return out


@nb.njit(cache=True, nogil=True)
def cut_weight(indptr, indices, edge, parts):  # type: ignore[no-untyped-def]
    """Return the weight of the edges between different parts."""
    cut = 0.0
    for v in range(len(parts)):
        for e in range(indptr[v], indptr[v + 1]):
            if parts[indices[e]] != parts[v]:
                cut += edge[e]
    return cut / 2


@nb.njit(cache=True, nogil=True)
def grow(indptr, indices, edge, weight, home, bonus, limit, order, parts):  # type: ignore[no-untyped-def]
    """Place every vertex whose part is −1, in the order given, on the best-connected server that has room.

    Where no server has room, the one that ends up least overfull is taken.
    """
    k, n = limit.shape
    load = np.zeros((k, n))
    for v in range(len(parts)):
        if parts[v] >= 0:
            for o in range(k):
                load[o, parts[v]] += weight[v, o]
    talk = np.zeros(n)
    for v in order:
        if parts[v] >= 0:
            continue
        _count_ties(indptr, indices, edge, home, bonus, parts, v, talk)
        best = -1
        for p in range(n):
            if not _fits(load, limit, weight, v, p, k):
                continue
            better = best < 0 or talk[p] > talk[best]
            if not better and talk[p] == talk[best]:
                there = _fullness(load, limit, weight, v, best, k)
                better = _fullness(load, limit, weight, v, p, k) < there
            if better:
                best = p
        if best < 0:
            least = np.inf
            for p in range(n):
                over = 0.0
                for o in range(k):
                    if weight[v, o] > 0:
                        over = max(over, (load[o, p] + weight[v, o]) / limit[o, p])
                if over < least:
                    least = over
                    best = p
        parts[v] = best
        for o in range(k):
            load[o, best] += weight[v, o]


@nb.njit(cache=True, nogil=True)
def refine(indptr, indices, edge, weight, home, bonus, held, limit, order, rounds, parts):  # type: ignore[no-untyped-def]
    """Move vertices to the server they share most rows with, while there is room and something to gain.

    After the first round only neighbours of moved vertices are looked at again. Returns the total gain.
    """
    k, n = limit.shape
    load = loads(weight, parts, n)
    talk = np.zeros(n)
    met = np.empty(n + 1, np.int64)  # servers with ties to a vertex: few of many, so only they are looked at
    active = np.ones(len(parts), np.bool_)
    total = 0.0
    for _ in range(rounds):
        gained = 0.0
        moved = 0
        for v in order:
            if not active[v] or held[v]:
                continue
            active[v] = False
            own = parts[v]
            count = 0
            for e in range(indptr[v], indptr[v + 1]):
                p = parts[indices[e]]
                if talk[p] == 0.0:
                    met[count] = p
                    count += edge[e] > 0
                talk[p] += edge[e]
            if home[v] >= 0 and bonus[v] > 0:
                if talk[home[v]] == 0.0:
                    met[count] = home[v]
                    count += 1
                talk[home[v]] += bonus[v]
            best = own
            for i in range(count):
                p = met[i]
                if p != own and talk[p] >= talk[best]:
                    if not _fits(load, limit, weight, v, p, k):
                        continue
                    if talk[p] > talk[best] + TINY:
                        best = p
                    else:
                        # an even exchange is worth it when it makes room where room is short
                        here = _fullness(load, limit, weight, v, best, k) - (0.05 if best == own else 0.0)
                        if _fullness(load, limit, weight, v, p, k) < here:
                            best = p
            gain = talk[best] - talk[own]
            for i in range(count):
                talk[met[i]] = 0.0
            if best != own:
                gained += gain
                for o in range(k):
                    load[o, own] -= weight[v, o]
                    load[o, best] += weight[v, o]
                parts[v] = best
                moved += 1
                for e in range(indptr[v], indptr[v + 1]):
                    active[indices[e]] = True
        total += gained
        if moved == 0:
            break
    return total


@nb.njit(cache=True, nogil=True)
def rebalance(indptr, indices, edge, weight, home, bonus, held, limit, parts):  # type: ignore[no-untyped-def]
    """Move vertices off servers above their limits, the cheapest per row first; return how many moved."""
    k, n = limit.shape
    load = loads(weight, parts, n)
    talk = np.zeros(n)
    moves = 0
    for _ in range(3):
        if (load <= limit * (1 + TINY)).all():
            break
        # who comes to a server meanwhile fits there, and need not leave again
        first = np.zeros(n + 1, np.int64)
        for v in range(len(parts)):
            first[parts[v] + 1] += 1
        first = np.cumsum(first)
        members = np.argsort(parts, kind="mergesort")
        for o in range(k):
            for s in range(n):
                if load[o, s] <= limit[o, s] * (1 + TINY):
                    continue
                here = np.empty(first[s + 1] - first[s], np.int64)
                cost = np.empty(first[s + 1] - first[s])
                m = 0
                for v in members[first[s] : first[s + 1]]:
                    if parts[v] != s or weight[v, o] <= 0 or held[v]:
                        continue
                    _count_ties(indptr, indices, edge, home, bonus, parts, v, talk)
                    best = -1.0
                    for p in range(n):
                        if p != s and talk[p] > best and _fits(load, limit, weight, v, p, k):
                            best = talk[p]
                    if best < 0:
                        continue
                    here[m] = v
                    cost[m] = (talk[s] - best) / weight[v, o]
                    m += 1
                for i in np.argsort(cost[:m], kind="mergesort"):
                    excess = load[o, s] - limit[o, s]
                    if excess <= TINY * limit[o, s]:
                        break
                    v = here[i]
                    _count_ties(indptr, indices, edge, home, bonus, parts, v, talk)
                    to = -1
                    for p in range(n):
                        if p != s and (to < 0 or talk[p] > talk[to]) and _fits(load, limit, weight, v, p, k):
                            to = p
                    if to < 0:
                        continue
                    for q in range(k):
                        load[q, s] -= weight[v, q]
                        load[q, to] += weight[v, q]
                    parts[v] = to
                    moves += 1
    return moves
