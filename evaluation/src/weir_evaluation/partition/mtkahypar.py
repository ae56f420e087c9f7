"""Mt-KaHyPar, an optional partitioner of high quality."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from weir.errors import EngineError
from weir.locality.graph import KeyGraph
from weir.locality.partition import Parts, Terms
from weir.locality.partition._cycle import bottom_level, settle
from weir.locality.partition.base import Limits, check_shares
from weir_evaluation.partition.base import OtherPartitioner, grid_edges, grid_weights

_started: Any = None


def available() -> bool:
    """Return whether Mt-KaHyPar is installed."""
    return find_spec("mtkahypar") is not None


@dataclass(frozen=True)
class MtKaHyPar(OtherPartitioner):
    """Partition a key graph with Mt-KaHyPar's deterministic preset, on one thread.

    Like METIS it balances operators in sum and can't prefer to stay, so its answer is repaired until every
    operator is within its limits, at the least loss of locality.

    References
    ----------
    L. Gottesbüren, T. Heuer, N. Maas, P. Sanders, S. Schlag. *Scalable high-quality hypergraph partitioning.*
    ACM Trans. Algorithms 20(1), 2024.
    """

    def __post_init__(self) -> None:
        if not available():
            raise EngineError("Mt-KaHyPar is not installed: pip install 'weir-streams-evaluation[mtkahypar]'")

    def cut(self, graph: KeyGraph, n: int, terms: Terms) -> Parts:
        library, run = _library()
        vertices = grid_weights(graph, n, terms)
        tail = graph.tails()
        once = tail < graph.indices
        edges = grid_edges(graph.edge_weight[once], float(graph.edge_weight.sum()))
        context = run.context_from_preset(library.PresetType.DETERMINISTIC)
        context.set_partitioning_parameters(n, terms.alpha - 1, library.Objective.CUT)
        context.logging = False
        if terms.shares is not None:
            context.set_individual_target_block_weights(
                np.ceil(check_shares(n, terms.shares) * vertices.sum() * terms.alpha)
                .astype(np.int64)
                .tolist()
            )
        library.set_seed(terms.seed)
        pairs = np.stack([tail[once], graph.indices[once].astype(np.int64)], axis=1)
        weighted = run.create_graph(
            context, len(graph), len(edges), pairs.tolist(), vertices.tolist(), edges.tolist()
        )
        parts = np.array(weighted.partition(context).get_partition(), np.int32)
        limits, anywhere = Limits.of(graph, n, terms.alpha, terms.shares), np.full(len(graph), -1, np.int32)
        bottom = bottom_level(graph, limits, anywhere, 0.0, np.zeros(len(graph), np.bool_))
        settle(bottom, limits.limit, parts, terms.seed, rounds=6)
        return parts


def _library() -> tuple[Any, Any]:
    global _started
    import mtkahypar

    if _started is None:
        _started = mtkahypar.initialize(1, False)
    return mtkahypar, _started
