"""Forecasts: adopt what pays, refuse chance, costly moves and restlessness."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from weir.locality import Costs, KeyGraph, Reconfiguration, count_keys, count_pairs
from weir.locality.forecast import Balance, Moving, Sizes, forecast
from weir.network.locator import closeness


def graph(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    left = rng.integers(20, size=rows).astype(np.uint64)
    right = left + np.uint64(100)
    return KeyGraph.build([count_keys(left), count_keys(right)], {(0, 1): count_pairs(left, right)})


ROWS = graph()
TOGETHER = (np.arange(len(ROWS)) % 20 % 4).astype(np.int32)
ONE = np.ones(1, np.uint64)
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
    assert told.bytes == told.moved * 100


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
    assert told.break_even is None  # never
    saved = msgspec.json.encode(decision)
    assert msgspec.json.decode(saved, type=Reconfiguration) == decision
    assert msgspec.json.decode(saved)["forecast"]["break_even"] is None


def test_rows_weigh_what_was_measured_unless_it_is_given():
    large = Sizes({(0, 1): 5000.0}, {0: 1e9})
    assert ask(APART, TOGETHER, sizes=large).gain == pytest.approx(25 * ask(APART, TOGETHER).gain)
    given = ask(APART, TOGETHER, sizes=large, costs=Costs(row_bytes=200))
    assert given.gain == pytest.approx(ask(APART, TOGETHER).gain)


def test_it_pays_to_bring_rows_nearer_that_stay_remote():
    """Every pair is two servers apart; then one, on the same host."""
    near = np.where(ROWS.operator == 1, TOGETHER ^ 1, TOGETHER).astype(np.int32)
    away = np.where(ROWS.operator == 1, TOGETHER ^ 2, TOGETHER).astype(np.int32)
    host = closeness([[0, 1], [2, 3]], 4)
    told = ask(away, near, far=1 - host / host.max())
    assert told.pays
    assert told.locality_now == told.locality_then == 0
    assert not ask(away, near).pays


def test_tables_follow_bytes_where_rows_differ_in_size():
    """Key 1 is seen with 2 more often than with 3, but rows on the way to 3 are a hundred times as large."""
    pairs = {
        (0, 1): count_pairs(ONE.repeat(60), 2 * ONE.repeat(60)),
        (0, 2): count_pairs(ONE.repeat(40), 3 * ONE.repeat(40)),
    }
    graph = KeyGraph.build([count_keys(k * ONE.repeat(50)) for k in (1, 2, 3)], pairs)
    sizes = Sizes({(0, 1): 10.0, (0, 2): 1000.0})
    priced = graph.priced(sizes.of_rows(3, Costs()))
    assert priced.edge_weight.sum() == pytest.approx(graph.edge_weight.sum())
    heavy = {
        tuple(sorted((a, b))): w
        for a, b, w in zip(graph.tails(), graph.indices, priced.edge_weight, strict=True)
    }
    assert heavy[0, 2] > 50 * heavy[0, 1]
    assert graph.priced(Sizes().of_rows(3, Costs())) is graph


def test_what_was_measured_survives_a_restart():
    sizes = Sizes({(0, 1): 5000.0}, {0: 7.0})
    assert Sizes.restored(json.loads(json.dumps(sizes.state()))) == sizes
