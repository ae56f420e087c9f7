"""Servers' speeds are measured: a slow one shows after two batches, noise never."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.locality.capacity import Capacity


def batch(speeds, rng, noise=0.0, operators=2):
    """Return rows and busy seconds of a batch whose rows take 0.5 ms of the first operator, 2 ms of the second."""
    rows = {o: rng.integers(500, 1500, len(speeds)).astype(float) for o in range(operators)}
    blur = np.exp(noise * rng.uniform(-1, 1, len(speeds)))
    return rows, {o: rows[o] * (0.0005, 0.002)[o] / speeds * blur for o in range(operators)}


@given(st.integers(2, 24), st.integers(0, 2**31))
def test_noise_of_a_tenth_changes_no_share(servers, seed):
    rng, capacity = np.random.default_rng(seed), Capacity(servers)
    assert not any(capacity.observe(*batch(np.ones(servers), rng, noise=0.1)) for _ in range(20))
    assert capacity.shares is None


@given(st.integers(4, 16), st.data())
def test_a_slow_server_gets_its_share_after_two_batches_and_back(servers, data):
    slow = data.draw(st.integers(0, servers - 1))
    speed = data.draw(st.floats(0.1, 0.6))
    speeds = np.ones(servers)
    speeds[slow] = speed
    rng, capacity = np.random.default_rng(3), Capacity(servers)
    changes = [capacity.observe(*batch(speeds, rng, noise=0.02)) for _ in range(8)]
    assert changes.index(True) == 1
    assert sum(changes) == 1
    even = (servers - 1 + speed) ** -1
    assert np.allclose(np.delete(capacity.shares, slow), even, rtol=0.08)
    assert np.isclose(capacity.shares[slow], speed * even, rtol=0.15)
    assert len(set(np.delete(capacity.shares, slow))) == 1  # those that are alike have the same share
    changes = [capacity.observe(*batch(np.ones(servers), rng, noise=0.02)) for _ in range(8)]
    assert changes.index(True) == 1
    assert capacity.shares is None


def test_one_strange_batch_changes_nothing():
    rng, capacity = np.random.default_rng(0), Capacity(4)
    for number in range(12):
        speeds = np.array([1, 1, 0.1, 1]) if number == 5 else np.ones(4)
        assert not capacity.observe(*batch(speeds, rng))


def test_servers_with_nothing_to_do_keep_what_is_known_of_them():
    rng, capacity = np.random.default_rng(0), Capacity(3)
    for _ in range(4):
        capacity.observe(*batch(np.array([1, 1, 0.5]), rng))
    known = capacity.shares
    for _ in range(6):
        rows, busy = batch(np.ones(3), rng)
        for o in rows:
            rows[o][2] = busy[o][2] = 0
        assert not capacity.observe(rows, busy)
    assert np.array_equal(capacity.shares, known)


def test_it_goes_on_from_what_it_saved():
    rng, capacity, restored = np.random.default_rng(1), Capacity(4), Capacity(4)
    for _ in range(3):
        capacity.observe(*batch(np.array([1, 1, 1, 0.4]), rng))
    restored.restore(capacity.state())
    assert np.array_equal(restored.shares, capacity.shares)
    assert restored.costs == capacity.costs
    Capacity(5).restore(capacity.state())  # of another number of servers: only costs are taken over
