"""Forecasts: adopt what pays, refuse chance, costly moves and restlessness."""

from __future__ import annotations

import numpy as np

from weir.locality import Costs, KeyGraph, Reconfiguration, count_keys, count_pairs
from weir.locality.forecast import Balance, Moving, forecast


def graph(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    left = rng.integers(20, size=rows).astype(np.uint64)
    right = left + np.uint64(100)
    return KeyGraph.build([count_keys(left), count_keys(right)], {(0, 1): count_pairs(left, right)})


ROWS = graph()
TOGETHER = (np.arange(len(ROWS)) % 20 % 4).astype(np.int32)
APART = np.where(ROWS.operator == 1, (TOGETHER + 1) % 4, TOGETHER).astype(np.int32)


def ask(now, then, **terms):
    moved = int((now != then).sum())
    given = {"moving": Moving(moved, moved, len(ROWS)), "batches": 2, "period": 10, "costs": Costs()}
    return forecast(ROWS, now, then, 4, **{**given, **terms})


def test_a_clear_gain_pays():
    told = ask(APART, TOGETHER)
    assert told.pays
    assert (told.locality_now, told.locality_then) == (0.0, 1.0)
    assert told.break_even < 1
    assert told.bytes == told.moved * Costs().state_bytes


def test_heavy_state_does_not_pay():
    told = ask(APART, TOGETHER, costs=Costs(state_bytes=1e9))
    assert not told.pays
    assert "costs more" in told.why


def test_chance_and_unrest_are_refused():
    nearly, all_keys = TOGETHER.copy(), Moving(len(ROWS), len(ROWS), len(ROWS))
    nearly[0] = (nearly[0] + 1) % 4
    assert "chance" in ask(nearly, TOGETHER, costs=Costs(confidence=1e3), judged_by=Balance(1.5)).why
    assert (
        "too little"
        in ask(nearly, TOGETHER, moving=all_keys, costs=Costs(min_gain=1.0), judged_by=Balance(1.5)).why
    )
    assert ask(TOGETHER, TOGETHER).why == "nothing would move"
    assert not ask(TOGETHER, APART).pays


def test_balance_counts():
    crowded = np.zeros(len(ROWS), np.int32)
    relief = ask(crowded, TOGETHER)
    assert relief.pays
    assert "relieves" in relief.why
    rush = ask(APART, crowded)
    assert not rush.pays
    assert "overload" in rush.why


def test_decisions_are_kept_as_json():
    told = ask(TOGETHER, APART)
    decision = Reconfiguration(3, 1, "refine", False, told, 0.1, {"locality": 0.5})
    assert told.break_even == float("inf")
    assert Reconfiguration.from_dict(decision.to_dict()) == decision
    assert decision.to_dict()["forecast"]["break_even"] is None
