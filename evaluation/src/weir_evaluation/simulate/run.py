"""Message by message through one keyed edge: sources, routers, queues, workers, signals back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray

from weir.routing.base import Grouping, InstanceLoad, Router
from weir.routing.consistent import Consistent, ConsistentRouter
from weir.routing.weighted import Weighted, WeightedRouter
from weir_evaluation.simulate.cluster import SimulatedCluster
from weir_evaluation.simulate.measures import Holdings, Result
from weir_evaluation.simulate.network import SimulatedNetwork
from weir_evaluation.simulate.streams import Arrivals, SimulatedStream


def simulate(
    stream: SimulatedStream,
    grouping: Grouping,
    cluster: SimulatedCluster,
    arrivals: Arrivals,
    *,
    sources: int = 1,
    slot: float = 60.0,
    seed: int = 0,
    delays: Sequence[int] | None = None,
    sense: Literal["assigned", "backlog"] = "assigned",
    network: SimulatedNetwork | None = None,
) -> Result:
    """Runs a whole stream through a grouping on a cluster.

    Messages are dealt to the sources in turn; each source routes its own with a router of its own. A worker
    serves its queue first come, first served at its capacity of the moment; a message is one unit of work.
    Within a slot arrivals are evenly spaced.

    At the end of each slot every worker judges its utilisation, if the grouping listens
    (:class:`~weir.routing.consistent.Consistent`), and routers of :class:`~weir.routing.weighted.Weighted` learn
    how long messages took. Other groupings that follow load hear what the slot's load makes of their ``feedback``.
    A source hears the workers that it has sent something
    to in that slot, as signals travel with acknowledgements.

    Parameters
    ----------
    stream, arrivals
        What comes, and when.
    grouping, cluster
        Who routes, and who works.
    sources
        Number of sources.
    slot
        Seconds per time slot: the unit of measurement, and of feedback.
    seed
        Repeats the run exactly.
    delays
        Per source, how many slots late signals arrive; none if omitted.
    sense
        What workers call utilisation: messages ``assigned`` in the slot over capacity, or the same with the
        ``backlog`` from before the slot added, which also works off queues.
    network
        Channels between sources and workers; without one messages arrive at once.

    Examples
    --------
    Three of ten workers are five times as strong. A shuffle drowns the weak ones; CG finds out by itself.

    >>> from weir.routing.shuffle import Shuffle
    >>> from weir_evaluation.simulate import zipf
    >>> stream, arrivals = zipf(200_000, 10_000, seed=1), Arrivals.steady(100.0)
    >>> cluster = SimulatedCluster.mixed(10, 125.0, strong=3, times=5)
    >>> shuffled = simulate(stream, Shuffle(), cluster, arrivals, slot=10)
    >>> steered = simulate(stream, Consistent(virtual=20), cluster, arrivals, slot=10)
    >>> shuffled.queue[-1].max() > 5000, steered.queue[-1].max() < 500
    (np.True_, np.True_)
    """
    n = cluster.workers
    routers = [router_of(grouping, n, seed, s, network) for s in range(sources)]
    late = [0] * sources if delays is None else list(delays)
    if len(late) != sources:
        raise ValueError(f"delays must name all {sources} sources, got {len(late)}")
    edges = _slot_edges(len(stream), arrivals, slot)
    slots = len(edges) - 1
    held = Holdings(len(stream.hashes), n)
    worked = cluster.worked()
    done = np.zeros(n)
    channels = np.zeros((sources, n))
    latency, queue = np.full((slots, n), np.nan), np.zeros((slots, n))
    used, capacity, moves = np.zeros((slots, n)), np.zeros((slots, n)), np.zeros(slots)
    assigned, pairs = np.zeros((slots, n), np.int64), np.zeros(slots, np.int64)
    post = _Post(grouping, routers, late)

    for k in range(slots):
        begin, end = int(edges[k]), int(edges[k + 1])
        ids = stream.ids[begin:end]
        to = _route(routers, stream.hashes[ids], begin)
        start, finish = k * slot, (k + 1) * slot
        arrival = start + (np.arange(len(to)) + 0.5) * (slot / max(1, len(to)))
        reached, order = arrival, np.arange(len(to))
        if network is not None:
            reached = np.empty(len(to))
            _travel(arrival, to, begin, network.latency, network.seconds, channels, reached)
            order = np.argsort(reached, kind="stable")
        waited = np.zeros(n)
        _serve(arrival, reached, order, to, cluster.starts, cluster.rates, worked, done, waited)
        held.add(ids, to)

        of = (begin + np.arange(len(to))) % sources
        by_source = np.bincount(of * n + to, minlength=sources * n).reshape(sources, n)
        count = by_source.sum(axis=0)
        work = cluster.work(finish)
        capacity[k] = work - cluster.work(start)
        before = queue[k - 1] if k else np.zeros(n)
        assigned[k], pairs[k] = count, held.pairs
        queue[k] = np.maximum(0.0, done - work)
        some = count > 0
        latency[k, some] = waited[some] / count[some]
        with np.errstate(divide="ignore", invalid="ignore"):
            used[k] = np.where(count > 0, count / capacity[k], 0.0)
            felt = used[k] if sense == "assigned" else (count + before) / capacity[k]
        served = np.minimum(count + before, capacity[k])
        busy = slot * served / np.maximum(capacity[k], 1e-9)
        heard = None
        if grouping.follows_load and not isinstance(grouping, Consistent | Weighted):
            heard = grouping.feedback(InstanceLoad(k, served, busy, waited))
        for router in routers:
            if isinstance(router, WeightedRouter):
                router.observe(latency[k], slot=k, busy=np.minimum(used[k], 1.0) * slot)
            elif heard is not None:
                router.listen(heard)
        moves[k] = post.deliver(k, np.nan_to_num(felt, nan=0.0, posinf=np.inf), by_source)

    owned = routers[0].owned() if isinstance(routers[0], ConsistentRouter) else None
    time = np.arange(1, slots + 1, dtype=np.float64) * slot
    return Result(
        grouping.name, time, edges[1:], assigned, queue, latency, used, pairs, moves, capacity / slot, owned
    )


def router_of(grouping: Grouping, n: int, seed: int, source: int, network: SimulatedNetwork | None) -> Router:
    """A source's router, with distances if it takes them and there are any."""
    if isinstance(grouping, Weighted) and network is not None:
        return grouping.router(n, seed=seed, source=source, distances=network.distance[source])
    return grouping.router(n, seed=seed, source=source)


class _Post:
    """Carries the workers' signals to those sources that listen, each with its own delay."""

    def __init__(self, grouping: Grouping, routers: list[Router], late: list[int]) -> None:
        self._grouping = grouping
        self._routers = [router for router in routers if isinstance(router, ConsistentRouter)]
        self._late = late
        self._sent: deque[tuple[NDArray[np.int8], NDArray[np.int64]]] = deque(maxlen=max(late) + 1)

    def deliver(self, k: int, felt: NDArray[np.float64], by_source: NDArray[np.int64]) -> float:
        if not isinstance(self._grouping, Consistent):
            return 0.0
        self._sent.appendleft((self._grouping.signals(felt), by_source))
        moved = 0
        for s, router in enumerate(self._routers):
            if k >= self._late[s]:
                signals, acknowledged = self._sent[self._late[s]]
                moved += router.feedback(signals, np.where(acknowledged[s] > 0, k - self._late[s], -1))
        return moved / len(self._routers)


def _slot_edges(messages: int, arrivals: Arrivals, slot: float) -> NDArray[np.int64]:
    """Index of the first message of each slot, until the stream has ended."""
    slots = 64
    while arrivals.before(slots * slot) < messages:
        slots *= 2
        if slots > 1 << 24:
            raise ValueError("the stream does not arrive within 16 million slots: raise the rate or the slot")
    edges = np.minimum(arrivals.before(np.arange(slots + 1) * slot), messages)
    return edges[: int(np.searchsorted(edges, messages)) + 1]


def _route(routers: list[Router], keys: NDArray[np.uint64], begin: int) -> NDArray[np.int32]:
    if len(routers) == 1:
        return routers[0].route(keys)
    to = np.empty(len(keys), dtype=np.int32)
    for s, router in enumerate(routers):
        mine = slice((s - begin) % len(routers), None, len(routers))
        to[mine] = router.route(np.ascontiguousarray(keys[mine]))
    return to


@nb.njit(cache=True)
def _travel(sent, to, begin, latency, seconds, channels, reached):  # type: ignore[no-untyped-def]
    sources = len(channels)
    for i in range(len(sent)):
        s = (begin + i) % sources
        w = to[i]
        channels[s, w] = max(channels[s, w], sent[i]) + seconds[s, w]
        reached[i] = channels[s, w] + latency[s, w]


@nb.njit(cache=True)
def _serve(sent, reached, order, to, starts, rates, worked, done, waited):  # type: ignore[no-untyped-def]
    """Exact first-come-first-served queues under piecewise constant capacity.

    ``done[w]`` is how much work worker w must have had the capacity for since time 0 when its queue is empty:
    in these terms time flows evenly whatever the capacities do.
    """
    phases = len(starts)
    phase = 0
    for j in range(len(order)):
        i = order[j]
        t = reached[i]
        while phase + 1 < phases and starts[phase + 1] <= t:
            phase += 1
        w = to[i]
        now = worked[phase, w] + (t - starts[phase]) * rates[phase, w]
        done[w] = max(done[w], now) + 1.0
        p = phase
        while p + 1 < phases and worked[p + 1, w] < done[w]:
            p += 1
        if rates[p, w] > 0.0:
            finish = starts[p] + (done[w] - worked[p, w]) / rates[p, w]
        else:
            finish = np.inf
        waited[w] += finish - sent[i]
