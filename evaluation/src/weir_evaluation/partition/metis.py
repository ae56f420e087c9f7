"""METIS, the partitioner of the locality-aware routing paper, with the hub rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pymetis

from weir.locality.graph import KeyGraph
from weir.locality.partition import Parts, Terms
from weir.locality.partition.base import check_shares
from weir_evaluation.partition.base import OtherPartitioner, grid_edges, grid_weights


@dataclass(frozen=True)
class Metis(OtherPartitioner):
    """Partition a key graph with METIS.

    METIS balances one weight per vertex (:func:`~weir_evaluation.partition.base.grid_weights`); nothing keeps the
    operators balanced one by one. Hubs are clipped first, or METIS overloads every part. It can't start from a
    present assignment or hold vertices.

    References
    ----------
    G. Karypis, V. Kumar. *A fast and high quality multilevel scheme for partitioning irregular graphs.* SIAM
    J. Sci. Comput. 20(1), 1998.

    Examples
    --------
    >>> from weir.locality import count_keys, count_pairs, partition
    >>> a, b = np.array([1, 1, 2, 2, 3, 4], np.uint64), np.array([5, 5, 6, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> graph.locality(partition(graph, 2, partitioner=Metis()))
    1.0
    """

    def cut(self, graph: KeyGraph, n: int, terms: Terms) -> Parts:
        _, parts = pymetis.part_graph(
            n,
            adjacency=pymetis.CSRAdjacency(graph.indptr, graph.indices),
            vweights=grid_weights(graph, n, terms),
            eweights=grid_edges(graph.edge_weight, float(graph.edge_weight.sum())),
            tpwgts=None if terms.shares is None else check_shares(n, terms.shares).tolist(),
            options=pymetis.Options(seed=terms.seed, ufactor=max(1, round((terms.alpha - 1) * 1000))),
            recursive=False,
        )
        return np.asarray(parts, np.int32)
