"""Learn tables from one part of a recorded stream, and score them on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.advise.counts import Counted
from weir.hashing import hash_columns, key_group
from weir.locality.config import Locality
from weir.locality.counts import PairCounts, merge
from weir.locality.graph import KeyGraph, within
from weir.locality.manager import LocalityManager
from weir.locality.partition import partition
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats
from weir.routing.table import Table

Tables = Sequence[Table]
_STARTS = 8
_HOT_KEYS = 5  # keys named per operator
_PERIOD = 5  # slices between two reconfigurations of the live trial


@dataclass(frozen=True)
class Score:
    """Rows that stay on their server per hop, and rows per operator and server. Scores of several slices add up.

    >>> one = Score(np.array([5.0]), 10, np.array([[5.0, 5.0], [8.0, 2.0]]))
    >>> (one + one).locality, (one + one).imbalance
    (0.5, [1.0, 1.6])
    """

    local: NDArray[np.float64]
    rows: float
    loads: NDArray[np.float64]

    @property
    def hops(self) -> list[float]:
        """Return, per hop, the share of rows that stay on their server."""
        return (self.local / max(1.0, self.rows)).tolist()

    @property
    def locality(self) -> float:
        """Return the share of rows that stay on their server, averaged over the hops."""
        return float(np.mean(self.hops))

    @property
    def imbalance(self) -> list[float]:
        """Return, per operator, the load of the busiest server over the average."""
        return (self.loads.max(axis=1) / np.maximum(self.loads.mean(axis=1), 1e-12)).tolist()

    def __add__(self, other: Score) -> Score:
        return Score(self.local + other.local, self.rows + other.rows, self.loads + other.loads)

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the score as JSON can hold it, given the operators' names."""
        balance = dict(zip(names, self.imbalance, strict=True))
        return {"locality": self.locality, "hops": self.hops, "imbalance": balance}


@dataclass(frozen=True)
class Trial:
    """Learn and score on one counted stream, for one number of servers.

    Ranges of slices are ``first`` … ``last − 1`` throughout.
    """

    counted: Counted
    servers: int
    alpha: float = 1.03
    capacity: int = 1_000_000
    seed: int = 0

    def learn(
        self, first: int, last: int, half_life: float | None = None, begin: Tables | None = None
    ) -> Tables:
        """Return tables learnt from some slices; with a half-life, later slices count more.

        With ``begin``, refine those tables instead of making new ones.
        """
        graph = self._graph(first, last, half_life)
        bounds = list(pairwise(graph.starts.tolist()))
        warm = None
        if begin is not None:
            warm = np.concatenate([t.find(graph.key[a:b]) for t, (a, b) in zip(begin, bounds, strict=True)])
        parts = partition(graph, self.servers, alpha=self.alpha, seed=self.seed, starts=_STARTS, warm=warm)
        return [
            Table(graph.key[a:b], parts[a:b], self.servers, name, 1)
            for name, (a, b) in zip(self.counted.operators, bounds, strict=True)
        ]

    def _graph(self, first: int, last: int, half_life: float | None) -> KeyGraph:
        ages = range(last - 1 - first, -1, -1)
        weights = [1.0 if half_life is None else 0.5 ** (age / half_life) for age in ages]
        slices = list(zip(self.counted.slices[first:last], weights, strict=True))

        def total(counts: Callable[[BatchStats], PairCounts]) -> PairCounts:
            return merge([counts(s).scaled(weight) for s, weight in slices], self.capacity, self.seed)

        operators = range(len(self.counted.operators))
        keys = [total(lambda s, o=o: s.keys[o]) for o in operators]  # type: ignore[misc]
        pairs = {(o, o + 1): total(lambda s, o=o: s.pairs[o, o + 1]) for o in operators[:-1]}  # type: ignore[misc]
        return KeyGraph.build(keys, pairs)

    def score(self, tables: Tables | None, first: int, last: int) -> Score:
        """Return the score of some slices, routed by hash where there is no table or it lacks a key.

        Rows whose pair was too rare to be kept count as hash would treat them: one in ``servers`` is local.
        """
        n, operators = self.servers, len(self.counted.operators)

        def route(o: int, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
            return key_group(keys, n) if tables is None else tables[o].route(keys)

        total = Score(np.zeros(operators - 1), 0.0, np.zeros((operators, n)))
        for s in self.counted.slices[first:last]:
            rows, local, loads = s.rows[0], [], []
            for o, keys in s.keys.items():
                load = np.bincount(route(o, keys.left), weights=keys.count, minlength=n)
                loads.append(load + (rows - load.sum()) / n)
            for (a, b), pairs in s.pairs.items():
                stays = route(a, pairs.left) == route(b, pairs.right)
                local.append(float(pairs.count[stays].sum()) + (rows - pairs.total) / n)
            total += Score(np.array(local), rows, np.array(loads))
        return total

    def live(self, step: Callable[[], None]) -> list[Score]:
        """Return the score that the engine's own manager would have reached on each slice, taken as one batch.

        A real query has more and smaller batches, so it places new keys earlier than this trial does.
        ``step`` is called after each slice.
        """
        n, names = self.servers, list(self.counted.operators)
        config = Locality(alpha=self.alpha, capacity=self.capacity, period=_PERIOD, seed=self.seed)
        manager = LocalityManager(config, names, list(pairwise(range(len(names)))), n)
        scores = []
        for i, stats in enumerate(self.counted.slices):
            scores.append(self.score([manager.table(o) for o in range(len(names))], i, i + 1))
            manager.observe(stats)
            if manager.due:
                manager.offer(propose(manager.snapshot()))
            manager.plan_next()
            step()
        return scores

    def new_rows(self, before: int, first: int, last: int) -> dict[str, float]:
        """Return, per operator, the share of rows of some slices whose key no slice until ``before`` had."""
        shares = {}
        for o, name in enumerate(self.counted.operators):
            seen = merge([s.keys[o] for s in self.counted.slices[:before]]).left
            counts = merge([s.keys[o] for s in self.counted.slices[first:last]])
            new = counts.count[~within(seen, counts.left)]
            shares[name] = float(new.sum()) / max(1.0, counts.total)
        return shares

    def hot_keys(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return, per operator, its heaviest keys with their shares, and the least imbalance that they allow."""
        hot = []
        slices = self.counted.slices[first:last]
        for o, name in enumerate(self.counted.operators):
            counts, rows = merge([s.keys[o] for s in slices]), sum(s.rows[o] for s in slices)
            top = np.lexsort((counts.left, -counts.count))[:_HOT_KEYS]
            texts = self._key_texts(o, counts.left[top])
            shares = (counts.count[top] / rows).tolist()
            keys = [{"key": text, "share": share} for text, share in zip(texts, shares, strict=True)]
            floor = max(1.0, keys[0]["share"] * self.servers) if keys else 1.0
            hot.append({"operator": name, "keys": keys, "floor": floor})
        return hot

    def _key_texts(self, o: int, hashes: NDArray[np.uint64]) -> list[str]:
        """Return keys as text; a key too rare to be kept readable is shown by its hash."""
        table = self.counted.keys[o]
        readable = hash_columns(table.columns)
        texts = []
        for key in hashes:
            rows = np.flatnonzero(readable == key).tolist()
            values = [str(column[rows[0]].as_py()) for column in table.columns] if rows else []
            texts.append(" + ".join(values) or f"#{int(key):016x}")
        return texts
