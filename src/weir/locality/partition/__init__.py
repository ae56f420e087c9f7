"""Partitioners of key graphs behind one interface: NumPy in, one server per vertex out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.errors import EngineError, did_you_mean
from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Parts
from weir.locality.partition.hierarchy import partition_hierarchy
from weir.locality.partition.multilevel import partition_multilevel, repair
from weir.locality.partition.relabel import relabel
from weir.network.tree import Tree

METHODS = ("multilevel", "metis", "mtkahypar")


def partition(
    graph: KeyGraph,
    n: int,
    *,
    method: str = "multilevel",
    alpha: float = 1.03,
    seed: int = 0,
    warm: Parts | None = None,
    stay_bonus: float = 0.0,
    shares: NDArray[np.float64] | None = None,
    fixed: Parts | None = None,
    racks: Tree | None = None,
    starts: int = 1,
) -> Parts:
    """Return the server, 0 … n−1, of each vertex of a key graph, by any of the partitioners.

    Parameters
    ----------
    method
        ``"multilevel"`` (ours, the default), ``"metis"`` (as in the paper), ``"mtkahypar"`` (optional).
    alpha
        A server may hold this many times its share of each operator.
    warm, stay_bonus
        Where keys live now (−1: nowhere yet), and what staying there is worth. Only ``"multilevel"`` starts
        from there; the others use it to name their parts.
    shares
        Relative capacity of each server.
    fixed
        Servers of the vertices that may not be placed freely, −1 for all others.
    racks
        Nested lists of servers, e.g. ``[[[0, 1], [2, 3]], [[4, 5]]]`` for racks of hosts of servers.
    starts
        How often ``"multilevel"`` may start anew on a small graph, to combine the best results.

    Examples
    --------
    >>> from weir.locality.counts import count_keys, count_pairs
    >>> a, b = np.array([1, 1, 2, 2], np.uint64), np.array([5, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> graph.locality(partition(graph, 2))
    1.0
    """
    terms: dict[str, Any] = {
        "alpha": alpha,
        "seed": seed,
        "warm": warm,
        "stay_bonus": stay_bonus,
        "shares": shares,
        "fixed": fixed,
    }
    if method not in METHODS:
        raise EngineError(f"there is no partitioner {method!r}: {did_you_mean(method, METHODS)}")
    if racks is not None:
        if method != "multilevel":
            raise EngineError(
                f"the partitioner {method!r} knows no racks: use partitioner='multilevel', or no racks"
            )
        return partition_hierarchy(graph, racks, **terms)
    if method != "multilevel" and fixed is not None and (np.asarray(fixed) >= 0).any():
        # the others have no fixed vertices: their parts are numbered after these, then refined around them
        parts = partition(graph, n, method=method, alpha=alpha, seed=seed, shares=shares)
        tail = np.repeat(np.arange(len(graph)), np.diff(graph.indptr))
        tied = np.bincount(tail, weights=graph.edge_weight, minlength=len(graph)).astype(np.float64)
        terms["warm"], terms["stay_bonus"] = relabel(parts, np.asarray(fixed, np.int32), tied, n), 0.0
        return partition_multilevel(graph, n, **terms)
    if method == "metis":
        from weir.locality.partition.metis import partition_metis

        return partition_metis(graph, n, **terms)
    if method == "mtkahypar":
        from weir.locality.partition.mtkahypar import partition_mtkahypar

        return partition_mtkahypar(graph, n, **terms)
    return partition_multilevel(graph, n, starts=starts, **terms)


__all__ = ["METHODS", "Parts", "Tree", "partition", "relabel", "repair"]
