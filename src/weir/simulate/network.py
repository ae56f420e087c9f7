"""Distances: what a message pays on its way from a source to a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Link(NamedTuple):
    """One distance: time of flight in seconds, and bytes per second."""

    latency: float
    bandwidth: float


# Orders of magnitude of a data centre of commodity machines; pass your own where they matter.
PROCESS = Link(100e-9, 20e9)
NODE = Link(20e-6, 2.5e9)
RACK = Link(200e-6, 100e6)
ANY = Link(350e-6, 10e6)


class Place(NamedTuple):
    """Where an instance runs."""

    process: int
    host: int
    rack: int


def distance(a: Place, b: Place) -> Link:
    """The link between two places: same process, same host, same rack, or none of these.

    >>> distance(Place(1, 1, 0), Place(2, 1, 0)) is NODE
    True
    """
    if a.rack != b.rack:
        return ANY
    if a.host != b.host:
        return RACK
    return PROCESS if a.process == b.process else NODE


@dataclass(frozen=True, eq=False)
class Network:
    """Channels between every source and every worker.

    A channel sends one message after the other: each occupies it for ``seconds[source, worker]`` (its bytes
    through the bandwidth, and what it takes to serialise them) and arrives ``latency`` later.
    """

    latency: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @classmethod
    def between(
        cls, sources: list[Place], workers: list[Place], *, row_bytes: float, serialise: float = 0.0
    ) -> Network:
        """Channels by distance.

        Parameters
        ----------
        sources, workers
            Where each instance runs.
        row_bytes
            Size of a message.
        serialise
            Seconds per byte to write and read it again; nothing within a process.

        Examples
        --------
        >>> here, there = Place(0, 0, 0), Place(1, 1, 1)
        >>> network = Network.between([here], [here, there], row_bytes=1000)
        >>> network.seconds.tolist()
        [[5e-08, 0.0001]]
        """
        links = [[distance(s, w) for w in workers] for s in sources]
        latency = np.array([[link.latency for link in row] for row in links])
        wire = np.array([[row_bytes / link.bandwidth for link in row] for row in links])
        remote = np.array([[link is not PROCESS for link in row] for row in links])
        return cls(latency, wire + remote * serialise * row_bytes)
