"""Hill climbing on the coarsest graph (Fiduccia–Mattheyses): small enough to try moves that cost at first."""

from __future__ import annotations

import heapq

import numba as nb
import numpy as np

from weir.locality.partition._refine import TINY, _fits, loads


@nb.njit(inline="always")
def _target(talk, load, limit, weight, parts, v, n, k):  # type: ignore[no-untyped-def]
    """Return the best other server with room for a vertex, −1 if there is none."""
    to = -1
    for p in range(n):
        if p != parts[v] and (to < 0 or talk[v, p] > talk[v, to]) and _fits(load, limit, weight, v, p, k):
            to = p
    return to


@nb.njit(cache=True, nogil=True)
def climb(indptr, indices, edge, weight, home, bonus, held, limit, slack, patience, passes, parts):  # type: ignore[no-untyped-def]
    """Improve ``parts`` by Fiduccia–Mattheyses over all servers: the best move first, even one that costs.

    Each vertex moves once per pass; limits may be exceeded by ``slack`` on the way; the best assignment met is
    kept, a row over the limit counting as a row cut.
    """
    k, n = limit.shape
    m = len(parts)
    loose = limit * (1 + slack)
    talk = np.zeros((m, n))
    for v in range(m):
        for e in range(indptr[v], indptr[v + 1]):
            talk[v, parts[indices[e]]] += edge[e]
        if home[v] >= 0:
            talk[v, home[v]] += bonus[v]
    load = loads(weight, parts, n)
    for _ in range(passes):
        stamp = np.zeros(m, np.int64)
        locked = held.copy()
        heap = [(np.inf, np.int64(0), np.int64(0), np.int64(0))]
        heap.clear()
        for v in range(m):
            if not locked[v]:
                own = parts[v]
                to = _target(talk, load, loose, weight, parts, v, n, k)
                if to >= 0:
                    heapq.heappush(heap, (talk[v, own] - talk[v, to], np.int64(v), np.int64(to), np.int64(0)))
        excess = np.maximum(load - limit, 0.0).sum()
        gain = 0.0
        first = -excess
        best = first
        trail_v = np.empty(m, np.int64)
        trail_p = np.empty(m, np.int64)
        moves = 0
        kept = 0
        while len(heap) > 0 and moves - kept < patience:
            cost, v, to, at = heapq.heappop(heap)  # type: ignore[assignment]
            if locked[v] or at != stamp[v]:
                continue
            own = parts[v]
            if not _fits(load, loose, weight, v, to, k):
                to = _target(talk, load, loose, weight, parts, v, n, k)
                if to >= 0:
                    heapq.heappush(heap, (talk[v, own] - talk[v, to], np.int64(v), np.int64(to), at))
                continue
            for o in range(k):
                if weight[v, o] > 0:
                    excess -= max(0.0, load[o, own] - limit[o, own])
                    excess -= max(0.0, load[o, to] - limit[o, to])
                    load[o, own] -= weight[v, o]
                    load[o, to] += weight[v, o]
                    excess += max(0.0, load[o, own] - limit[o, own])
                    excess += max(0.0, load[o, to] - limit[o, to])
            gain -= cost
            parts[v] = to
            locked[v] = True
            trail_v[moves] = v
            trail_p[moves] = own
            moves += 1
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                talk[u, own] -= edge[e]
                talk[u, to] += edge[e]
                if not locked[u]:
                    here = parts[u]
                    go = _target(talk, load, loose, weight, parts, u, n, k)
                    stamp[u] += 1
                    if go >= 0:
                        heapq.heappush(
                            heap, (talk[u, here] - talk[u, go], np.int64(u), np.int64(go), stamp[u])
                        )
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
