"""Partition of key graphs: NumPy in, one server per vertex out."""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.errors import EngineError
from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Partitioner, Parts, Terms, relabel
from weir.locality.partition.multilevel import partition_hierarchy, partition_multilevel
from weir.network.locator import Tree


def partition(
    graph: KeyGraph,
    n: int,
    *,
    partitioner: Partitioner | None = None,
    hierarchy: Tree | None = None,
    **terms: Any,
) -> Parts:
    """Return the server, 0 … n−1, of each vertex of a key graph.

    Parameters
    ----------
    partitioner
        Another one than ours, :func:`~weir.locality.partition.multilevel.partition_multilevel`.
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
    if hierarchy is not None:
        if partitioner is not None:
            raise EngineError(f"the partitioner {partitioner!r} takes no hierarchy; leave one of them out")
        return partition_hierarchy(graph, hierarchy, asked)
    asked.homes(graph, n)  # refuses what does not fit the graph
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    return (partitioner or partition_multilevel)(graph, n, asked)


__all__ = ["Partitioner", "Parts", "Terms", "Tree", "partition", "partition_multilevel", "relabel"]
