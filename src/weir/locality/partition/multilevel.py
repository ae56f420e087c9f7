"""Our own multilevel partitioner: every operator balanced for itself, and it can start from what there is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition._climb import climb
from weir.locality.partition._coarsen import cluster, contract, shuffled
from weir.locality.partition._refine import cut_weight, grow, loads, rebalance, refine
from weir.locality.partition.base import Limits, Parts, check_parts

_CLUSTERS = 1.5  # a server's limit holds this many of the largest clusters
_EFFORT = 1_000_000  # edges that the attempts at the bottom may look at in all
_CLIMBABLE = 5_000  # vertices of a bottom that hill climbing can afford


@dataclass
class _Level:
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    edge: NDArray[np.float64]
    weight: NDArray[np.float64]
    degree: NDArray[np.float64]
    group: NDArray[np.int32]
    home: NDArray[np.int32]
    bonus: NDArray[np.float64]
    held: NDArray[np.bool_]  # these never move

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def graph(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        return self.indptr, self.indices, self.edge, self.weight


def partition_multilevel(
    graph: KeyGraph,
    n: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    warm: Parts | None = None,
    stay_bonus: float = 0.0,
    shares: NDArray[np.float64] | None = None,
    fixed: Parts | None = None,
    cycles: int = 1,
    limits: Limits | None = None,
) -> Parts:
    """Partitions a key graph by label propagation on a hierarchy of ever coarser graphs.

    *Down*: keys that talk to each other most are merged into clusters of bounded size, again and again, until
    few are left. *Bottom*: clusters are placed greedily, several times, and the best result is taken. *Up*:
    clusters are opened level by level, and at each level keys move to where they talk most, as long as no
    operator's limit is broken there. Weights are vectors with one entry per operator, so a chain of *k*
    operators is balanced *k* times over, not in sum. Hubs are clipped, see
    :meth:`~weir.locality.partition.base.Limits.of`.

    With ``warm``, the present assignment takes the place of the bottom: only keys of one server are merged on
    the way down, and a key, or a whole cluster, that would leave its server must gain more than its bonus.

    Parameters
    ----------
    graph, n
        What to partition, over how many servers.
    alpha
        A server may hold this many times its share of each operator.
    seed
        The same seed gives the same answer.
    warm
        The present server per vertex, −1 where there is none.
    stay_bonus
        What staying is worth to a key, in rows per row of the operator's average key. Zero moves whenever it
        gains at all.
    shares
        Relative capacity of each server; equal by default.
    fixed
        Vertices that must be on a given server, −1 for all others.
    cycles
        How often the way down and up is repeated from the result so far.
    limits
        Weights and limits worked out already; ``alpha`` and ``shares`` are then not looked at.

    Returns
    -------
    The server of each vertex.

    References
    ----------
    H. Meyerhenke, P. Sanders, C. Schulz. *Partitioning complex networks via size-constrained clustering.*
    SEA 2014.

    Examples
    --------
    >>> from weir.locality.pairs import count_keys, count_pairs
    >>> a, b = np.array([1, 1, 2, 2, 3, 4], np.uint64), np.array([5, 5, 6, 6, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> parts = partition_multilevel(graph, 2, seed=1)
    >>> graph.locality(parts), graph.overload(parts, 2).tolist()
    (1.0, [1.0, 1.0])
    """
    limits = Limits.of(graph, n, alpha, shares) if limits is None else limits
    start, bound = check_parts(graph, n, warm, "warm"), check_parts(graph, n, fixed, "fixed")
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    bottom = _bottom(graph, limits, start, stay_bonus, bound >= 0)
    parts = np.where(bound >= 0, bound, start).astype(np.int32)
    known = warm is not None and bool((start >= 0).any())
    if known:
        order = _by_weight(bottom.weight, limits.limit, seed, 0.0)
        grow(*bottom.graph, bottom.home, bottom.bonus, limits.limit, order, parts)
        _settle(bottom, limits.limit, parts, seed, rounds=2)
    for cycle in range(max(1, cycles)):
        parts = _cycle(bottom, limits.limit, parts, known or cycle > 0, seed + 7919 * cycle)
    return parts


def repair(
    graph: KeyGraph,
    n: int,
    parts: Parts,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    shares: NDArray[np.float64] | None = None,
) -> Parts:
    """Brings somebody else's partition within the limits of every operator, at the least loss of locality."""
    limits = Limits.of(graph, n, alpha, shares)
    out = check_parts(graph, n, parts, "parts").copy()
    bottom = _bottom(graph, limits, np.full(len(graph), -1, np.int32), 0.0, np.zeros(len(graph), np.bool_))
    _settle(bottom, limits.limit, out, seed, rounds=6)
    return out


def _bottom(
    graph: KeyGraph, limits: Limits, home: Parts, stay_bonus: float, held: NDArray[np.bool_]
) -> _Level:
    weight = np.zeros((len(graph), graph.operators))
    weight[np.arange(len(graph)), graph.operator] = limits.weight
    mean = np.bincount(graph.operator, weights=graph.weight) / np.maximum(1, np.bincount(graph.operator))
    sums = np.concatenate([[0.0], np.cumsum(graph.edge_weight)])
    return _Level(
        graph.indptr,
        graph.indices,
        graph.edge_weight,
        weight,
        np.diff(sums[graph.indptr]),
        np.zeros(len(graph), np.int32),
        home,
        np.where(home >= 0, stay_bonus * mean[graph.operator], 0.0),
        held,
    )


def _cycle(bottom: _Level, limit: NDArray[np.float64], parts: Parts, known: bool, seed: int) -> Parts:
    n = limit.shape[1]
    # clusters keep to one server, to one home, and to one fixed server
    group = np.where(bottom.held, parts, -1).astype(np.int64)
    if known:
        group = group * (n + 1) + parts
    if (bottom.home >= 0).any():
        group = group * (n + 2) + bottom.home
    bottom.group = np.unique(group, return_inverse=True)[1].astype(np.int32)
    levels, maps = [bottom], []
    enough = max(40 * n, 400)
    small = limit.max(axis=1) / _CLUSTERS
    while len(levels[-1]) > enough:
        top = levels[-1]
        order = shuffled(len(top), seed + len(levels))
        if len(levels) == 1:
            order = order[np.argsort(np.diff(top.indptr)[order], kind="stable")]
        label = cluster(
            top.indptr, top.indices, top.edge, top.weight, top.degree, top.group, small, 3, order, 1.0
        )
        *arrays, coarse = contract(
            top.indptr, top.indices, top.edge, top.weight, top.degree, top.group, top.home, top.bonus, label
        )
        if len(arrays[3]) > 0.95 * len(top):
            break
        held = np.zeros(len(arrays[3]), np.bool_)
        held[coarse] = top.held
        levels.append(_Level(*arrays, held))  # type: ignore[call-arg]
        maps.append(coarse)
    coarsest = np.full(len(levels[-1]), -1, np.int32)
    projected = parts
    for coarse, level in zip(maps, levels[1:], strict=True):
        finer, projected = projected, np.empty(len(level), np.int32)
        projected[coarse] = finer
    if known:
        coarsest = projected
        _settle(levels[-1], limit, coarsest, seed, rounds=10)
        _climb(levels[-1], limit, coarsest)
    else:
        coarsest = np.where(levels[-1].held, projected, -1).astype(np.int32)
        coarsest = _initial(levels[-1], limit, coarsest, seed)
    _settle(levels[-1], limit, coarsest, seed, rounds=10)
    for level, coarse in zip(levels[-2::-1], maps[::-1], strict=True):
        coarsest = coarsest[coarse]
        _settle(level, limit, coarsest, seed, rounds=6)
    return coarsest


def _initial(level: _Level, limit: NDArray[np.float64], given: Parts, seed: int) -> Parts:
    tries = int(np.clip(_EFFORT // max(1, len(level.indices)), 2, 20))
    best, best_score = given, np.inf
    for attempt in range(tries):
        parts = given.copy()
        order = _by_weight(level.weight, limit, seed + attempt, 0.5 if attempt else 0.0)
        grow(*level.graph, level.home, level.bonus, limit, order, parts)
        _settle(level, limit, parts, seed + attempt, rounds=10)
        _climb(level, limit, parts)
        over = np.maximum(loads(level.weight, parts, limit.shape[1]) - limit, 0).sum()
        score = float(cut_weight(*level.graph[:3], parts)) + float(over)
        if score < best_score:
            best, best_score = parts, score
    return best


def _by_weight(
    weight: NDArray[np.float64], limit: NDArray[np.float64], seed: int, noise: float
) -> NDArray[np.int64]:
    size = (weight / limit.max(axis=1)).max(axis=1)
    if noise:
        size = size * np.exp(noise * np.random.default_rng(seed).standard_normal(len(size)))
    return np.argsort(-size, kind="stable")


def _climb(level: _Level, limit: NDArray[np.float64], parts: Parts) -> None:
    if len(level) <= _CLIMBABLE:
        climb(*level.graph, level.home, level.bonus, level.held, limit, 0.05, 100, 4, parts)


def _settle(level: _Level, limit: NDArray[np.float64], parts: Parts, seed: int, rounds: int) -> None:
    order = shuffled(len(level), seed)
    terms = (level.home, level.bonus, level.held, limit)
    rebalance(*level.graph, *terms, parts)
    refine(*level.graph, *terms, order, rounds, parts)
