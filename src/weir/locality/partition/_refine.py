"""Refinement: compiled loops that place, move and balance vertices.

A level of the hierarchy is a graph in compressed rows whose vertices carry one weight per operator
(``weight[v, o]``). ``limit[o, s]`` is what server ``s`` may hold of operator ``o``. ``home`` and ``bonus``
are where a vertex lives now and what staying there is worth, in rows; ``held`` vertices never move.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, subroutine

Floats = NDArray[np.float64]
Parts = NDArray[np.int32]
Held = NDArray[np.bool_]
Graph = tuple[NDArray[np.int64], NDArray[np.int32], Floats, Floats, Parts, Floats]  # from `indptr` to `bonus`
TINY = 1e-9
GRAPH = "int64[]", "int32[]", "float64[]", "float64[,]", "int32[]", "float64[]"  # its types


@subroutine
def _fits(load, limit, weight, v, p, k):  # type: ignore[no-untyped-def]
    ok = True
    for o in range(k):
        if weight[v, o] > 0 and load[o, p] + weight[v, o] > limit[o, p] * (1 + TINY):
            ok = False
            break
    return ok


@subroutine
def _fullness(load, limit, weight, v, p, k):  # type: ignore[no-untyped-def]
    most = 0.0
    for o in range(k):
        if weight[v, o] > 0:
            most = max(most, load[o, p] / limit[o, p])
    return most


@subroutine
def _count_ties(indptr, indices, edge, home, bonus, parts, v, talk):  # type: ignore[no-untyped-def]
    for p in range(len(talk)):
        talk[p] = 0.0
    for e in range(indptr[v], indptr[v + 1]):
        p = parts[indices[e]]
        if p >= 0:
            talk[p] += edge[e]
    if home[v] >= 0:
        talk[home[v]] += bonus[v]


def loads(weight: Floats, parts: Parts, n: int) -> Floats:
    """Return what each server holds of each operator; vertices in no part don't count."""
    if (parts < 0).any():
        weight, parts = weight[parts >= 0], parts[parts >= 0]
    out = np.zeros((weight.shape[1], n))
    for o in range(weight.shape[1]):
        out[o] = np.bincount(parts, weight[:, o], n)
    return out


def cut_weight(indptr: NDArray[np.int64], indices: NDArray[np.int32], edge: Floats, parts: Parts) -> float:
    """Return the weight of the edges between different parts."""
    own = np.repeat(parts, np.diff(indptr))
    return float(edge[parts[indices] != own].sum()) / 2


def grow(graph: Graph, limit: Floats, order: NDArray[np.int64], parts: Parts) -> None:
    """Place every vertex whose part is −1, in the order given, on the best-connected server that has room.

    Where no server has room, the one that ends up least overfull is taken.
    """
    n = limit.shape[1]
    _grow(*graph, limit, order, parts, loads(graph[3], parts, n), np.zeros(n))


def refine(
    graph: Graph, held: Held, limit: Floats, order: NDArray[np.int64], rounds: int, parts: Parts
) -> float:
    """Move vertices to the server they share most rows with, while there is room and something to gain.

    After the first round only neighbours of moved vertices are looked at again. Returns the total gain.
    """
    n = limit.shape[1]
    load, talk = loads(graph[3], parts, n), np.zeros(n)
    met = np.empty(n + 1, np.int64)  # servers with ties to a vertex: few of many, so only they are looked at
    active = np.ones(len(parts), np.bool_)
    return float(_refine(*graph, held, limit, order, rounds, parts, load, talk, met, active))


def rebalance(graph: Graph, held: Held, limit: Floats, parts: Parts) -> int:
    """Move vertices off servers above their limits, the cheapest per row first; return how many moved."""
    n = limit.shape[1]
    load, talk, most = loads(graph[3], parts, n), np.zeros(n), limit * (1 + TINY)
    moves = 0
    for _ in range(3):
        if (load <= most).all():
            break
        # who comes to a server meanwhile fits there, and need not leave again
        members = np.argsort(parts, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=n))])
        for o, s in np.argwhere(load > most):
            here = members[first[s] : first[s + 1]]
            cost = np.empty(len(here))
            _leaving_costs(*graph, held, limit, here, o, s, parts, load, talk, cost)
            order = np.argsort(cost, kind="stable")
            leaving = here[order[: np.isfinite(cost).sum()]]
            moves += _move_off(*graph, limit, leaving, o, s, parts, load, talk)
    return moves


@compiled(*GRAPH, "float64[,]", "int64[]", "out int32[]", "out float64[,]", "out float64[]")
def _grow(  # type: ignore[no-untyped-def]
    indptr, indices, edge, weight, home, bonus, limit, order, parts, load, talk
):
    k, n = limit.shape
    for v in order:
        if parts[v] >= 0:
            continue
        _count_ties(indptr, indices, edge, home, bonus, parts, v, talk)
        best = np.int64(-1)
        for p in range(n):
            if not _fits(load, limit, weight, v, p, k):
                continue
            better = best < 0 or talk[p] > talk[best]
            if not better and talk[p] == talk[best]:
                there = _fullness(load, limit, weight, v, best, k)
                better = _fullness(load, limit, weight, v, p, k) < there
            if better:
                best = p  # type: ignore[assignment]
        if best < 0:
            least = np.inf
            for p in range(n):
                over = 0.0
                for o in range(k):
                    if weight[v, o] > 0:
                        over = max(over, (load[o, p] + weight[v, o]) / limit[o, p])
                if over < least:
                    least = over
                    best = p  # type: ignore[assignment]
        parts[v] = best
        for o in range(k):
            load[o, best] += weight[v, o]


@compiled(
    *GRAPH,
    *("bool[]", "float64[,]", "int64[]", "int64", "out int32[]"),
    *("out float64[,]", "out float64[]", "out int64[]", "out bool[]"),
)
def _refine(  # type: ignore[no-untyped-def]
    indptr, indices, edge, weight, home, bonus, held, limit, order, rounds, parts, load, talk, met, active
):
    k = len(limit)
    total = 0.0
    for _ in range(rounds):
        gained = 0.0
        moved = 0
        for v in order:
            if not active[v] or held[v]:
                continue
            active[v] = False
            own = np.int64(parts[v])
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


@compiled(
    *GRAPH,
    *("bool[]", "float64[,]", "int64[]", "int64", "int64", "out int32[]", "out float64[,]"),
    *("out float64[]", "out float64[]"),
)
def _leaving_costs(  # type: ignore[no-untyped-def]
    indptr, indices, edge, weight, home, bonus, held, limit, members, o, s, parts, load, talk, cost
):
    """Note what it costs, per row of operator ``o``, to move each member off server ``s``; infinity if it can't."""
    k, n = limit.shape
    for i in range(len(members)):
        v = members[i]
        cost[i] = np.inf
        if parts[v] != s or weight[v, o] <= 0 or held[v]:
            continue
        _count_ties(indptr, indices, edge, home, bonus, parts, v, talk)
        best = -1.0
        for p in range(n):
            if p != s and talk[p] > best and _fits(load, limit, weight, v, p, k):
                best = talk[p]
        if best >= 0:
            cost[i] = (talk[s] - best) / weight[v, o]


@compiled(
    *GRAPH,
    *("float64[,]", "int64[]", "int64", "int64"),
    *("out int32[]", "out float64[,]", "out float64[]"),
)
def _move_off(  # type: ignore[no-untyped-def]
    indptr, indices, edge, weight, home, bonus, limit, leaving, o, s, parts, load, talk
):
    """Move vertices off server ``s`` one by one until operator ``o`` is within its limit; return how many moved."""
    k, n = limit.shape
    moves = 0
    for v in leaving:
        if load[o, s] - limit[o, s] <= TINY * limit[o, s]:
            break
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
