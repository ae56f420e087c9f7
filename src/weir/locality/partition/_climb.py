"""Hill climbing on the coarsest graph (Fiduccia–Mattheyses): small enough to try moves that cost at first."""

from __future__ import annotations

import numpy as np

from weir.compiled import compiled, subroutine
from weir.locality.partition._refine import GRAPH, TINY, Floats, Graph, Held, Parts, _fits, loads


def climb(
    graph: Graph, held: Held, limit: Floats, slack: float, bad_moves: int, passes: int, parts: Parts
) -> None:
    """Improve ``parts`` by Fiduccia–Mattheyses over all servers: the best move first, even one that costs.

    Each vertex moves once per pass; limits may be exceeded by ``slack`` on the way; the best assignment met is
    kept, a row over the limit counting as a row cut.
    """
    (_, n), m = limit.shape, len(parts)
    load, talk = loads(graph[3], parts, n), np.zeros((m, n))
    scratch = np.empty((5, m), np.int64)
    _climb(
        *graph, held, limit, limit * (1 + slack), bad_moves, passes, parts, load, talk, np.empty(m), scratch
    )


@subroutine
def _target(talk, load, limit, weight, parts, v, n, k):  # type: ignore[no-untyped-def]
    """Return the best other server with room for a vertex, −1 if there is none."""
    to = -1
    for p in range(n):
        if p != parts[v] and (to < 0 or talk[v, p] > talk[v, to]) and _fits(load, limit, weight, v, p, k):
            to = p
    return to


@subroutine
def _put(heap, place, size, cost, v):  # type: ignore[no-untyped-def]
    """Put vertex ``v`` where its cost belongs in a heap that holds it already, the cheapest first."""
    i = place[v]
    while i > 0:
        up = (i - 1) >> 1
        u = heap[up]
        if cost[u] < cost[v] or (cost[u] == cost[v] and u < v):
            break
        heap[i] = u
        place[u] = i
        i = up
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        u = heap[down]
        if down + 1 < size:
            w = heap[down + 1]
            if cost[w] < cost[u] or (cost[w] == cost[u] and w < u):
                down += 1
                u = w
        if cost[v] < cost[u] or (cost[v] == cost[u] and v < u):
            break
        heap[i] = u
        place[u] = i
        i = down
    heap[i] = v
    place[v] = i


@subroutine
def _look(v, talk, load, limit, weight, parts, heap, place, size, cost, target):  # type: ignore[no-untyped-def]
    """Find the best move of a vertex that is in the heap, and put it in its place there; one without any comes last."""
    k, n = limit.shape
    target[v] = _target(talk, load, limit, weight, parts, v, n, k)
    cost[v] = np.inf if target[v] < 0 else talk[v, parts[v]] - talk[v, target[v]]
    _put(heap, place, size, cost, v)


@compiled(
    *GRAPH,
    *("bool[]", "float64[,]", "float64[,]", "int64", "int64", "out int32[]"),
    *("out float64[,]", "out float64[,]", "out float64[]", "out int64[,]"),
)
def _climb(  # type: ignore[no-untyped-def]
    indptr,
    indices,
    edge,
    weight,
    home,
    bonus,
    held,
    limit,
    loose,
    bad_moves,
    passes,
    parts,
    load,
    talk,
    cost,
    scratch,
):
    """Do what :func:`climb` says; ``loose`` are the limits with their slack."""
    k, n = limit.shape
    m = len(parts)
    heap, place, target, trail_v, trail_p = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for v in range(m):
        for e in range(indptr[v], indptr[v + 1]):
            talk[v, parts[indices[e]]] += edge[e]
        if home[v] >= 0:
            talk[v, home[v]] += bonus[v]
    for _ in range(passes):
        size = np.int64(0)
        for v in range(m):
            place[v] = -1  # not in the heap: it may not move
            if not held[v]:
                heap[size] = v
                place[v] = size
                size += 1
                _look(v, talk, load, loose, weight, parts, heap, place, size, cost, target)
        excess = 0.0
        for o in range(k):
            for s in range(n):
                excess += max(0.0, load[o, s] - limit[o, s])
        gain = 0.0
        first = -excess
        best = first
        moves = 0
        kept = 0
        while size > 0 and moves - kept < bad_moves:
            v = heap[0]
            own, to = parts[v], target[v]
            if to < 0:
                break
            if not _fits(load, loose, weight, v, to, k):
                _look(v, talk, load, loose, weight, parts, heap, place, size, cost, target)
                continue
            size -= 1
            place[v] = -1
            if size > 0:
                heap[0] = heap[size]
                place[heap[0]] = 0
                _put(heap, place, size, cost, heap[0])
            for o in range(k):
                if weight[v, o] > 0:
                    excess -= max(0.0, load[o, own] - limit[o, own])
                    excess -= max(0.0, load[o, to] - limit[o, to])
                    load[o, own] -= weight[v, o]
                    load[o, to] += weight[v, o]
                    excess += max(0.0, load[o, own] - limit[o, own])
                    excess += max(0.0, load[o, to] - limit[o, to])
            gain -= cost[v]
            parts[v] = to
            trail_v[moves] = v
            trail_p[moves] = own
            moves += 1
            for e in range(indptr[v], indptr[v + 1]):
                u = np.int64(indices[e])
                talk[u, own] -= edge[e]
                talk[u, to] += edge[e]
                if place[u] >= 0:
                    _look(u, talk, load, loose, weight, parts, heap, place, size, cost, target)
            if gain - excess > best + TINY:
                best = gain - excess
                kept = moves
        for i in range(moves - 1, kept - 1, -1):
            v = trail_v[i]
            here = parts[v]
            back = trail_p[i]
            for o in range(k):
                load[o, here] -= weight[v, o]
                load[o, back] += weight[v, o]
            parts[v] = back
            for e in range(indptr[v], indptr[v + 1]):
                talk[indices[e], here] -= edge[e]
                talk[indices[e], back] += edge[e]
        if best <= first + TINY:
            break
