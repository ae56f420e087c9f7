"""Affinity that changes within days: keys follow it, at no more moves than it takes, and others stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.hashing import mix
from weir.locality import Costs, Locality, LocalityManager
from weir.locality.key_affinity import KeyAffinity
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats

pytestmark = pytest.mark.usefixtures("few_starts")
PLACES, GUESTS, SERVERS, PERIOD = 40, 300, 4, 20


def play(where, batches=160, rows=300, warm=40, **config):
    """Return locality and share of keys moved per period, of guests whose place ``where`` gives for every batch."""
    rng = np.random.default_rng(1)
    manager = LocalityManager(Locality(period=PERIOD, **config), ["places", "guests"], [(0, 1)], SERVERS)
    local, moved = [], 0
    for batch in range(batches):
        guest = rng.integers(GUESTS, size=rows)
        place = np.where(rng.random(rows) < 0.1, rng.integers(PLACES, size=rows), where(batch)[guest])
        left, right = (mix(k.astype(np.uint64), np.uint64(o)) for o, k in enumerate((place, guest)))
        manager.observe(BatchStats.of({0: left, 1: right}, {(0, 1): (left, right)}))
        if manager.due:
            manager.offer(propose(manager.snapshot()))
        plan = manager.plan_next()
        if batch >= warm:
            local.append(manager.locality)
            moved += plan.moved if plan else 0
    return np.mean(local), moved / (PLACES + GUESTS) / (len(local) / PERIOD)


def test_guests_who_move_on_for_good_are_followed():
    rng = np.random.default_rng(0)
    places, drawn = rng.integers(PLACES, size=GUESTS), []

    def where(batch):
        while len(drawn) <= batch:
            leaving = rng.random(GUESTS) < 1 / 60  # each stays for three periods
            places[leaving] = rng.integers(PLACES, size=leaving.sum())
            drawn.append(places.copy())
        return drawn[batch]

    locality, moved = play(where)
    assert locality > 0.72  # .56 by counts that fade slowly, alone
    assert moved < 0.5
    # states that weigh more than all that a key's rows save are left where they are
    heavy = Costs(state_bytes=200_000)
    assert play(where, forecast=heavy)[1] < moved / 2


def test_guests_who_stay_are_left_alone():
    places = np.random.default_rng(0).integers(PLACES, size=GUESTS)
    locality, moved = play(lambda batch: places)
    assert locality > 0.9
    assert moved < 0.02


def test_a_place_for_every_hour_is_no_change():
    played = []
    for seed in range(3):  # of one stream, chance alone may move a tenth
        places = np.random.default_rng(seed).integers(PLACES, size=(4, GUESTS))
        played.append(play(lambda batch, places=places: places[batch % 4]))
    assert min(locality for locality, _ in played) > 0.4
    assert np.mean([moved for _, moved in played]) < 0.1


def company_of(home, rows):
    affinity = KeyAffinity(half_life=100, age=0, capacity=10)
    entries, homes = np.array([0]), np.array([home], np.int32)
    affinity.touch(entries, 1, homes)
    affinity.add(entries, homes, np.array([float(rows)]))
    affinity.follow_changes(entries, homes)
    return affinity, entries, homes


@given(at_home=st.integers(5, 200), elsewhere=st.integers(1, 100))
def test_one_batch_is_never_enough(at_home, elsewhere):
    affinity, entries, homes = company_of(0, at_home)
    affinity.add(entries, np.array([1], np.int32), np.array([float(elsewhere)]))
    before = affinity.of(entries, 1)[1].copy()
    affinity.follow_changes(entries, homes)
    assert np.array_equal(affinity.of(entries, 1)[1], before)


@given(
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_rows_in_a_batch_plays_no_part_and_a_restored_one_goes_on_alike(batches, order):
    one, entries, homes = company_of(0, 20)
    other = company_of(0, 20)[0]
    total = 22.0  # with the prior
    for server, count in batches:
        rows = [server] * count + [0]
        for affinity, mine in ((one, rows), (other, order.sample(rows, len(rows)))):
            for s in mine:
                affinity.add(entries, np.array([s], np.int32), np.ones(1))
            affinity.follow_changes(entries, homes)
        again = KeyAffinity(half_life=100, age=0, capacity=10)
        again.restore(other.state())
        other = again
        total += count + 1
        kept = [dict(zip(*(a[0].tolist() for a in c.of(entries, 1)[:2]), strict=True)) for c in (one, other)]
        for server in range(4):
            assert kept[0].get(server, 0.0) == pytest.approx(kept[1].get(server, 0.0), abs=1e-3)
        assert sum(kept[0].values()) == pytest.approx(total, abs=1e-3), (
            "servers change places, no row is lost"
        )
