"""From a snapshot of the statistics to a proposal for new tables: the expensive step, by itself.

:func:`propose` is a pure function, so an engine can run it in the background while batches go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.hashing import hash_home
from weir.locality.config import Costs, Locality
from weir.locality.counts import PairCounts, count_keys, merge
from weir.locality.forecast import Balance, Forecast, Moving, Sizes, forecast
from weir.locality.former import BACK, KeyServers
from weir.locality.graph import KeyGraph
from weir.locality.key_affinity import Rows, strongest
from weir.locality.key_homes import Where
from weir.locality.partition import partition, relabel
from weir.locality.stats import Edge
from weir.network.locator import closeness

Servers = NDArray[np.int32]
STARTS = 24  # of a fresh partition
# edges that all starts may look at where a young stream, or one on new servers, waits for its homes
HASTY_EFFORT = 100_000
SURE = 2.0  # standard deviations by which a candidate of newer pairs must be ahead: it is made of fewer rows


@dataclass(frozen=True)
class Snapshot:
    """Everything that a proposal depends on."""

    config: Locality
    servers: int
    version: int
    keys: Sequence[PairCounts]  # per operator: remembered keys and their recent rows, sorted by hash
    # per operator: the table's server of each of those keys, −1 where its hash decides
    homes: Sequence[Servers]
    # per edge: pairs to learn from, and the latest batches' pairs, which judge what was learnt
    history: Mapping[Edge, PairCounts]
    recent: Mapping[Edge, PairCounts]
    batches: int  # how many batches recent holds
    shares: NDArray[np.float64] | None = None
    row_seconds: NDArray[np.float64] | None = None  # per operator, where load is time
    sizes: Sizes = field(default_factory=Sizes)  # of rows and states, as measured
    # per edge: the pairs of the history with older rows counted less, if at all: better where affinity changes soon
    newer: Mapping[Edge, PairCounts] = field(default_factory=dict)
    # whether nothing is placed yet, whether a fresh partition is to be tried beside the refined one,
    # and whether the stream is so young that moving is cheap
    first: bool = False
    relief: float = 0.1  # how far a server must be beyond its limit for its relief to be worth moves
    judged: bool = False  # whether the first tables, too, must pay on rows that they were not made from
    fresh: bool = False
    early: bool = False
    resized: bool = False  # whether the servers have changed since the last proposal
    # per operator: the server of each key group, where keys without an entry live by these
    key_groups: Sequence[Servers | None] = ()
    # operators whose keys live where a given function says: vertices that attract others and never move
    fixed: Mapping[int, Where] = field(default_factory=dict)
    # operators that keep no state: giving their keys another home moves nothing
    free: frozenset[int] = frozenset()
    # where some keys lived before the last tables, if it is to be judged whether to take these back
    former: KeyServers = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """New homes for keys, per operator, and the forecast for them."""

    version: int
    n: int
    method: str
    hashes: Sequence[NDArray[np.uint64]]
    servers: Sequence[Servers]
    affinity: Sequence[tuple[Servers, Rows]]  # per operator: what keys are drawn to once all have moved
    forecast: Forecast | None
    adopt: bool
    seconds: float


def propose(snapshot: Snapshot) -> Proposal:
    """Partition the keys by older pairs, judge the result by recent ones, and return the best candidate.

    Candidates are the present assignment, refined by the pairs of the history; where the snapshot asks for it, or
    nothing is placed yet, a fresh partition numbered after the servers that hold most of each part; and the present
    assignment refined by the newer pairs, which wins only where recent rows clearly say so. The one adopted is
    refined once more with the recent rows included; the forecast stays that of the candidate that had not seen them.
    """
    began = time.perf_counter()
    if snapshot.former:
        return _way_back(snapshot, began)
    config, n, costs = snapshot.config, snapshot.servers, snapshot.config.forecast or Costs()
    blind = snapshot.first and not snapshot.judged
    learnt = snapshot.recent if blind else snapshot.history
    graph = KeyGraph.build(list(snapshot.keys), learnt).weightless(snapshot.fixed)
    warm, live = _present(snapshot, graph)
    held = _held(snapshot, graph, live)
    prices = snapshot.sizes.of_rows(graph.operators, costs)

    def cut(graph: KeyGraph, held: Servers | None, **more: Any) -> Servers:
        more |= {"alpha": config.alpha, "seed": config.seed + snapshot.version, "shares": snapshot.shares}
        tree: Any = config.hierarchy
        priced = graph.priced(prices).together(snapshot.row_seconds)
        return partition(priced, n, fixed=held, hierarchy=tree, **more)

    other = None if config.partitioner == "multilevel" else config.partitioner
    refines = not snapshot.first and other is None
    candidates: list[tuple[str, Servers]] = []
    if refines:
        candidates.append(("refine", cut(graph, held, warm=warm, stay_bonus=config.stay_bonus)))
    if not candidates or snapshot.fresh:
        fresh = cut(graph, held, partitioner=other, starts=_starts(snapshot, graph))
        if config.hierarchy is None and held is None:
            fresh = relabel(fresh, live, None, n, snapshot.shares)
        candidates.append(("fresh", fresh))
    judged = [(_judge(snapshot, graph, live, parts), method, parts) for method, parts in candidates]
    # of two that pay, moving more must gain more; where nothing is placed yet, nothing is lost by moving
    price = costs.min_gain / max(1, sum(map(len, snapshot.keys))) if snapshot.judged and refines else 0.0
    best, method, parts = max(judged, key=lambda c: (c[0].pays, c[0].locality_then - price * c[0].moved))
    if refines and any(len(pairs.left) for pairs in snapshot.newer.values()):
        graph2 = KeyGraph.build(list(snapshot.keys), snapshot.newer).weightless(snapshot.fixed)
        warm2, live2 = _present(snapshot, graph2)
        newer = cut(graph2, _held(snapshot, graph2, live2), warm=warm2, stay_bonus=config.stay_bonus)
        verdict = _judge(snapshot, graph2, live2, newer)
        rival = _carry(graph, parts, graph2, live2) if best.pays else live2
        if verdict.pays and _judge(snapshot, graph2, live2, newer, rival).deviations > SURE:
            best, method, parts, graph, learnt = verdict, "newer", newer, graph2, snapshot.newer
    adopt = config.forecast is None or best.pays or blind
    if adopt and not blind and other is None:
        whole = {e: merge([learnt[e], snapshot.recent[e]], config.capacity) for e in learnt}
        graph2 = KeyGraph.build(list(snapshot.keys), whole).weightless(snapshot.fixed)
        warm, live = _present(snapshot, graph2)
        start = _carry(graph, parts, graph2, warm)
        held = _held(snapshot, graph2, live)
        graph, parts = graph2, cut(graph2, held, warm=start, stay_bonus=config.stay_bonus)
    return _proposal(snapshot, graph, parts, method, best, adopt, began)


def _way_back(snapshot: Snapshot, began: float) -> Proposal:
    """Return a proposal to take the last tables back, judged by the rows that came under them."""
    graph = KeyGraph.build(list(snapshot.keys), snapshot.history).weightless(snapshot.fixed)
    _, live = _present(snapshot, graph)
    parts = live.copy()
    for o, (keys, servers) in snapshot.former.items():
        at = graph.vertices(o, keys)
        parts[at[at >= 0]] = servers[at >= 0]
    verdict = _judge(snapshot, graph, live, parts)
    return _proposal(snapshot, graph, parts, BACK, verdict, verdict.pays, began)


def _proposal(
    snapshot: Snapshot,
    graph: KeyGraph,
    parts: Servers,
    method: str,
    verdict: Forecast,
    adopt: bool,
    began: float,
) -> Proposal:
    of_each = [slice(a, b) for a, b in pairwise(graph.starts.tolist())]
    servers, rows = strongest(graph.indptr, parts[graph.indices], graph.edge_weight)
    return Proposal(
        snapshot.version,
        snapshot.servers,
        method,
        [graph.key[mine] for mine in of_each],
        [parts[mine] for mine in of_each],
        [(servers[mine], rows[mine]) for mine in of_each],
        verdict if snapshot.config.forecast is not None else None,
        adopt,
        time.perf_counter() - began,
    )


def _starts(snapshot: Snapshot, graph: KeyGraph) -> int:
    """Return how often to start: less often on large graphs where keys wait for their first homes."""
    if not (snapshot.early or snapshot.resized):
        return STARTS
    return int(np.clip(HASTY_EFFORT // (len(graph.indices) + len(graph) + 1), 2, STARTS))


def _present(snapshot: Snapshot, graph: KeyGraph) -> tuple[Servers, Servers]:
    """Return the server of each vertex by table (−1: not in it), and in fact (by hash where not in it)."""
    warm = np.full(len(graph), -1, np.int32)
    for o, (counted, homes) in enumerate(zip(snapshot.keys, snapshot.homes, strict=True)):
        at = graph.vertices(o, counted.left)
        warm[at[at >= 0]] = homes[at >= 0]
    for o, where in snapshot.fixed.items():
        a, b = graph.starts[o], graph.starts[o + 1]
        warm[a:b] = where(graph.key[a:b], snapshot.servers)
    live = warm.copy()
    for o in range(graph.operators):
        mine = slice(graph.starts[o], graph.starts[o + 1])
        key_groups = snapshot.key_groups[o] if snapshot.key_groups else None
        live[mine] = np.where(
            warm[mine] >= 0, warm[mine], hash_home(graph.key[mine], snapshot.servers, key_groups)
        )
    return warm, live


def _held(snapshot: Snapshot, graph: KeyGraph, live: Servers) -> Servers | None:
    """Return the server of each vertex that may not move, −1 for all others; None if all may."""
    if not snapshot.fixed:
        return None
    return np.where(graph.among(snapshot.fixed), live, -1).astype(np.int32)


def _carry(old: KeyGraph, parts: Servers, new: KeyGraph, otherwise: Servers) -> Servers:
    out = otherwise.copy()
    for o in range(old.operators):
        a, b = old.starts[o], old.starts[o + 1]
        at = new.vertices(o, old.key[a:b])
        out[at[at >= 0]] = parts[a:b][at >= 0]
    return out


def _judge(
    snapshot: Snapshot, graph: KeyGraph, live: Servers, parts: Servers, rival: Servers | None = None
) -> Forecast:
    """Compare an assignment with the present one, ``live``, or with a rival, by the recent rows."""
    config, n = snapshot.config, snapshot.servers
    # keys that are not in the history were placed by the same rows that judge here: they would favour the present
    # assignment, and under any other they are placed by their ties as well
    rows = {}
    for (a, b), p in snapshot.recent.items():
        old = (graph.vertices(a, p.left) >= 0) & (graph.vertices(b, p.right) >= 0)
        rows[a, b] = PairCounts(p.left[old], p.right[old], p.count[old])
    seen = []
    for o in range(len(snapshot.keys)):
        sides = [count_keys(p.left, p.count) for (a, _), p in rows.items() if a == o]
        ins = [count_keys(p.right, p.count) for (_, b), p in rows.items() if b == o]
        seen.append(max([*ins, *sides], key=lambda c: c.total, default=snapshot.keys[o]))
    held_out = KeyGraph.build(seen, rows).weightless(snapshot.fixed)
    now = _present(snapshot, held_out)[1]
    costs = config.forecast or Costs()
    balance, shares = graph.together(snapshot.row_seconds), snapshot.shares
    worsens = balance.overload(parts, n, shares) > balance.overload(live, n, shares) + 0.1
    moving = (parts != live) & ~graph.among(snapshot.free)
    state_bytes = np.array([snapshot.sizes.of_state(o, costs) for o in range(graph.operators)])
    far = None
    if config.hierarchy is not None and config.hierarchy != "hosts":
        near = closeness(config.hierarchy, n)
        far = 1 - near / near.max()
    return forecast(
        held_out,
        now if rival is None else _carry(graph, rival, held_out, now),
        _carry(graph, parts, held_out, now),
        n,
        Moving(
            int(moving.sum()),
            int((parts != live).sum()),
            sum(map(len, snapshot.keys)),
            float(state_bytes[graph.operator[moving]].sum()),
        ),
        batches=snapshot.batches,
        period=config.batches,
        costs=replace(costs, min_gain=0.0) if snapshot.early and not snapshot.judged else costs,
        judged_by=Balance(config.alpha, snapshot.shares, worsens, snapshot.row_seconds, snapshot.relief),
        sizes=snapshot.sizes,
        far=far,
    )
