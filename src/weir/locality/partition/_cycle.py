"""One cycle of the multilevel partitioner: coarsen step by step, partition, refine step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition._coarsen import cluster, contract
from weir.locality.partition._refine import Graph, cut_weight, grow, loads, rebalance, refine
from weir.locality.partition.base import Limits, Parts

_EFFORT = 300_000  # edges that all attempts on the coarsest graph together may look at
_LOOSENINGS = (0.5, 0.3, 0.2, 0.1, 0.05)  # how far above the limits servers may be filled for a moment


@dataclass
class Level:
    """One graph of the hierarchy: every vertex is a cluster of keys."""

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
    def effort(self) -> int:
        """What looking at it once costs, in edges: sorting vertices, of which many may have no edge, costs as well."""
        return max(1, len(self.indices) + 8 * len(self))

    @property
    def graph(self) -> Graph:
        return self.indptr, self.indices, self.edge, self.weight, self.home, self.bonus


def bottom_level(
    graph: KeyGraph, limits: Limits, home: Parts, stay_bonus: float, held: NDArray[np.bool_]
) -> Level:
    weight = np.zeros((len(graph), graph.operators))
    weight[np.arange(len(graph)), graph.operator] = limits.weight
    mean = graph.weight.sum() / max(1, len(graph))
    sums = np.concatenate([[0.0], np.cumsum(graph.edge_weight)])
    return Level(
        graph.indptr,
        graph.indices,
        graph.edge_weight,
        weight,
        np.diff(sums[graph.indptr]),
        np.zeros(len(graph), np.int32),
        home,
        np.where(home >= 0, stay_bonus * mean, 0.0),
        held,
    )


def cycle(
    bottom: Level,
    limit: NDArray[np.float64],
    parts: Parts,
    seed: int,
    *,
    warm: bool = False,
    other: Parts | None = None,
    clusters: float = 1.5,
) -> Parts:
    """Coarsen and refine once: from nothing, from ``parts`` (if ``warm``), or from what ``parts`` and ``other`` share.

    A server's limit holds ``clusters`` of the largest clusters.
    """
    n = limit.shape[1]
    # clusters keep to one server, to one home, and to one fixed server
    group = np.where(bottom.held, parts, -1).astype(np.int64)
    if warm:
        group = group * (n + 1) + parts
    if other is not None:
        group = group * (n + 1) + other
    if (bottom.home >= 0).any():
        group = group * (n + 2) + bottom.home
    bottom.group = np.unique(group, return_inverse=True)[1].astype(np.int32)
    levels, maps = [bottom], []
    enough = max(40 * n, 100)
    small = limit.max(axis=1) / clusters
    while len(levels[-1]) > enough:
        top = levels[-1]
        order = shuffled(len(top), seed + len(levels))
        if len(levels) == 1:
            order = order[np.argsort(np.diff(top.indptr)[order], kind="stable")]
        label = cluster(*top.graph[:4], top.degree, top.group, small, 3, order, 1.0)
        *arrays, coarse = contract(*top.graph[:4], top.degree, top.group, top.home, top.bonus, label)
        if len(arrays[3]) > 0.95 * len(top):
            break
        held = np.zeros(len(arrays[3]), np.bool_)
        held[coarse] = top.held
        levels.append(Level(*arrays, held))  # type: ignore[call-arg]
        maps.append(coarse)
    coarsest = np.full(len(levels[-1]), -1, np.int32)
    projected = parts
    for coarse, level in zip(maps, levels[1:], strict=True):
        finer, projected = projected, np.empty(len(level), np.int32)
        projected[coarse] = finer
    if warm:
        coarsest = projected
        settle(levels[-1], limit, coarsest, seed, rounds=10)
    else:
        coarsest = np.where(levels[-1].held, projected, -1).astype(np.int32)
        coarsest = _initial(levels[-1], limit, coarsest, seed)
    # keys that only gain if they move together do so here, as one cluster
    coarsest = exchange(levels[-1], limit, coarsest, seed)
    for level, coarse in zip(levels[-2::-1], maps[::-1], strict=True):
        coarsest = coarsest[coarse]
        settle(level, limit, coarsest, seed, rounds=6)
    return coarsest


def _initial(level: Level, limit: NDArray[np.float64], given: Parts, seed: int) -> Parts:
    tries = int(np.clip(_EFFORT // level.effort, 2, 60))
    best, best_value = given, np.inf
    for attempt in range(tries):
        parts = given.copy()
        order = by_weight(level.weight, limit, seed + attempt, 0.5 if attempt else 0.0)
        grow(level.graph, limit, order, parts)
        settle(level, limit, parts, seed + attempt, rounds=10)
        value = score(level, limit, parts)
        if value < best_value:
            best, best_value = parts, value
    return best


def by_weight(
    weight: NDArray[np.float64], limit: NDArray[np.float64], seed: int, noise: float
) -> NDArray[np.int64]:
    size = (weight / limit.max(axis=1)).max(axis=1)
    if noise:
        size = size * np.exp(noise * np.random.default_rng(seed).standard_normal(len(size)))
    return np.argsort(-size, kind="stable")


def settle(level: Level, limit: NDArray[np.float64], parts: Parts, seed: int, rounds: int) -> None:
    rebalance(level.graph, level.held, limit, parts)
    refine(level.graph, level.held, limit, shuffled(len(level), seed), rounds, parts)


def shuffled(n: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers below n in an order that the seed fixes."""
    return np.random.default_rng(seed).permutation(n)


def exchange(level: Level, limit: NDArray[np.float64], parts: Parts, seed: int, least: float = 0.0) -> Parts:
    """Let full servers exchange keys: loosen the limits and restore them, less each time; return the best result.

    Where all servers are full no key can move, however much it would gain. With looser limits those that gain most
    come in, and then those that lose least leave: chains of exchanges that no single move could begin. Where even the
    loosest limits bring less than the part ``least`` of what is cut, limits are not what keeps keys apart, and nothing
    more is tried.
    """
    order = shuffled(len(level), seed)
    best, value, parts = parts, score(level, limit, parts), parts.copy()
    for more in _LOOSENINGS:
        won = refine(level.graph, level.held, limit * (1 + more), order, 10, parts)
        if more == _LOOSENINGS[0] and won < least * value:
            break
        rebalance(level.graph, level.held, limit, parts)
        refine(level.graph, level.held, limit, order, 10, parts)
        if (worth := score(level, limit, parts)) < value:
            best, value = parts.copy(), worth
    return best


def score(level: Level, limit: NDArray[np.float64], parts: Parts) -> float:
    """Return the rows that are cut, those of bonuses lost, and those above the limits; less is better."""
    over = np.maximum(loads(level.weight, parts, limit.shape[1]) - limit, 0).sum()
    left = level.bonus[(level.home >= 0) & (parts != level.home)].sum()
    return cut_weight(*level.graph[:3], parts) + float(over) + float(left)
