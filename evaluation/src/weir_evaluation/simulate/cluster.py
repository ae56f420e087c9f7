"""Workers: how many messages per second each can process, and how that changes during a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class SimulatedCluster:
    """Capacities in messages per second, piecewise constant over time.

    Parameters
    ----------
    starts
        When each phase begins, in seconds; the first is 0.
    rates
        Per phase and worker.

    Examples
    --------
    Ten workers, three of them five times as strong as the rest, together good for 1,000 messages/s; after a
    minute five are four times as strong, with the same total.

    >>> cluster = SimulatedCluster.mixed(10, 1000, strong=3, times=5).then(60, SimulatedCluster.mixed(10, 1000, 5, 4))
    >>> cluster.rates.round().astype(int)[:, [0, 4, 9]].tolist()
    [[227, 45, 45], [160, 160, 40]]
    """

    starts: NDArray[np.float64]
    rates: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.rates.ndim != 2 or len(self.starts) != len(self.rates):
            raise ValueError("rates must be phases × workers, with one start per phase")
        if self.starts[0] != 0 or (np.diff(self.starts) <= 0).any():
            raise ValueError("phases must begin at 0 and follow each other in time")
        if (self.rates < 0).any():
            raise ValueError("capacities must not be negative")

    @classmethod
    def of(cls, rates: ArrayLike) -> SimulatedCluster:
        """Workers of the given capacities, for ever."""
        return cls(np.zeros(1), np.asarray(rates, np.float64)[None, :])

    @classmethod
    def equal(cls, workers: int, total: float) -> SimulatedCluster:
        """Workers of the same capacity."""
        return cls.of(np.full(workers, total / workers))

    @classmethod
    def mixed(cls, workers: int, total: float, strong: int, times: float) -> SimulatedCluster:
        """The first ``strong`` workers have ``times`` the capacity of the others."""
        shape = np.where(np.arange(workers) < strong, times, 1.0)
        return cls.of(total * shape / shape.sum())

    def then(self, at: float, other: SimulatedCluster) -> SimulatedCluster:
        """From ``at`` on the capacities of another cluster."""
        return SimulatedCluster(
            np.append(self.starts, at + other.starts), np.concatenate([self.rates, other.rates])
        )

    @property
    def workers(self) -> int:
        return self.rates.shape[1]

    def work(self, time: float) -> NDArray[np.float64]:
        """What each worker could have processed by ``time``."""
        phase = int(np.searchsorted(self.starts, time, side="right")) - 1
        return self.worked()[phase] + (time - self.starts[phase]) * self.rates[phase]

    def worked(self) -> NDArray[np.float64]:
        """:meth:`work` at the start of each phase."""
        steps = np.diff(self.starts)[:, None] * self.rates[:-1]
        return np.concatenate([np.zeros((1, self.workers)), np.cumsum(steps, axis=0)])
