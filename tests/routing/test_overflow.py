"""Rows of keys that may overflow fill up what the rows of all others leave."""

from __future__ import annotations

import numpy as np

from weir.routing.hash import Hash
from weir.routing.locality_aware import LocalityAwareSplit
from weir.routing.table import NO_TABLE, Table
from weir.routing.weighted import Weighted


def test_rows_behind_a_source_fill_up_what_all_others_leave():
    rng = np.random.default_rng(0)
    keys = rng.choice(rng.integers(2**63, size=400, dtype=np.uint64), 20_000)
    table = Table(
        np.unique(keys), rng.choice(4, len(np.unique(keys)), p=[0.31, 0.23, 0.23, 0.23]).astype(np.int32)
    )

    def rows(spare, **where):
        grouping = LocalityAwareSplit(table, overflow=Weighted(Hash(), scale=64), spare=spare)
        router = grouping.router(4, **where)
        parts = [router.route(part) for part in np.split(keys, 20)]
        return np.bincount(np.concatenate(parts), minlength=4) / 5000

    assert rows(0.0).max() > 1.15
    assert rows(0.4).max() < 1.02
    # between servers, who is near has more of those rows: what is sent there besides says nothing of all that it gets
    assert rows(0.4, local=2)[2] > 1.1


def test_who_fills_up_goes_on_from_saved_counters():
    keys = np.random.default_rng(1).integers(2**63, size=6000, dtype=np.uint64)
    grouping = LocalityAwareSplit(NO_TABLE, overflow=Weighted(Hash(), scale=64), spare=0.3)
    whole, first, second = (grouping.router(4) for _ in range(3))
    expected = whole.route(keys)
    head = first.route(keys[:2500])
    second.restore(first.counters())
    assert np.concatenate([head, second.route(keys[2500:])]).tolist() == expected.tolist()
