"""Judge how rows of a recorded stream would fare: by hash, by tables, and with learning as the stream runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from weir.advise.trial import Score, Tables, Trial

STEPS = 9  # steps that :func:`judge` reports, and one for each slice

Step = Callable[[str], None]


def judge(trial: Trial, step: Step, row_bytes: float | None = None) -> tuple[dict[str, Any], Tables]:
    """Return all figures about a counted stream as JSON can hold them, and the tables to start with.

    All ways of routing are scored on the last tenth of the slices, and none but the bound has learnt from it. It
    does choose among four half-lives, which flatters the chosen one a little.

    ``step`` is called with each step as it begins, :data:`STEPS` times and once for each slice at most.
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
