"""A chain of keyed operators, batch by batch, under any grouping: also under those that learn.

Every server runs an instance of every operator, as in the engine. A batch lasts as long as its busiest server. This
runs the very code of the engine's control: the manager, its proposals, routers, and what they hear of load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.locality.capacity import slowed
from weir.locality.manager import LocalityManager
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats
from weir.network.distance import Distance, Place, distances
from weir.network.locator import tree_of
from weir.routing.base import Grouping, InstanceLoad, OperatorTraits, PlannedRouting, Router

PERIODS = (
    8  # in a batch, after which routers at the source hear of load, and all of servers that have become slow
)

Batch = Sequence[NDArray[np.uint64]]  # the keys of every row, operator by operator


@dataclass(frozen=True)
class Case:
    """What comes, and on what it runs.

    Attributes
    ----------
    batches
        Per batch: an array of keys for each operator, all of the same length.
    speeds
        Per batch, the speed of every server.
    mergeable
        Whether the operators merge.
    work
        Seconds that a row takes of an operator at speed 1.
    leave
        Seconds of both servers' time that a row costs which leaves its server.
    places
        The host and rack of every server; without them, servers are joined by a network that costs nothing.
    link
        Seconds for which a row holds its host's link, in one direction, on the way to another host. A rack's uplink,
        which all its hosts share, is held ten times as long.
    """

    batches: Sequence[Batch]
    speeds: NDArray[np.float64]
    mergeable: bool = True
    work: float = 5e-4
    leave: float = 0.0
    places: Sequence[Place] = ()
    link: float = 0.0

    @property
    def servers(self) -> int:
        return self.speeds.shape[1]


@dataclass(frozen=True)
class ChainRun:
    """What became of each batch."""

    seconds: NDArray[np.float64]
    rows: NDArray[np.int64]
    locality: NDArray[np.float64]  # of rows between operators
    moved: int
    changes: int

    def rate(self, settled: float = 0.5) -> float:
        """Return rows per second in the last part of the run."""
        first = int(len(self.rows) * (1 - settled))
        return float(self.rows[first:].sum() / self.seconds[first:].sum())


def bound(case: Case) -> NDArray[np.float64]:
    """Return the least seconds that any routing can need for each batch: all servers busy, or the hottest key.

    Rows that leave cost nothing here and hold no link, keys that merge may be anywhere, and nothing has to be learnt.
    """
    least = []
    for keys, speeds in zip(case.batches, case.speeds, strict=True):
        spread = len(keys[0]) * len(keys) * case.work / speeds.sum()
        hottest = max(np.unique(k, return_counts=True)[1].max() for k in keys) * case.work / speeds.max()
        least.append(spread if case.mergeable else max(spread, hottest))
    return np.array(least)


def run_chain(case: Case, routing: Any, *, sources: int = 2, seed: int = 0) -> ChainRun:
    """Run a case under a routing, as ``start(routing=…)`` takes it.

    >>> rng = np.random.default_rng(0)
    >>> keys = [rng.integers(2**64 - 1, size=4000, dtype=np.uint64) for _ in range(2)]
    >>> even = Case([keys] * 3, np.ones((3, 4)))
    >>> import weir
    >>> bool(run_chain(even, weir.Hash()).rate() / (len(keys[0]) / bound(even)[0]) > 0.9)
    True
    """
    chain = _Chain(case, routing, sources, seed)
    return chain.run()


class _Chain:
    def __init__(self, case: Case, routing: Any, sources: int, seed: int) -> None:
        self.case, self.sources, self.seed, self.n = case, sources, seed, case.servers
        self.operators = range(len(case.batches[0]))
        names = [f"operator {o}" for o in self.operators]
        self.declared: list[Grouping] = [
            routing.for_operator(OperatorTraits(name, mergeable=case.mergeable)) for name in names
        ]
        self.manager: LocalityManager | None = None
        settings = self.declared[0].settings
        if self.declared[0].learnt:
            splits = [o for o in self.operators if settings.split_hot and self.declared[o].splits_keys]
            edges = list(pairwise(names))
            self.manager = LocalityManager(settings, names, edges, self.n, splits=splits)
        self.far = distances(case.places, case.places) if case.places else None
        if self.manager is not None and settings.hierarchy == "hosts":
            self.manager.set_hierarchy(tree_of(case.places))
        self.routers: dict[tuple[int, int], Router] = {}
        self.heard: dict[int, Any] = {}
        self.pace = np.full(self.n, np.nan)  # seconds per row of the first operator in the last batch

    def run(self) -> ChainRun:
        seconds, locality, moved, changes = [], [], 0, 0
        for number, (keys, speeds) in enumerate(zip(self.case.batches, self.case.speeds, strict=True)):
            plan = None if self.manager is None else self.manager.plan_next()
            if plan is not None:
                moved, changes = moved + plan.moved, changes + (plan.moved > 0)
            counting = self.manager is not None and self.manager.counting
            self._open(restart=number > 0)
            busy, rows, local, held = self._batch(number, keys, speeds)
            seconds.append(max(sum(busy.values()).max(), held))  # type: ignore[union-attr]
            locality.append(local)
            if self.manager is not None:
                if number:
                    self.manager.observe_load(rows, busy)
                if counting:
                    pairs = {(o, o + 1): (keys[o], keys[o + 1]) for o in self.operators[:-1]}
                    self.manager.observe(BatchStats.of(dict(enumerate(keys)), pairs))
                else:
                    self.manager.pass_over()
                if self.manager.due:
                    self.manager.offer(propose(self.manager.snapshot()))
        lengths = np.array([len(keys[0]) for keys in self.case.batches])
        return ChainRun(np.array(seconds), lengths, np.array(locality), moved, changes)

    def _open(self, restart: bool) -> None:
        """Make the routers of a batch: they go on from what those of the last one counted and heard."""
        for o in self.operators:
            grouping = self.declared[o]
            if self.manager is not None:
                hot, spare = self.manager.hot.get(o), self.manager.spare.get(o, 0.0)
                grouping = grouping.in_force(PlannedRouting(self.manager.table(o), hot, spare))
            for s in range(self.sources if o == 0 else self.n):
                far = self.far[s] if o and self.far is not None and grouping.uses_distances else None
                local = -1 if o == 0 else s
                router = grouping.router(self.n, seed=self.seed + o, source=s, local=local, distances=far)
                if restart:
                    router.restore(self.routers[o, s].counters())
                    if o in self.heard:
                        router.listen(self.heard[o])
                self.routers[o, s] = router

    def _batch(
        self, number: int, keys: Batch, speeds: NDArray[np.float64]
    ) -> tuple[dict[int, Any], dict[int, Any], float, float]:
        """Route a batch; return busy seconds, rows, locality, and for how long the busiest link is held."""
        sent = np.zeros((self.n, self.n))
        busy = {o: np.zeros(self.n) for o in self.operators}
        rows = {o: np.zeros(self.n) for o in self.operators}
        stayed = total = 0
        for period, part in enumerate(np.array_split(np.arange(len(keys[0])), PERIODS)):
            at = (part % self.sources).astype(np.int32)
            for o in self.operators:
                to = np.empty(len(part), np.int32)
                for s in np.unique(at).tolist():
                    mine = at == s
                    to[mine] = self.routers[o, s].route(np.ascontiguousarray(keys[o][part[mine]]))
                leaves = np.ones(len(part), bool) if o == 0 else to != at
                if o:
                    stayed, total = stayed + int((~leaves).sum()), total + len(part)
                    np.add.at(sent, (at, to), 1)
                    busy[o - 1] += np.bincount(at[leaves], minlength=self.n) * self.case.leave / speeds
                arrived = np.bincount(to, minlength=self.n)
                rows[o] += arrived
                busy[o] += arrived * self.case.work / speeds
                busy[o] += np.bincount(to[leaves], minlength=self.n) * self.case.leave / speeds
                at = to
            if self.declared[0].follows_load and period < PERIODS - 1:
                load = InstanceLoad(number * PERIODS + period, rows[0], busy[0], rows[0] * 0, number > 0)
                self._tell(0, load, self.sources)
                if slowed(busy[0] / np.maximum(1, rows[0]), self.pace):
                    for router in self.routers.values():
                        router.server_slowed()
        self.pace = busy[0] / np.maximum(1, rows[0])
        for o in self.operators:
            load = InstanceLoad((number + 1) * PERIODS - 1, rows[o], busy[o], rows[o] * 0, number > 0)
            heard = self.declared[o].feedback(load)
            if heard is not None:
                self.heard[o] = heard
        return busy, rows, stayed / total if total else 1.0, self._held(sent)

    def _held(self, sent: NDArray[np.float64]) -> float:
        """Return for how long the busiest link is held by rows from (first axis) to (second axis) servers."""
        if self.far is None:
            return 0.0
        hosts, racks = [p.host for p in self.case.places], [p.rack for p in self.case.places]
        ends = [(hosts, Distance.RACK, self.case.link), (racks, Distance.ANY, 10 * self.case.link)]
        held = 0.0
        for names, far, seconds in ends:
            crossing = np.where(self.far >= far, sent, 0)
            at = np.unique(names, return_inverse=True)[1]
            held = max(held, *(seconds * np.bincount(at, crossing.sum(axis=axis)).max() for axis in (0, 1)))
        return held

    def _tell(self, operator: int, load: InstanceLoad, routers: int) -> None:
        heard = self.declared[operator].feedback(load)
        for s in range(routers if heard is not None else 0):
            self.routers[operator, s].listen(heard)
