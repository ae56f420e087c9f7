"""Learn tables from one part of a recorded stream, score them on another, and compare them with hash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.advise.counts import Counted
from weir.engine.progress import RoutingProgress
from weir.hashing import hash_columns, key_group
from weir.locality.auto import Auto
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
        config = Locality(alpha=self.alpha, capacity=self.capacity, period=_PERIOD, seed=self.seed)
        return self._manage(config, step)[0]

    def auto(self, merges: Collection[str], step: Callable[[], None]) -> tuple[list[Score], RoutingProgress]:
        """Return the same under ``routing="auto"``, and what that has decided by the end.

        ``merges`` are the operators that merge. Servers are alike here, and keys that are split count at their homes.
        """
        config = Auto(alpha=self.alpha, capacity=self.capacity, period=_PERIOD, seed=self.seed)
        return self._manage(config, step, merges)

    def _manage(
        self, config: Locality, step: Callable[[], None], merges: Collection[str] = ()
    ) -> tuple[list[Score], RoutingProgress]:
        n, names = self.servers, list(self.counted.operators)
        splits = [o for o, name in enumerate(names) if name in merges and config.split_hot]
        manager = LocalityManager(config, names, list(pairwise(range(len(names)))), n, splits=splits)
        scores = []
        for i, stats in enumerate(self.counted.slices):
            scores.append(self.score([manager.table(o) for o in range(len(names))], i, i + 1))
            if manager.counting:
                manager.observe(stats)
            else:
                manager.pass_over()
            if manager.due:
                manager.offer(propose(manager.snapshot()))
            manager.plan_next()
            step()
        decided = RoutingProgress(
            decisions=len(manager.decisions),
            last_decision=next(reversed(manager.decisions), None),
            standing=manager.standing,
            tables={name: manager.listed(o) for o, name in enumerate(names)},
            **manager.decided(names),
        )
        return scores, decided

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


STEPS = 10  # steps that :func:`judge` reports, and two for each slice

Step = Callable[[str], None]


def judge(
    trial: Trial, step: Step, row_bytes: float | None = None, merges: Collection[str] = ()
) -> tuple[dict[str, Any], Tables]:
    """Return all figures about a counted stream as JSON can hold them, and the tables to start with.

    All ways of routing are scored on the last tenth of the slices, and none but the bound has learnt from it. It
    does choose among four half-lives, which flatters the chosen one a little.

    ``merges`` are the operators that merge. ``step`` is called with each step as it begins, :data:`STEPS` times and
    twice for each slice at most.
    """
    counted, n = trial.counted, trial.servers
    names, end = list(counted.operators), len(counted.slices)
    last = end - max(1, end // 10)
    step("hash")
    by_hash = trial.score(None, last, end)
    table, half_life, learnt = _best_table(trial, last, step)
    step("in-sample bound")
    figures: dict[str, Any] = {
        "servers": n,
        "operators": {name: list(columns) for name, columns in counted.operators.items()},
        "rows": counted.rows,
        "left_out": dict(counted.nulls),
        "reader": counted.reader,
        "slices": end,
        "hash": {"expected": 1 / n, **by_hash.to_dict(names)},
        "bound": _bound(trial, last, table, learnt).to_dict(names),
        "table": table.to_dict(names),
        "new_rows": trial.new_rows(last, last, end),
        "hot_keys": trial.hot_keys(last if counted.ordered else 0, end),
        "memory_slices": half_life,
        "drift": None,
        "live": None,
        "auto": None,
        "series": {"begins": list(counted.begins), "hash": [], "static": [], "live": []},
    }
    figures["series"]["hash"] = [trial.score(None, i, i + 1).locality for i in range(end)]
    if counted.ordered and end // 2:
        step("drift")
        figures["drift"], figures["series"]["static"] = _drift(trial, last, table)
        step("learning as it runs")
        scores = trial.live(lambda: step("learning as it runs"))
        figures["series"]["live"] = [score.locality for score in scores]
        figures["live"] = sum(scores[last + 1 :], scores[last]).to_dict(names)
        step("deciding as it runs")
        scores, decided = trial.auto(merges, lambda: step("deciding as it runs"))
        settled = sum(scores[last + 1 :], scores[last]).to_dict(names)
        some = {"tables": decided.tables, "split": decided.split, "needs": decided.needs}
        figures["auto"] = {**settled, **some, "says": decided.lines()}
    figures["row_bytes"] = counted.row_bytes if row_bytes is None else row_bytes
    figures["hops"] = _hops(names, by_hash, table, figures["row_bytes"])
    step("the table to start with")
    start = trial.learn(0, end, half_life)
    figures["table_keys"] = {t.operator: len(t) for t in start}
    return figures, start


def _best_table(trial: Trial, last: int, step: Step) -> tuple[Score, float | None, Tables]:
    """Return the best score on the slices from ``last`` on of tables learnt from those before, with half-life."""
    end = len(trial.counted.slices)
    results = []
    for half_life in (None, end / 2, end / 5, end / 10) if trial.counted.ordered else (None,):
        step("learning from all but the last tenth")
        learnt = trial.learn(0, last, half_life)
        results.append((trial.score(learnt, last, end), half_life, learnt))
    return max(results, key=lambda result: result[0].locality)


def _bound(trial: Trial, last: int, table: Score, learnt: Tables) -> Score:
    """Return the best score of tables that have seen the very rows they are scored on.

    No heuristic is sure to find the best table, so this is the best of all that are tried.
    """
    end = len(trial.counted.slices)
    tables = [trial.learn(last, end, begin=begin) for begin in (None, learnt)]
    return max([table, *(trial.score(t, last, end) for t in tables)], key=lambda score: score.locality)


def _drift(trial: Trial, last: int, table: Score) -> tuple[dict[str, Any], list[float | None]]:
    """Return what becomes of a table of the first half: its scores, and its locality slice by slice."""
    names, end = list(trial.counted.operators), len(trial.counted.slices)
    half = end // 2
    old = trial.learn(0, half)
    drift = {
        "soon": trial.score(old, half, min(end, half + end - last)).to_dict(names),
        "late": trial.score(old, last, end).to_dict(names),
        "relearnt": table.locality,
        "new_rows": trial.new_rows(half, last, end),
    }
    series = [trial.score(old, i, i + 1).locality if i >= half else None for i in range(end)]
    return drift, series


def _hops(names: list[str], by_hash: Score, table: Score, row_bytes: float) -> list[dict[str, Any]]:
    """Return what the table saves on the way from each operator to the next."""
    return [
        {
            "from": source,
            "to": target,
            "hash": hashed,
            "table": tabled,
            "bytes_saved_per_row": (tabled - hashed) * row_bytes,
            "traffic_saved": (tabled - hashed) / max(1e-9, 1 - hashed),
        }
        for (source, target), hashed, tabled in zip(pairwise(names), by_hash.hops, table.hops, strict=True)
    ]
