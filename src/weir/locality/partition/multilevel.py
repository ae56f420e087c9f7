"""Our own multilevel partitioner: balances every operator by itself and can start from a present assignment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition._cycle import Level, bottom_level, by_weight, cycle, exchange, score
from weir.locality.partition._refine import grow
from weir.locality.partition.base import Limits, Parts, Terms
from weir.network.locator import Tree, check_tree, depth_of, servers_of

_EFFORT = 1_200_000  # edges, both ways, that all starts together may look at, a vertex counting as eight
_CLUSTERS = (1.5, 4.0, 10.0)
_WORTH_EXCHANGING = (
    0.05  # part of the cut that looser limits must bring; 0.17 to 0.36 where exchange has helped
)


def partition_multilevel(
    graph: KeyGraph,
    n: int,
    terms: Terms = Terms(),  # noqa: B008 - it is frozen
    limits: Limits | None = None,
) -> Parts:
    """Partition a key graph by label propagation on a hierarchy of ever coarser graphs.

    *Down*: keys that are seen together most are merged into clusters of bounded size, again and again, until
    few are left. *Bottom*: clusters are placed greedily, several times, and the best result is taken. *Up*:
    clusters are opened level by level, and at each level keys move to the server they share most rows with, as long
    as no operator's limit is exceeded there. Weights are vectors with one entry per operator, so a chain of *k*
    operators is balanced *k* times over, not in sum. Hubs are clipped, see
    :meth:`~weir.locality.partition.base.Limits.of`.

    With ``warm``, the present assignment takes the place of the bottom: only keys of one server are merged on
    the way down, and a key, or a whole cluster, that would leave its server must gain more than its bonus. In the
    end full servers exchange keys, see :func:`~weir.locality.partition._cycle.exchange`.

    With ``limits``, weights and limits worked out already, the ``alpha`` and ``shares`` of the terms are not looked at.

    Notes
    -----
    With ``starts``, small graphs are partitioned several times, with coarser and finer clusters. Two results are
    combined by going down once more with only those keys merged that both keep together.

    References
    ----------
    H. Meyerhenke, P. Sanders, C. Schulz. *Partitioning complex networks via size-constrained clustering.*
    SEA 2014.

    Examples
    --------
    >>> from weir.locality.counts import count_keys, count_pairs
    >>> a, b = np.array([1, 1, 2, 2, 3, 4], np.uint64), np.array([5, 5, 6, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> parts = partition_multilevel(graph, 2, Terms(seed=1))
    >>> graph.locality(parts), graph.overload(parts, 2).tolist()
    (1.0, [1.0, 1.0])
    """
    limits = Limits.of(graph, n, terms.alpha, terms.shares) if limits is None else limits
    seed, (start, bound) = terms.seed, terms.homes(graph, n)
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    bottom = bottom_level(graph, limits, start, terms.stay_bonus, bound >= 0)
    parts = np.where(bound >= 0, bound, start).astype(np.int32)
    if (start >= 0).any():
        order = by_weight(bottom.weight, limits.limit, seed, 0.0)
        grow(bottom.graph, limits.limit, order, parts)
        parts = cycle(bottom, limits.limit, parts, seed, warm=True, clusters=4.0)
        parts = exchange(bottom, limits.limit, parts, seed)
    else:
        parts = _best_of(bottom, limits.limit, parts, seed, terms.starts)
    return parts


def _best_of(bottom: Level, limit: NDArray[np.float64], given: Parts, seed: int, starts: int) -> Parts:
    """Partition several times where the graph is small enough, and combine the best result with the others."""
    thorough = starts > 1
    starts = int(np.clip(_EFFORT // bottom.effort, 1, starts))
    results = []
    for i in range(starts):
        clusters = _CLUSTERS[i % len(_CLUSTERS)]
        parts = cycle(bottom, limit, given.copy(), seed + 104729 * i, clusters=clusters)
        results.append((score(bottom, limit, parts), i, parts))
    results.sort(key=lambda entry: entry[:2])
    value, _, best = results[0]
    for _, i, other in results[1:]:
        # keys that two good partitions both keep together move as one: the child is no worse than its parents
        clusters = _CLUSTERS[i % len(_CLUSTERS)]
        child = cycle(bottom, limit, best.copy(), seed + i, warm=True, other=other, clusters=clusters)
        if (worth := score(bottom, limit, child)) < value:
            value, best = worth, child
    return exchange(bottom, limit, best, seed, _WORTH_EXCHANGING) if thorough else best


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
