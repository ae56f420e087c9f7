"""Mt-KaHyPar, an optional partitioner of high quality: ``pip install weir[mtkahypar]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.errors import EngineError
from weir.locality.graph import KeyGraph
from weir.locality.partition.base import Parts, check_parts, check_shares, grid_edges, grid_weights, named
from weir.locality.partition.multilevel import repair

_started: Any = None


def available() -> bool:
    """Return whether Mt-KaHyPar is installed."""
    from importlib.util import find_spec

    return find_spec("mtkahypar") is not None


def partition_mtkahypar(
    graph: KeyGraph,
    n: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    warm: Parts | None = None,
    stay_bonus: float = 0.0,
    shares: NDArray[np.float64] | None = None,
    fixed: Parts | None = None,
) -> Parts:
    """Partition a key graph with Mt-KaHyPar's deterministic preset, on one thread.

    Like METIS it balances operators in sum and can't prefer to stay, so its answer is repaired until every
    operator is within its limits, and named after the servers that hold most of each part (``warm``).

    References
    ----------
    L. Gottesbüren, T. Heuer, N. Maas, P. Sanders, S. Schlag. *Scalable high-quality hypergraph partitioning.*
    ACM Trans. Algorithms 20(1), 2024.
    """
    start, bound = check_parts(graph, n, warm, "warm"), check_parts(graph, n, fixed, "fixed")
    library, run = _library()
    if n == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    vertices = grid_weights(graph, n, alpha, shares)
    tail = np.repeat(np.arange(len(graph)), np.diff(graph.indptr))
    once = tail < graph.indices
    edges = grid_edges(graph.edge_weight[once], float(graph.edge_weight.sum()))
    context = run.context_from_preset(library.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(n, alpha - 1, library.Objective.CUT)
    context.logging = False
    if shares is not None:
        context.set_individual_target_block_weights(
            np.ceil(check_shares(n, shares) * vertices.sum() * alpha).astype(np.int64).tolist()
        )
    library.set_seed(seed)
    pairs = np.stack([tail[once], graph.indices[once].astype(np.int64)], axis=1)
    weighted = run.create_graph(
        context, len(graph), len(edges), pairs.tolist(), vertices.tolist(), edges.tolist()
    )
    parts = np.asarray(weighted.partition(context).get_partition(), np.int32)
    parts = repair(graph, n, parts, alpha=alpha, seed=seed, shares=shares)
    return named(graph, n, parts, None if warm is None else start, bound)


def _library() -> tuple[Any, Any]:
    global _started
    try:
        import mtkahypar
    except ImportError as error:
        raise EngineError(
            "the partitioner 'mtkahypar' is not installed: `pip install weir[mtkahypar]`, "
            "or choose partitioner='multilevel' or 'metis'"
        ) from error
    if _started is None:
        _started = mtkahypar.initialize(1, False)
    return mtkahypar, _started
