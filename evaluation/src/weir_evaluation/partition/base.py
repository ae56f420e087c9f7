"""What other partitioners need: one whole number per vertex and edge, present homes and fixed vertices added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weir.locality.graph import KeyGraph
from weir.locality.partition import Parts, Terms, partition_multilevel, relabel
from weir.locality.partition.base import Limits


class OtherPartitioner(ABC):
    """A partitioner that knows neither present homes nor fixed vertices: its parts are numbered after them.

    Where vertices are fixed, the others are then refined around them by Weir's own partitioner.
    """

    @abstractmethod
    def cut(self, graph: KeyGraph, n: int, terms: Terms) -> Parts:
        """Return the part of each vertex, numbered in any way."""

    def __call__(self, graph: KeyGraph, n: int, terms: Terms) -> Parts:
        start, bound = terms.homes(graph, n)
        parts = self.cut(graph, n, terms)
        if not (bound >= 0).any():
            return parts if terms.warm is None else relabel(parts, start, graph.weight, n)
        tied = np.bincount(graph.tails(), weights=graph.edge_weight, minlength=len(graph)).astype(np.float64)
        warm = relabel(parts, bound, tied, n)
        return partition_multilevel(graph, n, replace(terms, warm=warm, stay_bonus=0.0, starts=1))


def grid_weights(graph: KeyGraph, n: int, terms: Terms) -> NDArray[np.int64]:
    """Return one whole number per vertex, as fine as 32-bit sums allow: for partitioners that balance one weight.

    Operators are scaled to equal totals, so that in sum each counts the same; hubs are clipped, see :class:`Limits`.
    """
    weight = Limits.of(graph, n, terms.alpha, terms.shares).weight
    total = np.maximum(np.bincount(graph.operator, weights=weight, minlength=graph.operators), 1e-12)
    grid = 2**29 / graph.operators
    return np.maximum(1, np.rint(weight / total[graph.operator] * grid)).astype(np.int64)


def grid_edges(weight: NDArray[np.float64], total: float) -> NDArray[np.int64]:
    """Return edge weights as whole numbers whose sum stays within 32 bits."""
    scale = min(1000.0, 2**29 / max(total, 1e-12))
    return np.maximum(1, np.rint(weight * scale)).astype(np.int64)
