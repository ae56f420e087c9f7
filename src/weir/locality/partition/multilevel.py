"""Our own multilevel partitioner: balances every operator by itself and can start from a present assignment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition._cycle import Level, bottom_level, by_weight, cycle, exchange, score
from weir.locality.partition._refine import grow
from weir.locality.partition.base import Limits, Parts, Terms

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
