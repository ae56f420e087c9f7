"""Row by row through a chain of operators on a few servers, as fast as a bounded number of rows in flight allows.

:func:`~weir_evaluation.simulate.run.simulate` asks what becomes of rows that arrive at a given rate. Here sources
send as fast as they may: each has at most ``window`` rows under way, like a stream engine whose buffers are full.
So the run finds its own throughput, and a slow server holds up everybody who sends to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.network.distance import Place
from weir.network.profile import PAPER, Profile
from weir.routing.base import Grouping
from weir_evaluation.simulate._chain import ChainEdge, Flight, Seen, Shares, advance, report
from weir_evaluation.simulate.network import SimulatedNetwork
from weir_evaluation.simulate.run import router_of
from weir_evaluation.simulate.streams import SimulatedStream


@dataclass(frozen=True, eq=False)
class PipelineStage:
    """An operator with one instance on every server, and how rows come to it.

    Parameters
    ----------
    grouping
        Shuffle, a grouping by key alone (Hash, Table), or :class:`Weighted` over one of them.
    seconds
        Work on a row at speed 1.
    keep
        Share of the rows that it hands on.
    hashes
        Hash of the key by which this stage groups, per key of the stream; the stream's own if omitted.
    """

    grouping: Grouping
    seconds: float
    keep: float = 1.0
    hashes: NDArray[np.uint64] | None = None


@dataclass(eq=False)
class PipelineResult:
    """What a run has measured, after the rows of its warm-up.

    Attributes
    ----------
    rows_per_s
        Rows finished per second, those that were filtered out included.
    latency_s, latency_p99_s
        Mean and 99th percentile of the time from a row's emission to the end of its last operator.
    seconds
        When the last row of all was finished.
    busy
        Share of the time that each instance worked, stages × servers.
    hops
        Rows by stage and distance, stages × 4.
    assigned
        Rows by stage and receiving server.
    weights
        Per period: the weights of all routers, periods × stages × sources × servers.
    """

    rows_per_s: float
    latency_s: float
    latency_p99_s: float
    seconds: float
    busy: NDArray[np.float64]
    hops: NDArray[np.int64]
    assigned: NDArray[np.int64]
    weights: NDArray[np.int64] = field(repr=False)


def saturate(
    stream: SimulatedStream,
    stages: Sequence[PipelineStage],
    places: Sequence[Place],
    *,
    window: int,
    sources: Sequence[int] | None = None,
    speeds: Sequence[float] | NDArray[np.float64] | None = None,
    profile: Profile = PAPER,
    row_bytes: float | None = None,
    at_sender: float = 0.0,
    period: float = 0.1,
    warm_up: float = 0.5,
    changes: Sequence[tuple[float, Sequence[float]]] = (),
    seed: int = 0,
) -> PipelineResult:
    """Sends a stream through a chain of operators, each with an instance on every place.

    Sources are on the same places. A source takes the next row of the stream as soon as one of its ``window`` rows
    is finished. Instances work first come, first served; a row from another process costs its receiver the
    serialisation on top. At the end of each period every router hears how long rows waited and took at each
    receiver, if it listens.

    Parameters
    ----------
    stream, stages, places
        What comes, what is done with it, and where.
    window
        Rows under way per source.
    sources
        Which places have a source; all if omitted.
    speeds
        Speed of each place; 1 if omitted.
    profile, row_bytes
        What rows pay by distance, and their size (the profile's own if omitted).
    at_sender
        Share of the serialisation that the sender pays.
    period
        Seconds between reports of load.
    warm_up
        Share of the rows that come before the measurement.
    changes
        ``(time, speeds)``: from that time on, other speeds.
    seed
        Repeats the run exactly.

    Examples
    --------
    Two servers of one rack. By hash half of the rows cross the network, by weights a few.

    >>> from weir import Hash, Weighted
    >>> from weir_evaluation.simulate import zipf
    >>> stream, places = zipf(40_000, 1000, z=0.5), [Place("1", "a"), Place("1", "b")]
    >>> plain, weighted = (
    ...     saturate(stream, [PipelineStage(by, 30e-6)], places, window=30) for by in (Hash(), Weighted(Hash()))
    ... )
    >>> print(round(weighted.rows_per_s / plain.rows_per_s, 1))
    1.8
    """
    n, depth = len(places), len(stages)
    if window < 1 or not depth or not n:
        raise ValueError(f"needs places, stages and a window from 1 up, got {n}, {depth} and {window}")
    size = profile.row_bytes if row_bytes is None else row_bytes
    network = SimulatedNetwork.between(places, places, row_bytes=size, profile=profile)
    routers = [
        [router_of(s.grouping, n, seed + k, p, network) for p in range(n)] for k, s in enumerate(stages)
    ]
    edges = [
        ChainEdge(s.grouping, routers[k], stream.hashes if s.hashes is None else s.hashes)
        for k, s in enumerate(stages)
    ]
    shares = Shares(depth, n)
    for k in range(depth):
        shares.load(k, routers[k])
    speed = np.ones(n) if speeds is None else np.asarray(speeds, np.float64).copy()
    if speed.shape != (n,) or not (speed > 0).all():
        raise ValueError(f"needs a speed above 0 for each of {n} places, got {speed.tolist()}")

    rows = len(stream)
    begin = np.arange(n) if sources is None else np.asarray(sources, np.int64)
    flight = Flight(n, np.tile(begin, window), rows, depth)
    seen = Seen(depth, n)
    history = []
    pending = sorted(changes, key=lambda c: c[0], reverse=True)
    until = period
    work = np.array([s.seconds for s in stages])
    keep = np.array([s.keep for s in stages])
    homes = np.stack([e.homes for e in edges])
    kinds = np.array([e.kind for e in edges], np.int64)
    turn = np.stack([e.turn for e in edges])
    salt = np.uint64(mix(np.uint64(seed), np.uint64(0xF11E)))
    while np.isfinite(flight.due).any():
        while pending and pending[-1][0] < until:
            speed[:] = pending.pop()[1]
        advance(
            until,
            stream.ids,
            kinds,
            homes,
            turn,
            *shares.arrays,
            network.distance.astype(np.int64),
            network.latency,
            network.wire,
            network.serialise * (1.0 - at_sender),
            network.serialise * at_sender,
            work,
            keep,
            speed,
            salt,
            *flight.arrays,
            *seen.arrays,
        )
        report(routers, shares, seen)
        history.append(shares.weights.copy())
        until += period
    return _outcome(flight, seen, int(warm_up * rows), np.array(history))


def _outcome(flight: Flight, seen: Seen, first: int, weights: NDArray[np.int64]) -> PipelineResult:
    ends = np.sort(flight.finished)
    begin = ends[first - 1] if first else 0.0
    latency = flight.took[first:]
    latency = latency[np.isfinite(latency)]
    span = ends[-1]
    return PipelineResult(
        float((len(ends) - first) / (span - begin)),
        float(latency.mean()) if len(latency) else float("nan"),
        float(np.quantile(latency, 0.99)) if len(latency) else float("nan"),
        float(span),
        seen.busy / span,
        seen.hops,
        seen.assigned,
        weights,
    )
