"""METIS, the partitioner of the locality-aware routing paper, with the hub rule."""

from __future__ import annotations

import numpy as np
import pymetis
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Parts, check_parts, check_shares, grid_edges, grid_weights, named


def partition_metis(
    graph: KeyGraph,
    n: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    warm: Parts | None = None,
    stay_bonus: float = 0.0,
    shares: NDArray[np.float64] | None = None,
    fixed: Parts | None = None,
) -> Parts:
    """Partition a key graph with METIS.

    METIS balances one weight per vertex (:func:`~weir.locality.partition.base.grid_weights`); nothing keeps the
    operators balanced one by one. Hubs are clipped first, or METIS overloads every part. It can't start from a
    present assignment or hold vertices: ``warm`` only serves to name the parts so that as little as possible moves,
    ``stay_bonus`` not at all, and ``fixed`` is applied afterwards.

    References
    ----------
    G. Karypis, V. Kumar. *A fast and high quality multilevel scheme for partitioning irregular graphs.* SIAM
    J. Sci. Comput. 20(1), 1998.

    Examples
    --------
    >>> from weir.locality.counts import count_keys, count_pairs
    >>> a, b = np.array([1, 1, 2, 2, 3, 4], np.uint64), np.array([5, 5, 6, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> graph.locality(partition_metis(graph, 2))
    1.0
    """
    start, bound = check_parts(graph, n, warm, "warm"), check_parts(graph, n, fixed, "fixed")
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    options = pymetis.Options(seed=seed, ufactor=max(1, round((alpha - 1) * 1000)))
    share = check_shares(n, shares)
    _, parts = pymetis.part_graph(
        n,
        adjacency=pymetis.CSRAdjacency(graph.indptr, graph.indices),
        vweights=grid_weights(graph, n, alpha, shares),
        eweights=grid_edges(graph.edge_weight, float(graph.edge_weight.sum())),
        tpwgts=None if shares is None else share.tolist(),
        options=options,
        recursive=False,
    )
    return named(graph, n, np.asarray(parts, np.int32), None if warm is None else start, bound)
