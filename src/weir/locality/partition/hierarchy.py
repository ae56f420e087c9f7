"""Partitioning over racks and hosts: keys that can't share a server share a host, or at least a rack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Limits, Parts, Terms
from weir.locality.partition.multilevel import partition_multilevel
from weir.network.locator import Tree, check_tree, depth_of, servers_of


def partition_hierarchy(graph: KeyGraph, tree: Tree, terms: Terms = Terms()) -> Parts:  # noqa: B008 - it is frozen
    """Partition down a hierarchy given as nested lists: over racks, within each over its hosts, and so on.

    Each cut is the cheapest at its level, so the most expensive links are relieved first. Limits add up: a
    rack may hold what its servers may hold, with a little of ``alpha`` used at each level, so that in the end
    every server keeps its bound for every operator. A hub counts as one full server all the way down.

    >>> from weir.locality.counts import count_keys, count_pairs
    >>> keys = np.arange(8, dtype=np.uint64)
    >>> a, b = np.repeat(keys, 10), np.repeat(keys, 10)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> parts = partition_hierarchy(graph, [[0, 1], [2, 3]])
    >>> graph.locality(parts), np.bincount(parts).tolist()
    (1.0, [4, 4, 4, 4])
    """
    n = len(servers_of(tree))
    check_tree(tree, n)
    whole = Limits.of(graph, n, terms.alpha, terms.shares)
    out = np.zeros(len(graph), np.int32)
    start, bound = terms.homes(graph, n)
    depth = max(1, depth_of(tree))

    def descend(place: Tree, members: NDArray[np.int64], level: int) -> None:
        if isinstance(place, int):
            out[members] = place
            return
        if len(place) == 1:
            descend(place[0], members, level)
            return
        branch_of = np.full(n + 1, -1, np.int32)  # the last entry stands for "no server"
        for b, branch in enumerate(place):
            branch_of[servers_of(branch)] = b
        keep = np.zeros(len(graph), np.bool_)
        keep[members] = True
        # the server limits already carry all of alpha: give each level its part of it
        spare = terms.alpha ** ((level + 1) / depth - 1)
        limit = np.stack([whole.limit[:, servers_of(b)].sum(axis=1) for b in place], axis=1) * spare
        here = Terms(
            seed=terms.seed + level,
            warm=None if terms.warm is None else branch_of[start[members]],
            stay_bonus=terms.stay_bonus,
            fixed=branch_of[bound[members]],
        )
        limits = Limits(whole.weight[members], limit)
        parts = partition_multilevel(graph.subgraph(keep), len(place), here, limits)
        for b, branch in enumerate(place):
            descend(branch, members[parts == b], level + 1)

    descend(tree, np.arange(len(graph)), 0)
    return out
