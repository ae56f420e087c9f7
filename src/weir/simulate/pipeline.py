"""Row by row through a chain of operators on a few servers, as fast as a bounded number of rows in flight allows.

:func:`~weir.simulate.run.simulate` asks what becomes of rows that arrive at a given rate. Here sources send as
fast as they may: each has at most ``window`` rows under way, like a stream engine whose buffers are full. So the
run finds its own throughput, and a slow server holds up everybody who sends to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numba as nb
import numpy as np
from numpy.typing import NDArray

from weir.grouping.base import Grouping, Router
from weir.grouping.shuffle import Shuffle
from weir.grouping.weighted import Weighted, WeightedRouter, take_share
from weir.hashing import mix
from weir.network.distance import Place
from weir.network.profile import PAPER, Profile
from weir.simulate.network import Network
from weir.simulate.run import router_of
from weir.simulate.streams import Stream


@dataclass(frozen=True, eq=False)
class Stage:
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
class Outcome:
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
    stream: Stream,
    stages: Sequence[Stage],
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
) -> Outcome:
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

    >>> from weir.grouping.hashed import Hash
    >>> from weir.simulate import zipf
    >>> stream, places = zipf(40_000, 1000, z=0.5), [Place("1", "a"), Place("1", "b")]
    >>> plain, weighted = (
    ...     saturate(stream, [Stage(by, 30e-6)], places, window=30) for by in (Hash(), Weighted(Hash()))
    ... )
    >>> print(round(weighted.rows_per_s / plain.rows_per_s, 1))
    1.6
    """
    n, depth = len(places), len(stages)
    if window < 1 or not depth or not n:
        raise ValueError(f"needs places, stages and a window from 1 up, got {n}, {depth} and {window}")
    size = profile.row_bytes if row_bytes is None else row_bytes
    network = Network.between(places, places, row_bytes=size, profile=profile)
    routers = [
        [router_of(s.grouping, n, seed + k, p, network) for p in range(n)] for k, s in enumerate(stages)
    ]
    edges = [_Edge(stage, routers[k], stream) for k, stage in enumerate(stages)]
    shares = _Shares(depth, n)
    for k in range(depth):
        shares.load(k, routers[k])
    speed = np.ones(n) if speeds is None else np.asarray(speeds, np.float64).copy()
    if speed.shape != (n,) or not (speed > 0).all():
        raise ValueError(f"needs a speed above 0 for each of {n} places, got {speed.tolist()}")

    rows = len(stream)
    begin = np.arange(n) if sources is None else np.asarray(sources, np.int64)
    flight = _Flight(n, np.tile(begin, window), rows, depth)
    seen = _Seen(depth, n)
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
        _advance(
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
        _report(routers, shares, seen)
        history.append(shares.weights.copy())
        until += period
    return _outcome(flight, seen, int(warm_up * rows), np.array(history))


class _Edge:
    """What the default grouping wants: a home per key, or everyone in turn."""

    def __init__(self, stage: Stage, routers: list[Router], stream: Stream) -> None:
        weighted = isinstance(stage.grouping, Weighted)
        plain = stage.grouping.default if isinstance(stage.grouping, Weighted) else stage.grouping
        default = [r.default if isinstance(r, WeightedRouter) else r for r in routers]
        hashes = stream.hashes if stage.hashes is None else stage.hashes
        self.turn = np.zeros(len(routers), np.int64)
        self.homes = np.zeros(len(stream.hashes), np.int32)
        if isinstance(plain, Shuffle):
            self.turn[:] = [r.counters()["next"][0] for r in default]
        elif plain.order_free and plain.keyed:
            self.homes = default[0].route(hashes)
        else:
            raise ValueError(
                f"a chain takes Shuffle or groupings by key alone (Hash, Table), got {plain.name}"
            )
        self.kind = 2 * isinstance(plain, Shuffle) + weighted


class _Shares:
    """The weighted routers' arrays side by side, for the loop; other routers' are empty."""

    def __init__(self, depth: int, n: int) -> None:
        self.weights = np.zeros((depth, n, n), np.int64)
        self.used = np.zeros((depth, n, n), np.int64)
        self.order = np.zeros((depth, n, n), np.int64)
        self.at = np.zeros((depth, n, 2), np.int64)
        self.arrays = (self.weights, self.used, self.order, self.at)

    def load(self, k: int, routers: list[Router]) -> None:
        for s, router in enumerate(routers):
            if isinstance(router, WeightedRouter):
                self.weights[k, s], self.used[k, s] = router.weights, router.used
                self.order[k, s], self.at[k, s] = router.order, router.at

    def save(self, k: int, routers: list[Router]) -> None:
        for s, router in enumerate(routers):
            if isinstance(router, WeightedRouter):
                router.used[:], router.at[:] = self.used[k, s], self.at[k, s]


class _Flight:
    """Rows under way, and what became of those that have arrived."""

    def __init__(self, n: int, home: NDArray[np.int64], rows: int, depth: int) -> None:
        slots = len(home)
        self.due = np.zeros(
            slots
        )  # when it next emits or arrives, and after how many other events it was told so
        self.told = np.arange(slots)
        self.stage = np.zeros(slots, np.int64)
        self.home = home  # the source that may use it
        self.where = home.copy()  # the server at which it is, or to which it goes
        self.origin = home.copy()
        self.row = np.zeros(slots, np.int64)
        self.born = np.zeros(slots)
        self.done = np.zeros((depth + 1, n))
        self.channel = np.zeros((depth, n, n))
        self.taken = np.array([0, slots], np.int64)  # rows taken from the stream; numbers given to events
        self.took = np.full(rows, np.nan)
        self.finished = np.zeros(rows)
        self.arrays = tuple(vars(self).values())


class _Seen:
    """Sums of the period, and of the whole run."""

    def __init__(self, depth: int, n: int) -> None:
        self.count = np.zeros((depth, n), np.int64)
        self.worked = np.zeros((depth, n))
        self.waited = np.zeros((depth, n))
        self.hops = np.zeros((depth, 4), np.int64)
        self.arrays = tuple(vars(self).values())
        self.busy = np.zeros((depth, n))
        self.assigned = np.zeros((depth, n), np.int64)


def _report(routers: list[list[Router]], shares: _Shares, seen: _Seen) -> None:
    """The end of a period: every router that listens hears of the load."""
    some = seen.count > 0
    execution = np.divide(seen.worked, seen.count, out=np.full(some.shape, np.nan), where=some)
    waiting = np.divide(seen.waited, seen.count, out=np.zeros(some.shape), where=some)
    for k, row in enumerate(routers):
        shares.save(k, row)
        for router in row:
            if isinstance(router, WeightedRouter):
                router.observe(execution[k], waiting[k])
        shares.load(k, row)
    seen.busy += seen.worked
    seen.assigned += seen.count
    for sums in (seen.count, seen.worked, seen.waited):
        sums[:] = 0


def _outcome(flight: _Flight, seen: _Seen, first: int, weights: NDArray[np.int64]) -> Outcome:
    ends = np.sort(flight.finished)
    begin = ends[first - 1] if first else 0.0
    latency = flight.took[first:]
    latency = latency[np.isfinite(latency)]
    span = ends[-1]
    return Outcome(
        float((len(ends) - first) / (span - begin)),
        float(latency.mean()) if len(latency) else float("nan"),
        float(np.quantile(latency, 0.99)) if len(latency) else float("nan"),
        float(span),
        seen.busy / span,
        seen.hops,
        seen.assigned,
        weights,
    )


@nb.njit(cache=True)
def _advance(  # type: ignore[no-untyped-def]
    until, ids, kinds, homes, turn, weights, used, order, at, distance, latency, wire, receive, send,
    work, keep, speed, salt, due, told, stage, home, where, origin, row, born, done, channel, taken, took, finished,
    count, worked, waited, hops,
):  # fmt: skip
    """Events in order of time until ``until``: a source emits, or a row arrives at an instance."""
    n = len(speed)
    depth = len(work)
    while True:
        slot = 0
        for other in range(1, len(due)):
            if due[other] < due[slot] or (due[other] == due[slot] and told[other] < told[slot]):
                slot = other
        now = due[slot]
        if not now < until:
            return
        k = stage[slot]
        w = where[slot]
        ends = now
        if k == 0:
            if taken[0] >= len(ids):
                due[slot] = np.inf
                continue
            row[slot] = taken[0]
            taken[0] += 1
            born[slot] = now
        else:
            came = origin[slot]
            effort = (work[k - 1] + receive[came, w]) / speed[w]
            begins = max(now, done[k, w])
            ends = begins + effort
            done[k, w] = ends
            count[k - 1, w] += 1
            worked[k - 1, w] += effort
            waited[k - 1, w] += begins - now
        r = row[slot]
        last = k == depth
        if not last and k > 0 and keep[k - 1] < 1.0:
            drawn = mix(salt + np.uint64(k), np.uint64(r)) >> np.uint64(11)
            last = np.float64(drawn) / 9007199254740992.0 >= keep[k - 1]
        if last:
            finished[r] = ends
            if k == depth:
                took[r] = ends - born[slot]
            stage[slot] = 0
            where[slot] = home[slot]
            due[slot] = ends
        else:
            if kinds[k] >= 2:
                wanted = turn[k, w]
                turn[k, w] = (wanted + 1) % n
            else:
                wanted = np.int64(homes[k, ids[r]])
            to = wanted
            if kinds[k] % 2 == 1:
                to = take_share(wanted, weights[k, w], used[k, w], order[k, w], at[k, w])
            if send[w, to] > 0.0:
                ends = max(ends, done[k, w]) + send[w, to] / speed[w]
                done[k, w] = ends
            hops[k, distance[w, to]] += 1
            channel[k, w, to] = max(channel[k, w, to], ends) + wire[w, to]
            stage[slot] = k + 1
            origin[slot] = w
            where[slot] = to
            due[slot] = channel[k, w, to] + latency[w, to]
        told[slot] = taken[1]
        taken[1] += 1
