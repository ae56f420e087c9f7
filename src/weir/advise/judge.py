"""Would it help? Tables learnt from one part of a recorded stream, judged by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.advise.counts import Counted
from weir.advise.score import Score
from weir.hashing import hash_columns, spark_mod
from weir.locality.config import Locality
from weir.locality.counts import PairCounts, merge
from weir.locality.graph import KeyGraph, within
from weir.locality.manager import LocalityManager
from weir.locality.partition import partition
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats
from weir.locality.table import RoutingTable

Tables = Sequence[RoutingTable]
_STARTS = 8
_HOT = 5  # keys named per operator
_PERIOD = 5  # slices between two reconfigurations of the live trial
STEPS = 9  # steps that :func:`judge` reports


@dataclass(frozen=True)
class Judge:
    """Learns and scores on one counted stream, for one number of servers."""

    counted: Counted
    servers: int
    alpha: float = 1.03
    capacity: int = 1_000_000
    seed: int = 0

    def learn(
        self, first: int, last: int, half_life: float | None = None, begin: Tables | None = None
    ) -> Tables:
        """Tables from the slices ``first`` … ``last − 1``; with a half-life, late ones count more.

        With ``begin``, those tables are refined instead of making new ones.
        """
        graph = self._graph(first, last, half_life)
        warm = None
        if begin is not None:
            cuts = list(pairwise(graph.starts.tolist()))
            warm = np.concatenate([t.find(graph.key[a:b]) for t, (a, b) in zip(begin, cuts, strict=True)])
        terms: dict[str, Any] = {"alpha": self.alpha, "seed": self.seed, "starts": _STARTS, "warm": warm}
        parts = partition(graph, self.servers, **terms)
        names = list(self.counted.operators)
        return [
            RoutingTable(graph.key[a:b], parts[a:b], self.servers, name, 1)
            for name, (a, b) in zip(names, pairwise(graph.starts.tolist()), strict=True)
        ]

    def _graph(self, first: int, last: int, half_life: float | None) -> KeyGraph:
        worth = [
            1.0 if half_life is None else 0.5 ** ((last - 1 - i) / half_life) for i in range(first, last)
        ]
        part = list(zip(self.counted.slices[first:last], worth, strict=True))

        def total(of: Callable[[BatchStats], PairCounts]) -> PairCounts:
            return merge([of(s).scaled(w) for s, w in part], self.capacity, self.seed)

        operators = range(len(self.counted.operators))
        keys = [total(lambda s, o=o: s.keys[o]) for o in operators]  # type: ignore[misc]
        pairs = {(o, o + 1): total(lambda s, o=o: s.pairs[o, o + 1]) for o in operators[:-1]}  # type: ignore[misc]
        return KeyGraph.build(keys, pairs)

    def score(self, tables: Tables | None, first: int, last: int) -> Score:
        """Scores the slices ``first`` … ``last − 1``, by hash where there is no table or it lacks a key.

        Rows whose pair was too rare to be kept count as hash would treat them: one in ``servers`` is local.
        """
        n, part = self.servers, self.counted.slices[first:last]

        def route(o: int, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
            return spark_mod(keys, n) if tables is None else tables[o].route(keys)

        operators = len(self.counted.operators)
        out = Score(np.zeros(operators - 1), 0.0, np.zeros((operators, n)))
        for s in part:
            rows, local, loads = s.rows[0], [], []
            for o, keys in s.keys.items():
                load = np.bincount(route(o, keys.left), weights=keys.count, minlength=n)
                loads.append(load + (rows - load.sum()) / n)
            for (a, b), pairs in s.pairs.items():
                here = route(a, pairs.left) == route(b, pairs.right)
                local.append(float(pairs.count[here].sum()) + (rows - pairs.total) / n)
            out += Score(np.array(local), rows, np.array(loads))
        return out

    def live(self, step: Callable[[], None]) -> list[Score]:
        """What the engine's own manager would have reached on each slice, each taken as one batch.

        A real query has more and smaller batches, so it places new keys earlier than this trial does.
        """
        n, names = self.servers, list(self.counted.operators)
        config = Locality(alpha=self.alpha, capacity=self.capacity, period=_PERIOD, seed=self.seed)
        manager = LocalityManager(config, names, list(pairwise(range(len(names)))), n)
        out = []
        for i, stats in enumerate(self.counted.slices):
            out.append(self.score([manager.table(o) for o in range(len(names))], i, i + 1))
            manager.observe(stats)
            if manager.due:
                manager.offer(propose(manager.snapshot()))
            manager.plan_next()
            step()
        return out

    def new_rows(self, before: int, first: int, last: int) -> list[float]:
        """Per operator: the share of rows in ``first`` … ``last − 1`` whose key no slice until ``before`` had."""
        out = []
        for o in range(len(self.counted.operators)):
            known = merge([s.keys[o] for s in self.counted.slices[:before]]).left
            part = merge([s.keys[o] for s in self.counted.slices[first:last]])
            out.append(float(part.count[~within(known, part.left)].sum()) / max(1.0, part.total))
        return out

    def hot_keys(self, first: int, last: int) -> list[dict[str, Any]]:
        """Per operator: its heaviest keys, readable, with their shares, and the imbalance they can't go below."""
        out = []
        for o, name in enumerate(self.counted.operators):
            part = self.counted.slices[first:last]
            counts, rows = merge([s.keys[o] for s in part]), sum(s.rows[o] for s in part)
            top = np.lexsort((counts.left, -counts.count))[:_HOT]
            texts = self._names(o, counts.left[top])
            shares = (counts.count[top] / rows).tolist()
            keys = [{"key": text, "share": share} for text, share in zip(texts, shares, strict=True)]
            floor = max(1.0, keys[0]["share"] * self.servers) if keys else 1.0
            out.append({"operator": name, "keys": keys, "floor": floor})
        return out

    def _names(self, o: int, hashes: NDArray[np.uint64]) -> list[str]:
        """Keys as people write them; a key too rare to be kept readable shows its hash."""
        table = self.counted.keys[o]
        known = hash_columns(table.columns)
        out = []
        for wanted in hashes:
            at = np.flatnonzero(known == wanted)
            values = (
                [str(c[int(at[0])].as_py()) for c in table.columns] if len(at) else [f"#{int(wanted):016x}"]
            )
            out.append(" + ".join(values))
        return out


def judge(
    trial: Judge, step: Callable[[str], None], row_bytes: float | None = None
) -> tuple[dict[str, Any], Tables]:
    """Everything that can be said about a counted stream, as JSON can hold it, and the tables to start with.

    The last tenth of the slices is the judge: no table that it scores was learnt from it, except for the bound.
    It does choose among four half-lives, which flatters the chosen one a little.
    ``step`` is told what comes next, :data:`STEPS` times at least.
    """
    counted, n = trial.counted, trial.servers
    names, end = list(counted.operators), len(counted.slices)
    last, half = end - max(1, end // 10), end // 2
    step("hash")
    by_hash = trial.score(None, last, end)
    found: list[tuple[Score, float | None, Tables]] = []
    for half_life in (None, end / 2, end / 5, end / 10) if counted.ordered else (None,):
        step("learning from all but the last tenth")
        learnt = trial.learn(0, last, half_life)
        found.append((trial.score(learnt, last, end), half_life, learnt))
    table, memory, learnt = max(found, key=lambda f: f[0].locality)
    step("in-sample bound")
    # no heuristic is sure to find the best: the bound is the best of all that are tried
    seen = (trial.learn(last, end, begin=begin) for begin in (None, learnt))
    bound = max([table, *(trial.score(t, last, end) for t in seen)], key=lambda s: s.locality)
    out: dict[str, Any] = {
        "servers": n,
        "operators": {name: list(columns) for name, columns in counted.operators.items()},
        "rows": counted.rows,
        "left_out": dict(counted.nulls),
        "reader": counted.reader,
        "slices": end,
        "hash": {"expected": 1 / n, **by_hash.to_dict(names)},
        "bound": bound.to_dict(names),
        "table": table.to_dict(names),
        "new_rows": dict(zip(names, trial.new_rows(last, last, end), strict=True)),
        "hot_keys": trial.hot_keys(last, end) if counted.ordered else trial.hot_keys(0, end),
        "memory_slices": memory,
        "drift": None,
        "live": None,
        "series": {"begins": list(counted.begins), "hash": [], "static": [], "live": []},
    }
    series = out["series"]
    series["hash"] = [trial.score(None, i, i + 1).locality for i in range(end)]
    if counted.ordered and half:
        step("drift")
        old = trial.learn(0, half)
        after, stale = trial.score(old, half, min(end, half + end - last)), trial.score(old, last, end)
        series["static"] = [trial.score(old, i, i + 1).locality if i >= half else None for i in range(end)]
        unseen = dict(zip(names, trial.new_rows(half, last, end), strict=True))
        out["drift"] = {
            "soon": after.to_dict(names),
            "late": stale.to_dict(names),
            "relearnt": table.locality,
            "new_rows": unseen,
        }
        step("learning as it runs")
        lived = trial.live(lambda: step("learning as it runs"))
        series["live"] = [s.locality for s in lived]
        out["live"] = sum(lived[last + 1 :], lived[last]).to_dict(names)
    weight = counted.row_bytes if row_bytes is None else row_bytes
    out["row_bytes"] = weight
    out["hops"] = [
        {
            "from": a,
            "to": b,
            "hash": by_hash.hops[i],
            "table": table.hops[i],
            "bytes_saved_per_row": (table.hops[i] - by_hash.hops[i]) * weight,
            "traffic_saved": (table.hops[i] - by_hash.hops[i]) / max(1e-9, 1 - by_hash.hops[i]),
        }
        for i, (a, b) in enumerate(pairwise(names))
    ]
    step("the table to start with")
    start = trial.learn(0, end, memory)
    out["table_keys"] = {t.operator: len(t) for t in start}
    return out, start
