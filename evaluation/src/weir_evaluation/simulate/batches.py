"""Batch by batch through one edge, as the engine runs it: routers hear of a batch's load before the next one.

:mod:`~weir_evaluation.simulate.run` and :mod:`~weir_evaluation.simulate.pipeline` have queues and short periods. The
engine's micro-batches have neither: a batch lasts as long as its busiest server, and what
:meth:`~weir.routing.base.Grouping.feedback` makes of it is heard once. This runs that very code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.routing.base import Grouping, InstanceLoad
from weir_evaluation.simulate.measures import memory
from weir_evaluation.simulate.network import SimulatedNetwork
from weir_evaluation.simulate.run import router_of
from weir_evaluation.simulate.streams import SimulatedStream


@dataclass(eq=False)
class BatchesResult:
    """What became of each batch.

    Attributes
    ----------
    seconds
        Length of each batch: the busiest server's time.
    busy
        Seconds of work, batches × servers.
    assigned
        Rows, batches × servers.
    pairs
        (Server, key) pairs of each batch: partial states to merge.
    """

    seconds: NDArray[np.float64]
    busy: NDArray[np.float64]
    assigned: NDArray[np.int64]
    pairs: NDArray[np.int64]

    def settled(self) -> float:
        """Mean length of a batch in the second half of the run."""
        return float(self.seconds[len(self.seconds) // 2 :].mean())


def in_batches(
    stream: SimulatedStream,
    grouping: Grouping,
    speeds: ArrayLike,
    *,
    batches: int,
    sources: int | None = None,
    work: float = 1e-3,
    noise: float = 0.0,
    network: SimulatedNetwork | None = None,
    seed: int = 0,
) -> BatchesResult:
    """Run a stream in equal batches over servers of given speeds.

    Parameters
    ----------
    stream, grouping
        What comes, and who routes.
    speeds
        Per server, or batches × servers.
    batches
        Number of batches.
    sources
        Upstream instances, one per server if omitted.
    work
        Seconds per row at speed 1.
    noise
        Standard deviation of a server's time in a batch, as a share of it: what else goes on there.
    network
        Its serialisation is work of the receiver; without one all servers are equally far.
    seed
        Repeats the run exactly.

    Examples
    --------
    Two of ten servers have 30 % of the others' speed: 8.6 servers' worth.

    >>> from weir import Consistent, Shuffle
    >>> from weir_evaluation.simulate import zipf
    >>> stream, speeds = zipf(200_000, 10_000, seed=1), [0.3] * 2 + [1.0] * 8
    >>> plain, steered = (in_batches(stream, g, speeds, batches=20) for g in (Shuffle(), Consistent()))
    >>> print(round(plain.settled() / steered.settled(), 1))
    2.7
    """
    pace = np.atleast_2d(np.asarray(speeds, np.float64))
    n = pace.shape[1]
    pace = np.broadcast_to(pace, (batches, n))
    if not (pace > 0).all():
        raise ValueError(f"speeds must be above 0, got {pace.min()}")
    many = n if sources is None else sources
    routers = [router_of(grouping, n, seed, s, network) for s in range(many)]
    dice = np.random.default_rng(seed)
    busy, assigned = np.zeros((batches, n)), np.zeros((batches, n), np.int64)
    pairs = np.zeros(batches, np.int64)
    for b, ids in enumerate(np.array_split(stream.ids, batches)):
        keys, to = stream.hashes[ids], np.empty(len(ids), np.int32)
        for s, router in enumerate(routers):
            mine = slice(s, None, many)
            to[mine] = router.route(np.ascontiguousarray(keys[mine]))
            rows = np.bincount(to[mine], minlength=n)
            extra = 0.0 if network is None else network.serialise[s]
            assigned[b] += rows
            busy[b] += rows * (work + extra) / pace[b]
        busy[b] *= np.maximum(0.1, 1 + noise * dice.standard_normal(n))
        pairs[b] = memory(ids, to)
        # rows lie in line from the start of the batch on
        load = InstanceLoad(b, assigned[b].astype(np.float64), busy[b], assigned[b] * busy[b] / 2, b > 0)
        heard = grouping.feedback(load)
        if heard is not None:
            for router in routers:
                router.listen(heard)
    return BatchesResult(busy.max(axis=1), busy, assigned, pairs)
