"""Coarsening: compiled loops that merge keys into clusters and build the graph of clusters.

The arrays of a level are those of :mod:`~weir.locality.partition._refine`.
"""

from __future__ import annotations

import numba as nb
import numpy as np

TINY = 1e-9


@nb.njit(cache=True, nogil=True)
def shuffled(n, seed):  # type: ignore[no-untyped-def]
    """Return the numbers below n in an order that the seed fixes."""
    out = np.arange(n)
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    for i in range(n - 1, 0, -1):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        j = np.int64((x >> np.uint64(11)) % np.uint64(i + 1))
        out[i], out[j] = out[j], out[i]
    return out


@nb.njit(cache=True, nogil=True)
def cluster(indptr, indices, edge, weight, degree, group, most, rounds, order, gamma):  # type: ignore[no-untyped-def]
    """Cluster by size-constrained label propagation: vertices join the cluster they share most rows with.

    What chance explains (the product of both degrees, times ``gamma``) is taken off, as modularity does: a
    popular key occurs with all others, and merging by count alone would merge unrelated clusters around it.
    Vertices of different groups never share a cluster. Returns a label per vertex.
    """
    n, k = weight.shape
    label = np.arange(n).astype(np.int32)
    size = weight.copy()
    mass = degree.copy()
    total = max(TINY, degree.sum())
    talk = np.zeros(n)
    seen = np.empty(n, np.int32)
    for _ in range(rounds):
        moved = 0
        for v in order:
            own = label[v]
            met = 0
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if group[u] != group[v]:
                    continue
                c = label[u]
                if talk[c] == 0.0:
                    seen[met] = c
                    met += 1
                talk[c] += edge[e]
            best = own
            chance = gamma * degree[v] / total
            strongest = talk[own] - chance * (mass[own] - degree[v])
            for i in range(met):
                c = seen[i]
                if c != own:
                    bond = talk[c] - chance * mass[c]
                    if bond > strongest:
                        fits = True
                        for o in range(k):
                            if weight[v, o] > 0 and size[c, o] + weight[v, o] > most[o]:
                                fits = False
                                break
                        if fits:
                            best = c
                            strongest = bond
                talk[c] = 0.0
            talk[own] = 0.0
            if best != own:
                for o in range(k):
                    size[own, o] -= weight[v, o]
                    size[best, o] += weight[v, o]
                mass[own] -= degree[v]
                mass[best] += degree[v]
                label[v] = best
                moved += 1
        if moved * 50 < n:
            break
    return label


@nb.njit(cache=True, nogil=True)
def contract(indptr, indices, edge, weight, degree, group, home, bonus, label):  # type: ignore[no-untyped-def]
    """Return the arrays of the graph of clusters, without edges inside a cluster, and each vertex's cluster."""
    n, k = weight.shape
    fresh = np.full(n, -1, np.int32)
    coarse = np.empty(n, np.int32)
    m = 0
    for v in range(n):
        c = label[v]
        if fresh[c] < 0:
            fresh[c] = m
            m += 1
        coarse[v] = fresh[c]
    weights = np.zeros((m, k))
    degrees = np.zeros(m)
    groups = np.empty(m, np.int32)
    homes = np.empty(m, np.int32)
    bonuses = np.zeros(m)
    count = np.zeros(m + 1, np.int64)
    for v in range(n):
        c = coarse[v]
        for o in range(k):
            weights[c, o] += weight[v, o]
        degrees[c] += degree[v]
        groups[c] = group[v]
        homes[c] = home[v]
        bonuses[c] += bonus[v]
        count[c + 1] += 1
    for c in range(m):
        count[c + 1] += count[c]
    members = np.empty(n, np.int64)
    at = count[:-1].copy()
    for v in range(n):
        members[at[coarse[v]]] = v
        at[coarse[v]] += 1
    ptr = np.zeros(m + 1, np.int64)
    ind = np.empty(len(indices), np.int32)
    val = np.empty(len(indices), edge.dtype)
    place = np.full(m, -1, np.int64)
    end = 0
    for c in range(m):
        first = end
        for i in range(count[c], count[c + 1]):
            v = members[i]
            for e in range(indptr[v], indptr[v + 1]):
                d = coarse[indices[e]]
                if d == c:
                    continue
                if place[d] < first:
                    place[d] = end
                    ind[end] = d
                    val[end] = edge[e]
                    end += 1
                else:
                    val[place[d]] += edge[e]
        ptr[c + 1] = end
    return ptr, ind[:end].copy(), val[:end].copy(), weights, degrees, groups, homes, bonuses, coarse
