"""What a run leaves behind: balance, memory, queues, latency, utilisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numba as nb
import numpy as np
from numpy.typing import ArrayLike, NDArray

Series = NDArray[np.float64]


def imbalance(load: ArrayLike, capacity: ArrayLike | None = None) -> float:
    """Highest utilisation less the average one, normalised by the number of messages.

    Capacities count in shares (they sum to 1), so that a fair load has utilisation 1 on every worker: for
    equal workers this is ``max(load) / mean(load) − 1``, and a bound of ε on the bins is a bound of ε on it.

    Examples
    --------
    >>> imbalance([30, 10, 10, 10])
    1.0
    >>> imbalance([30, 10, 10, 10], capacity=[3, 1, 1, 1])
    0.0
    """
    sent = np.asarray(load, np.float64)
    strength = np.ones_like(sent) if capacity is None else np.asarray(capacity, np.float64)
    if sent.sum() == 0:
        return 0.0
    used = sent / sent.sum() / (strength / strength.sum())
    return float(used.max() - used.mean())


class Holdings:
    """Which worker has seen which key, as a bitmap: 2.9 million keys on 100 workers take 46 MB."""

    def __init__(self, keys: int, workers: int) -> None:
        self._seen = np.zeros((keys, (workers + 63) // 64), dtype=np.uint64)
        self.pairs = 0

    def add(self, ids: NDArray[np.int32], to: NDArray[np.int32]) -> None:
        """Notes that worker ``to[i]`` has seen key ``ids[i]``."""
        self.pairs += int(_note(self._seen, ids, to))


def memory(ids: NDArray[np.int32], to: NDArray[np.int32]) -> int:
    """Number of (worker, key) pairs of an assignment: the partial states that would be held.

    >>> memory(np.array([0, 0, 0, 1], np.int32), np.array([0, 1, 1, 1], np.int32))
    3
    """
    if len(ids) == 0:
        return 0
    held = Holdings(int(ids.max()) + 1, int(to.max()) + 1)
    held.add(ids, to)
    return held.pairs


@nb.njit(cache=True)
def _note(seen, ids, to):  # type: ignore[no-untyped-def]
    fresh = 0
    for i in range(len(ids)):
        word = to[i] >> 6
        bit = np.uint64(1) << np.uint64(to[i] & 63)
        if not seen[ids[i], word] & bit:
            seen[ids[i], word] |= bit
            fresh += 1
    return fresh


@dataclass(eq=False)
class Result:
    """A run, slot by slot. Series have one row per slot and one column per worker.

    Attributes
    ----------
    time
        End of each slot, in seconds.
    arrived
        Messages that had arrived by then.
    assigned
        Messages assigned within the slot.
    queue
        Messages waiting or in service at the end of the slot.
    latency
        Mean seconds from arrival to finish of the messages that arrived in the slot; NaN if there were none.
    utilisation
        Messages assigned in the slot over what the worker can process in it.
    memory
        Number of (worker, key) pairs by the end of the slot.
    moves
        Virtual workers moved in the slot, averaged over the sources.
    """

    grouping: str
    time: Series
    arrived: NDArray[np.int64]
    assigned: NDArray[np.int64]
    queue: Series
    latency: Series
    utilisation: Series
    memory: NDArray[np.int64]
    moves: Series
    capacity: Series
    owned: NDArray[np.int64] | None = field(default=None)

    @property
    def load(self) -> NDArray[np.int64]:
        """Messages assigned to each worker in the whole run."""
        return self.assigned.sum(axis=0)

    def imbalance(self) -> float:
        """:func:`imbalance` of the whole run, by the capacities of its last slot."""
        return imbalance(self.load, self.capacity[-1])

    def spread(self, what: Literal["queue", "latency", "utilisation"]) -> Series:
        """Worst worker less best worker, slot by slot."""
        series: Series = getattr(self, what)
        some = ~np.isnan(series).all(axis=1)
        out = np.full(len(series), np.nan)
        out[some] = np.nanmax(series[some], axis=1) - np.nanmin(series[some], axis=1)
        return out

    def mean_latency(self, since: float = 0.0) -> float:
        """Seconds per message, over all messages that arrived after ``since``."""
        late = self.time > since
        weight = self.assigned[late]
        return float(np.nansum(self.latency[late] * weight) / max(1, weight.sum()))
