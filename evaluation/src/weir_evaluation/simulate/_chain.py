"""The loop behind :func:`~weir_evaluation.simulate.pipeline.saturate`, and the arrays that it works on."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from weir.hashing import mixed
from weir.routing.base import Grouping, Router
from weir.routing.shuffle import Shuffle
from weir.routing.weighted import Weighted, WeightedRouter, take_share


class ChainEdge:
    """What the default grouping wants: a home per key, or everyone in turn."""

    def __init__(self, grouping: Grouping, routers: list[Router], hashes: NDArray[np.uint64]) -> None:
        plain = grouping.default if isinstance(grouping, Weighted) else grouping
        default = [r.default if isinstance(r, WeightedRouter) else r for r in routers]
        self.turn = np.zeros(len(routers), np.int64)
        self.homes = np.zeros(len(hashes), np.int32)
        if isinstance(plain, Shuffle):
            self.turn[:] = [r.counters()["next"][0] for r in default]
        elif plain.order_free and plain.keyed:
            self.homes = default[0].route(hashes)
        else:
            raise ValueError(
                f"a chain takes Shuffle or groupings by key alone (Hash, Table), got {plain.name}"
            )
        self.kind = 2 * isinstance(plain, Shuffle) + isinstance(grouping, Weighted)


class Shares:
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


class Flight:
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


class Seen:
    """Sums of the period, and of the whole run."""

    def __init__(self, depth: int, n: int) -> None:
        self.count = np.zeros((depth, n), np.int64)
        self.worked = np.zeros((depth, n))
        self.waited = np.zeros((depth, n))
        self.hops = np.zeros((depth, 4), np.int64)
        self.arrays = tuple(vars(self).values())
        self.busy = np.zeros((depth, n))
        self.assigned = np.zeros((depth, n), np.int64)


def report(routers: list[list[Router]], shares: Shares, seen: Seen) -> None:
    """The end of a period: every router that listens hears of the load."""
    some = seen.count > 0
    execution = np.divide(seen.worked, seen.count, out=np.full(some.shape, np.nan), where=some)
    waiting = np.divide(seen.waited, seen.count, out=np.zeros(some.shape), where=some)
    for k, row in enumerate(routers):
        shares.save(k, row)
        for router in row:
            if isinstance(router, WeightedRouter):
                router.observe(execution[k], waiting[k], busy=seen.worked[k])
        shares.load(k, row)
    seen.busy += seen.worked
    seen.assigned += seen.count
    for sums in (seen.count, seen.worked, seen.waited):
        sums[:] = 0


@nb.njit(cache=True)
def advance(  # type: ignore[no-untyped-def]
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
            drawn = mixed(salt + np.uint64(k), np.uint64(r)) >> np.uint64(11)
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
