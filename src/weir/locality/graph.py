"""The key graph: which keys are seen together, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weir.locality.counts import PairCounts, merge
from weir.locality.stats import Edge


@dataclass(frozen=True)
class KeyGraph:
    """One graph over the keys of all operators of an application.

    A vertex is a key of one operator, weighted by its rows; an edge is a pair of keys that some row carried,
    weighted by how many rows did. For two operators the graph is bipartite, for a chain of *k* it has *k*
    layers, for a DAG it follows the DAG. Vertices are sorted by operator, then by key.

    >>> from weir.locality.counts import count_keys, count_pairs
    >>> state, tag = np.array([1, 1, 2], np.uint64), np.array([7, 7, 8], np.uint64)
    >>> graph = KeyGraph.build([count_keys(state), count_keys(tag)], {(0, 1): count_pairs(state, tag)})
    >>> graph.weight.tolist(), graph.indices.tolist(), graph.edge_weight.tolist()
    ([2.0, 1.0, 2.0, 1.0], [2, 3, 0, 1], [2.0, 1.0, 2.0, 1.0])
    >>> graph.locality(np.array([0, 1, 0, 0]))
    0.6666666666666666
    """

    operator: NDArray[np.int32]  # per vertex: the operator's number
    key: NDArray[np.uint64]  # the key's hash
    weight: NDArray[np.float64]  # its rows
    indptr: NDArray[np.int64]  # adjacency in compressed rows, each edge in both directions
    indices: NDArray[np.int32]
    edge_weight: NDArray[np.float64]
    starts: NDArray[np.int64]  # vertices of operator o are starts[o] … starts[o + 1] − 1

    @classmethod
    def build(cls, keys: Sequence[PairCounts], pairs: Mapping[Edge, PairCounts]) -> KeyGraph:
        """Make a graph from the key counts of each operator and the pair counts of each edge.

        A key that occurs only in pairs (its own count was truncated away) weighs what its pairs weigh.
        """
        counts = list(keys)
        for o, counted in enumerate(counts):
            sides = [(p.left, p.count) for (a, _), p in pairs.items() if a == o]
            sides += [(p.right, p.count) for (_, b), p in pairs.items() if b == o]
            missing = [(k[gone], c[gone]) for k, c in sides if (gone := ~within(counted.left, k)).any()]
            if missing:
                extra = [PairCounts(k, np.zeros(len(k), np.uint64), c) for k, c in missing]
                counts[o] = merge([counted, *extra])
        starts = np.cumsum([0, *(len(c) for c in counts)])
        tails, heads, weights = [], [], []
        for (a, b), p in sorted(pairs.items(), key=lambda item: item[0]):
            tails.append(starts[a] + np.searchsorted(counts[a].left, p.left))
            heads.append(starts[b] + np.searchsorted(counts[b].left, p.right))
            weights.append(p.count)
        empty = [np.zeros(0, np.int64)]
        # every edge in both directions, one after the other; sorted by vertex, otherwise in the order of the pairs
        ends = np.stack([np.concatenate(tails or empty), np.concatenate(heads or empty)], axis=1)
        order = np.argsort(ends.ravel(), kind="stable")
        indptr = np.cumsum(np.bincount(ends.ravel() + 1, minlength=int(starts[-1]) + 1))
        indices = ends[:, ::-1].ravel()[order].astype(np.int32)
        edge_weight = np.repeat(np.concatenate(weights or [np.zeros(0)]), 2)[order]
        return cls(
            np.repeat(np.arange(len(counts), dtype=np.int32), [len(c) for c in counts]),
            np.concatenate([c.left for c in counts] or [np.zeros(0, np.uint64)]),
            np.concatenate([c.count for c in counts] or [np.zeros(0)]),
            indptr,
            indices,
            edge_weight,
            starts.astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.key)

    @property
    def operators(self) -> int:
        """Return the number of operators."""
        return len(self.starts) - 1

    def tails(self) -> NDArray[np.int64]:
        """Return the vertex at which each entry of ``indices`` begins."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def vertices(self, operator: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the vertex of each key of an operator, −1 for keys that are not in the graph."""
        first, last = self.starts[operator], self.starts[operator + 1]
        own = self.key[first:last]
        at = np.searchsorted(own, keys)
        present = at < len(own)
        present[present] = own[at[present]] == keys[present]
        return np.where(present, first + at, -1)

    def among(self, operators: Iterable[int]) -> NDArray[np.bool_]:
        """Return which vertices are keys of these operators."""
        return np.isin(self.operator, np.fromiter(operators, np.int32))

    def weightless(self, operators: Iterable[int]) -> KeyGraph:
        """Return the graph with weight 0 for the keys of these operators, so that they don't count for balance."""
        return replace(self, weight=np.where(self.among(operators), 0.0, self.weight))

    def together(self, costs: NDArray[np.float64] | None) -> KeyGraph:
        """Return the graph as balance sees it where load is time: all operators count as one.

        ``costs`` are the seconds that a row takes of each operator. Without them operators are balanced one by one,
        and the graph is returned as it is.
        """
        if costs is None:
            return self
        whole = np.array([0, len(self)], np.int64)
        return replace(
            self,
            operator=np.zeros_like(self.operator),
            weight=self.weight * costs[self.operator],
            starts=whole,
        )

    def priced(self, row_bytes: NDArray[np.float64]) -> KeyGraph:
        """Return the graph with pairs weighted by what their rows weigh between any two operators.

        Weights are in average rows: where all rows are as large, nothing changes.
        """
        price = row_bytes[self.operator[self.tails()], self.operator[self.indices]]
        if not len(price) or np.ptp(price) == 0:
            return self
        weight = self.edge_weight * price
        return replace(self, edge_weight=weight * (self.edge_weight.sum() / weight.sum()))

    def subgraph(self, keep: NDArray[np.bool_]) -> KeyGraph:
        """Return the graph of some vertices and the edges among them; operators keep their numbers."""
        before = np.concatenate([[0], np.cumsum(keep)])
        tails = self.tails()
        kept = keep[tails] & keep[self.indices]
        indptr = np.cumsum(np.bincount(before[tails[kept]] + 1, minlength=before[-1] + 1))
        indices, edge_weight = before[self.indices[kept]].astype(np.int32), self.edge_weight[kept]
        return KeyGraph(
            self.operator[keep],
            self.key[keep],
            self.weight[keep],
            indptr,
            indices,
            edge_weight,
            before[self.starts],
        )

    def locality(self, parts: NDArray[np.int32]) -> float:
        """Return the share of the pairs, by count, whose two keys are on the same server."""
        total = float(self.edge_weight.sum())
        inside = self.edge_weight[parts[self.tails()] == parts[self.indices]].sum()
        return float(inside) / total if total else 1.0

    def loads(self, parts: NDArray[np.int32], n: int) -> NDArray[np.float64]:
        """Return the rows of each operator (first axis) on each server (second axis)."""
        flat = self.operator.astype(np.int64) * n + parts
        loads = np.bincount(flat, weights=self.weight, minlength=self.operators * n)
        return loads.astype(np.float64).reshape(-1, n)

    def overload(
        self, parts: NDArray[np.int32], n: int, shares: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return, per operator, the busiest server's load over its fair share; 1 is perfect balance."""
        loads = self.loads(parts, n)
        fair = loads.sum(axis=1, keepdims=True) * (np.full(n, 1 / n) if shares is None else shares)
        return np.max(np.divide(loads, fair, out=np.ones_like(loads), where=fair > 0), axis=1)

    def floor(self, n: int, shares: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return, per operator, the overload that its heaviest key alone forces."""
        largest = 1 / n if shares is None else float(np.max(shares))
        out = np.ones(self.operators)
        for o in range(self.operators):
            weight = self.weight[self.starts[o] : self.starts[o + 1]]
            if weight.sum() > 0:
                out[o] = max(1.0, weight.max() / (weight.sum() * largest))
        return out


def within(others: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which keys are among others, which are sorted."""
    at = np.searchsorted(others, keys)
    out = at < len(others)
    out[out] = others[at[out]] == keys[out]
    return out
