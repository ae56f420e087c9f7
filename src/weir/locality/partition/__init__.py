"""Partitioners of key graphs behind one interface: NumPy in, one server per vertex out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weir.errors import EngineError, did_you_mean
from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Parts, Terms
from weir.locality.partition.hierarchy import partition_hierarchy
from weir.locality.partition.multilevel import partition_multilevel
from weir.locality.partition.relabel import relabel
from weir.network.tree import Tree

METHODS = ("multilevel", "metis", "mtkahypar")


def partition(
    graph: KeyGraph, n: int, *, method: str = "multilevel", hierarchy: Tree | None = None, **terms: Any
) -> Parts:
    """Return the server, 0 … n−1, of each vertex of a key graph, by any of the partitioners.

    Parameters
    ----------
    method
        ``"multilevel"`` (ours, the default), ``"metis"`` (as in the paper), ``"mtkahypar"`` (optional).
    hierarchy
        Nested lists of servers, e.g. ``[[[0, 1], [2, 3]], [[4, 5]]]`` for racks of hosts of servers.
    terms
        Balance, present homes and so on: see :class:`~weir.locality.partition.base.Terms`.

    Examples
    --------
    >>> from weir.locality.counts import count_keys, count_pairs
    >>> a, b = np.array([1, 1, 2, 2], np.uint64), np.array([5, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> graph.locality(partition(graph, 2))
    1.0
    """
    asked = Terms(**terms)
    if method not in METHODS:
        raise EngineError(f"there is no partitioner {method!r}: {did_you_mean(method, METHODS)}")
    if hierarchy is not None:
        if method != "multilevel":
            raise EngineError(f"the partitioner {method!r} takes no hierarchy; use partitioner='multilevel'")
        return partition_hierarchy(graph, hierarchy, asked)
    start, bound = asked.homes(graph, n)
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    if method == "multilevel":
        return partition_multilevel(graph, n, asked)
    if method == "metis":
        from weir.locality.partition.metis import partition_metis

        parts = partition_metis(graph, n, asked)
    else:
        from weir.locality.partition.mtkahypar import partition_mtkahypar

        parts = partition_mtkahypar(graph, n, asked)
    if not (bound >= 0).any():
        return parts if asked.warm is None else relabel(parts, start, graph.weight, n)
    # the others have no fixed vertices: their parts are numbered after these, then refined around them
    tied = np.bincount(graph.tails(), weights=graph.edge_weight, minlength=len(graph)).astype(np.float64)
    warm = relabel(parts, bound, tied, n)
    return partition_multilevel(graph, n, replace(asked, warm=warm, stay_bonus=0.0, starts=1))


__all__ = ["METHODS", "Parts", "Tree", "partition", "relabel"]
