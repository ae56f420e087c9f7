"""A recorded stream, routed again: what each way of deciding where keys live would have given.

Rows come in micro-batches, in order of time. Where a row's keys live is decided before its batch is seen; only
then do the rows enter the statistics. The manager is the one that the engine uses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weir.hashing import key_group
from weir.locality.config import Locality
from weir.locality.counts import PairCounts, count_keys, count_pairs, merge
from weir.locality.graph import KeyGraph
from weir.locality.manager import LocalityManager, Plan
from weir.locality.partition import partition, relabel
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats
from weir.routing.table import Table
from weir_evaluation.locality.space_saving import PairSpaceSaving
from weir_evaluation.partition import Metis

Columns = Sequence[NDArray[np.uint64]]
ServerAffinity = Sequence[NDArray[np.int32]]


@dataclass(frozen=True)
class RecordedStream:
    """A chain of keys per row (hashes, one array per operator), cut into periods and these into batches.

    Attributes
    ----------
    keys
        One array of key hashes per operator, rows in order of time.
    periods
        Row numbers at which periods begin, and the end.
    batches
        Per period: row numbers at which its batches begin, and its end.
    """

    keys: Columns
    periods: NDArray[np.int64]
    batches: Sequence[NDArray[np.int64]]

    @classmethod
    def cut(cls, keys: Columns, when: NDArray[np.int64], period: int, batches: int) -> RecordedStream:
        """Cuts rows sorted by time into periods of that length, and each into that many slices of time.

        >>> stream = RecordedStream.cut([np.zeros(4, np.uint64)], np.array([0, 1, 11, 12]), period=10, batches=2)
        >>> stream.periods.tolist(), [b.tolist() for b in stream.batches]
        ([0, 2, 4], [[0, 2], [2, 4]])
        """
        if len(when) and (np.diff(when) < 0).any():
            raise ValueError("rows must be sorted by time")
        if not len(when):
            return cls(keys, np.zeros(1, np.int64), [])
        edges = np.arange(when[0], when[-1] + period + 1, period)
        periods, slices = [0], []
        for a, b in pairwise(edges):
            ticks = np.linspace(a, b, batches + 1)
            rows = np.unique(np.searchsorted(when, ticks, side="left"))
            if rows[-1] > rows[0]:
                periods.append(int(rows[-1]))
                slices.append(rows)
        return cls(keys, np.array(periods), slices)

    def __len__(self) -> int:
        return len(self.batches)

    def rows(self, first: int, last: int) -> list[NDArray[np.uint64]]:
        return [k[first:last] for k in self.keys]


@dataclass
class ReplayResult:
    """What one method gave, period by period.

    Attributes
    ----------
    locality
        Share of the hops that stayed on their server.
    imbalance
        Per operator: busiest server over average.
    moved
        Keys whose state changed servers, as a share of the keys that have any.
    table
        Entries in all tables at the end of the period.
    plan_seconds
        Time spent deciding.
    """

    locality: list[float] = field(default_factory=list)
    imbalance: list[list[float]] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    plan_seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def summary(self, names: Sequence[str], skip: int = 1) -> dict[str, object]:
        """Means over the periods after the first ``skip``, in which everybody learns."""
        imbalance = np.array(self.imbalance[skip:])

        def mean(values: Sequence[float]) -> float:
            return float(np.mean(values[skip:])) if len(values) > skip else 0.0

        return {
            "locality": mean(self.locality),
            "imbalance": dict(zip(names, imbalance.mean(axis=0).tolist(), strict=True)),
            "imbalance_worst": dict(zip(names, imbalance.max(axis=0).tolist(), strict=True)),
            "moved": mean(self.moved),
            "table": self.table[-1],
            "plan_seconds": mean(self.plan_seconds),
        }


class _Meter:
    def __init__(self, operators: int, n: int) -> None:
        self.n = n
        self.load = np.zeros((operators, n))
        self.local = self.hops = 0

    def add(self, homes: ServerAffinity) -> None:
        for o, home in enumerate(homes):
            self.load[o] += np.bincount(home, minlength=self.n)
        for a, b in pairwise(homes):
            self.local += int((a == b).sum())
            self.hops += len(a)

    def close(self, out: ReplayResult, moved: float, table: int, seconds: float) -> None:
        out.locality.append(self.local / max(1, self.hops))
        out.imbalance.append((self.load.max(axis=1) / np.maximum(self.load.mean(axis=1), 1e-12)).tolist())
        out.moved.append(moved)
        out.table.append(table)
        out.plan_seconds.append(seconds)
        out.rows.append(self.hops)


def replay_weir(
    stream: RecordedStream, n: int, config: Locality, progress: Callable[[int], None] = lambda _: None
) -> tuple[ReplayResult, LocalityManager]:
    """The manager, batch by batch.

    With ``new_keys="first_seen"``, a key that nobody has met is processed, in its first batch, wherever its rows
    are; its parts are merged at the home it then gets. That is right for operators whose states merge. With
    ``look_ahead``, the manager hears of the keys of a batch before it is routed.
    """
    operators = [str(o) for o in range(len(stream.keys))]
    edges = list(pairwise(range(len(stream.keys))))
    manager = LocalityManager(config, operators, edges, n)
    out = ReplayResult()
    known: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64) for _ in operators]
    for period, cuts in enumerate(stream.batches):
        meter, moved, seconds = _Meter(len(operators), n), 0, 0.0
        for first, last in pairwise(cuts):
            rows = stream.rows(first, last)
            pairs = {(a, b): (rows[a], rows[b]) for a, b in edges}
            stats = BatchStats.of(dict(enumerate(rows)), pairs)
            began = time.perf_counter()
            looks = manager.foresight.active
            if looks:
                manager.look_ahead(stats)
                plan = manager.plan_next()
                moved += plan.moved if plan else 0
            seconds += time.perf_counter() - began
            homes = [manager.route(o, keys) for o, keys in enumerate(rows)]
            started: list[NDArray[np.bool_]] = []
            if config.new_keys == "first_seen":
                # a new key starts on every server that sees it; the parts are merged at its home afterwards
                for o in range(1, len(rows)):
                    started.append(~manager.knows(o, rows[o]))
                    homes[o] = np.where(started[-1], homes[o - 1], homes[o])
            meter.add(homes)
            began = time.perf_counter()
            manager.observe(stats)
            if manager.due:
                manager.offer(propose(manager.snapshot()))
            # with a look ahead, a batch is planned once its keys are known
            plan = None if manager.foresight.active else manager.plan_next()
            seconds += time.perf_counter() - began
            moved += plan.moved if plan else 0
            for o, new in enumerate(started, start=1):
                moved += _merged(manager, o, rows[o][new], homes[o][new], plan)
        states = 0
        for o in range(len(operators)):
            known[o] = np.union1d(known[o], stream.keys[o][cuts[0] : cuts[-1]])
            states += len(known[o])
        table = sum(len(manager.table(o)) for o in range(len(operators)))
        meter.close(out, moved / states, table, seconds)
        progress(period)
    return out, manager


def _merged(
    manager: LocalityManager,
    operator: int,
    keys: NDArray[np.uint64],
    where: NDArray[np.int32],
    plan: Plan | None,
) -> int:
    """Parts of new keys that travelled to be merged, less what the plan took for moves from their hash's server."""
    parts = count_pairs(keys, where.astype(np.uint64))
    away = int((manager.route(operator, parts.left) != parts.right.astype(np.int32)).sum())
    if plan is None or operator not in plan.moves:
        return away
    return away - int(np.isin(plan.moves[operator].hashes, parts.left).sum())


def _tables(graph: KeyGraph, parts: NDArray[np.int32], n: int) -> list[Table]:
    return [Table(graph.key[a:b], parts[a:b], n, version=1) for a, b in pairwise(graph.starts.tolist())]


def _graph(rows: Columns) -> KeyGraph:
    pairs = {(o, o + 1): count_pairs(a, b) for o, (a, b) in enumerate(pairwise(rows))}
    return KeyGraph.build([count_keys(k) for k in rows], pairs)


def _by_table(tables: Sequence[Table] | None, rows: Columns, n: int) -> ServerAffinity:
    if tables is None:
        return [key_group(k, n) for k in rows]
    return [t.route(k) for t, k in zip(tables, rows, strict=True)]


def replay_tables(
    stream: RecordedStream,
    n: int,
    method: str,
    *,
    alpha: float = 1.03,
    capacity: int = 1_000_000,
    seed: int = 0,
) -> ReplayResult:
    """The ways without a manager, period by period.

    ``"hash"``: no table. ``"static"``: one table, from exact counts of the first period. ``"paper"``: pairs
    counted by SpaceSaving at every instance, METIS after every period, counters reset, hash for keys not in
    the table. ``"paper_often"``: the same after every batch, with what the last period's length of batches counted.
    ``"bound"``: each period routed by the table computed from that very period.
    """
    out = ReplayResult()
    tables: list[Table] | None = None
    known: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64) for _ in stream.keys]
    recent: deque[tuple[Columns, ServerAffinity]] = deque(maxlen=1)
    for period, cuts in enumerate(stream.batches):
        if method == "paper_often":
            recent = deque(recent, maxlen=len(cuts) - 1)
        else:
            cuts = cuts[[0, -1]]
        meter, moved, seconds = _Meter(len(stream.keys), n), 0, 0.0
        for first, last in pairwise(cuts.tolist()):
            rows, before = stream.rows(first, last), tables
            began = time.perf_counter()
            if method == "bound":
                tables = _partitioned(_graph(rows), n, alpha, seed)
            seconds += time.perf_counter() - began
            homes = _by_table(tables, rows, n)
            meter.add(homes)
            recent.append((rows, homes))
            began = time.perf_counter()
            if method == "static" and period == 0:
                tables = _partitioned(_graph(rows), n, alpha, seed)
            elif method.startswith("paper"):
                seen, where = (
                    [np.concatenate(parts) for parts in zip(*(one[side] for one in recent), strict=True)]
                    for side in (0, 1)
                )
                graph = _sketched(seen, where, n, capacity)
                parts = partition(graph, n, partitioner=Metis(), alpha=alpha, seed=seed)
                live = np.concatenate(
                    _by_table(tables, [graph.key[a:b] for a, b in pairwise(graph.starts.tolist())], n)
                )
                tables = _tables(graph, relabel(parts, live, graph.weight, n), n)
            seconds += time.perf_counter() - began
            for o, keys in enumerate(rows):
                known[o] = np.union1d(known[o], keys)
                if tables is not before and method != "bound":
                    old, new = _by_table(before, known, n)[o], _by_table(tables, known, n)[o]
                    moved += int((old != new).sum())
        states = sum(map(len, known))
        meter.close(out, moved / states, sum(map(len, tables or [])), seconds)
    return out


def _partitioned(graph: KeyGraph, n: int, alpha: float, seed: int) -> list[Table]:
    return _tables(graph, partition(graph, n, partitioner=Metis(), alpha=alpha, seed=seed), n)


def _sketched(rows: Columns, homes: ServerAffinity, n: int, capacity: int) -> KeyGraph:
    pairs: dict[tuple[int, int], PairCounts] = {}
    for o, (a, b) in enumerate(pairwise(rows)):
        counted = []
        for server in range(n):
            here = homes[o] == server
            sketch = PairSpaceSaving(min(capacity, max(1, int(here.sum()))), canonical=False)
            sketch.observe(a[here], b[here])
            counted.append(sketch.counts())
        pairs[o, o + 1] = merge(counted)
    keys = []
    for o in range(len(rows)):
        sides = [count_keys(p.left, p.count) for (a, _), p in pairs.items() if a == o]
        sides += [count_keys(p.right, p.count) for (_, b), p in pairs.items() if b == o]
        keys.append(max(sides, key=lambda c: c.total))
    return KeyGraph.build(keys, pairs)
