"""Channels: what a message pays on its way from a source to a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.network.distance import Place, distances
from weir.network.profile import PAPER, Profile


@dataclass(frozen=True, eq=False)
class SimulatedNetwork:
    """Channels between every source (rows) and every worker (columns).

    A channel sends one message after the other: each occupies it for ``wire`` seconds (its bytes through the
    bandwidth) and arrives ``latency`` later. To write and read it takes ``serialise`` seconds more.
    """

    distance: NDArray[np.int8]
    latency: NDArray[np.float64]
    wire: NDArray[np.float64]
    serialise: NDArray[np.float64]

    @classmethod
    def between(
        cls,
        sources: Sequence[Place],
        workers: Sequence[Place],
        *,
        row_bytes: float,
        profile: Profile = PAPER,
    ) -> SimulatedNetwork:
        """Channels by distance.

        Parameters
        ----------
        sources, workers
            Where each instance runs.
        row_bytes
            Size of a message.
        profile
            Latency, bandwidth and serialisation by distance.

        Examples
        --------
        >>> here, there = Place("1", "a", "x"), Place("2", "b", "y")
        >>> network = SimulatedNetwork.between([here], [here, there], row_bytes=1000)
        >>> network.wire.tolist(), network.serialise.round(7).tolist()
        ([[5e-08, 0.0001]], [[0.0, 4.17e-05]])
        """
        far = distances(sources, workers)
        return cls(
            far,
            np.array(profile.latency_s)[far],
            (row_bytes / np.array(profile.bandwidth_Bps))[far],
            (row_bytes * np.array(profile.serialise_s_per_byte))[far],
        )

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long a message keeps its channel busy if the channel's own thread serialises."""
        return self.wire + self.serialise
