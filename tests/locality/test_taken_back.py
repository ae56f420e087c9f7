"""Tables that did not pay are taken back, and new ones rest for a while."""

from __future__ import annotations

import numpy as np
import pytest

import weir
from weir.locality.former import BACK
from weir.locality.manager import LocalityManager
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats

KEYS, ROWS, SERVERS = 64, 2000, 4


def manager_of():
    # keys that follow their affinity one by one between tables would be back by themselves
    return LocalityManager(weir.Auto(new_keys="hash"), ["a", "b"], [(0, 1)], SERVERS)


def batch(rng, shift):
    left = rng.integers(0, KEYS, ROWS).astype(np.uint64)
    right = np.where(rng.random(ROWS) < 0.9, (left + np.uint64(shift)) % KEYS, rng.integers(0, KEYS, ROWS))
    right = right.astype(np.uint64) + np.uint64(1 << 40)
    spread = np.uint64(0x9E3779B97F4A7C15)
    left, right = (left + np.uint64(1)) * spread, right * spread
    return BatchStats.of({0: left, 1: right}, {(0, 1): (left, right)})


def step(manager, stats):
    """Observe a batch; return the method of the tables that change before the next one, if many keys move."""
    manager.observe(stats)
    if manager.due:
        manager.offer(propose(manager.snapshot()))
    known = len(manager.decisions)
    manager.plan_next()
    new = list(manager.decisions)[known:]
    return next((d.method for d in new if d.adopted and d.forecast.moved > KEYS / 4), None)


def changed(manager, rng, shift, batches=30):
    """Feed batches of an affinity until tables change; return the method and how many batches that took."""
    for number in range(1, batches + 1):
        if (method := step(manager, batch(rng, shift))) is not None:
            return method, number
    return None, batches


def settled(rng, shift=0):
    """Return a manager that has tables for an affinity, and has seen that they pay."""
    manager = manager_of()
    assert changed(manager, rng, shift)[0] is not None
    for _ in range(25):
        step(manager, batch(rng, shift))
    return manager


def test_tables_that_pay_stay():
    rng = np.random.default_rng(1)
    manager = settled(rng)
    assert all(d.method != BACK for d in manager.decisions)
    assert manager.locality > 0.8


def test_tables_for_an_affinity_that_was_a_whim_are_taken_back():
    rng = np.random.default_rng(2)
    manager = settled(rng)
    method, _ = changed(manager, rng, shift=7)
    assert method is not None
    assert method != BACK
    adopted = manager.decisions[-1]
    method, after = changed(manager, rng, shift=0)
    assert method == BACK
    assert after <= 4
    back = manager.decisions[-1]
    assert (
        adopted.outcome["locality"] < adopted.forecast.locality_then - 0.3
    )  # predicted, and what came of it
    assert back.forecast.locality_then > 0.8 > back.forecast.locality_now
    step(manager, batch(rng, 0))
    assert manager.locality > 0.8


def test_after_that_new_tables_rest_and_each_time_for_longer_unless_asked_for():
    rng = np.random.default_rng(3)
    manager, rests = settled(rng), []
    for _ in range(3):
        changed(manager, rng, shift=7, batches=100)
        assert changed(manager, rng, shift=0, batches=100)[0] == BACK
        _, batches = changed(manager, rng, shift=7, batches=100)
        rests.append(batches)
        assert changed(manager, rng, shift=0, batches=100)[0] == BACK
    assert rests[0] >= 8
    assert rests == sorted(rests)
    assert rests[-1] >= 32
    assert not manager.due
    manager.request()
    assert manager.due


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_what_it_remembers_survives_a_restart(wait):
    rng = np.random.default_rng(4)
    manager = settled(rng)
    changed(manager, rng, shift=7)
    for _ in range(wait):
        step(manager, batch(rng, 0))
    again = manager_of()
    again.restore(manager.state())
    for seed in range(12):
        one, other = (step(m, batch(np.random.default_rng(seed), 0)) for m in (manager, again))
        assert one == other
    assert BACK in [d.method for d in again.decisions]
