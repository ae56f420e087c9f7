"""Coarsening: compiled loops that merge keys into clusters and build the graph of clusters.

The arrays of a level are those of :mod:`~weir.locality.partition._refine`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled

TINY = 1e-9


def cluster(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    edge: NDArray[np.float64],
    weight: NDArray[np.float64],
    degree: NDArray[np.float64],
    group: NDArray[np.int32],
    most: NDArray[np.float64],
    rounds: int,
    order: NDArray[np.int64],
    gamma: float,
) -> NDArray[np.int32]:
    """Cluster by size-constrained label propagation: vertices join the cluster they share most rows with.

    What chance explains (the product of both degrees, times ``gamma``) is taken off, as modularity does: a
    popular key occurs with all others, and merging by count alone would merge unrelated clusters around it.
    Vertices of different groups never share a cluster. Returns a label per vertex.
    """
    n = len(weight)
    label = np.arange(n, dtype=np.int32)
    chance = gamma / max(TINY, float(degree.sum())) * degree
    clusters = weight.copy(), degree.copy(), label
    scratch = np.zeros(n), np.empty(n, np.int32)
    _cluster(indptr, indices, edge, weight, degree, group, most, rounds, order, chance, *clusters, *scratch)
    return label


@compiled(
    *(
        "int64[]",
        "int32[]",
        "float64[]",
        "float64[,]",
        "float64[]",
        "int32[]",
        "float64[]",
        "int64",
        "int64[]",
    ),
    *("float64[]", "out float64[,]", "out float64[]", "out int32[]", "out float64[]", "out int32[]"),
)
def _cluster(  # type: ignore[no-untyped-def]
    indptr, indices, edge, weight, degree, group, most, rounds, order, chance, size, mass, label, talk, seen
):
    n, k = weight.shape
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
            strongest = talk[own] - chance[v] * (mass[own] - degree[v])
            for i in range(met):
                c = seen[i]
                if c != own:
                    bond = talk[c] - chance[v] * mass[c]
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


def contract(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    edge: NDArray[np.float64],
    weight: NDArray[np.float64],
    degree: NDArray[np.float64],
    group: NDArray[np.int32],
    home: NDArray[np.int32],
    bonus: NDArray[np.float64],
    label: NDArray[np.int32],
) -> tuple[NDArray[Any], ...]:
    """Return the arrays of the graph of clusters, without edges inside a cluster, and each vertex's cluster."""
    n = len(label)
    lead = np.empty(n, np.int64)
    lead[label[::-1]] = np.arange(n)[
        ::-1
    ]  # the first vertex of each cluster, which is the last that is written
    first = np.flatnonzero(lead[label] == np.arange(n))
    m = len(first)
    number = np.empty(n, np.int32)
    number[label[first]] = np.arange(m)
    coarse = number[label]
    weights = np.stack([np.bincount(coarse, weight[:, o], m) for o in range(weight.shape[1])], axis=1)
    begins = np.concatenate([[0], np.cumsum(np.bincount(coarse, minlength=m))])
    members, filled = np.empty(n, np.int64), begins[:-1].copy()
    ptr, place = np.zeros(m + 1, np.int64), np.full(m, -1, np.int64)
    ind, val = np.empty(len(indices), np.int32), np.empty(len(indices))
    end = _contract(indptr, indices, edge, coarse, begins, members, filled, place, ptr, ind, val)
    sums = np.bincount(coarse, degree, m), np.bincount(coarse, bonus, m)
    return (
        ptr,
        ind[:end].copy(),
        val[:end].copy(),
        weights,
        sums[0],
        group[first],
        home[first],
        sums[1],
        coarse,
    )


@compiled(
    *("int64[]", "int32[]", "float64[]", "int32[]", "int64[]"),
    *("out int64[]", "out int64[]", "out int64[]", "out int64[]", "out int32[]", "out float64[]"),
)
def _contract(  # type: ignore[no-untyped-def]
    indptr, indices, edge, coarse, begins, members, filled, place, ptr, ind, val
):
    """Add up the edges between clusters; return how many there are."""
    for v in range(len(coarse)):
        members[filled[coarse[v]]] = v
        filled[coarse[v]] += 1
    end = 0
    for c in range(len(begins) - 1):
        first = end
        for i in range(begins[c], begins[c + 1]):
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
    return end
