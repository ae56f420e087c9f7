"""SpaceSaving against the exact counts, and DKG, which learns its table with it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import CheckpointError, GroupingError
from weir_evaluation.routing.dkg import HeavyKeys
from weir_evaluation.routing.heavy_hitters import SpaceSaving

small_streams = st.lists(st.integers(0, 30), max_size=400).map(lambda keys: np.array(keys, dtype=np.uint64))


@given(keys=small_streams, capacity=st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_counts_are_bounded_on_both_sides(keys, capacity) -> None:
    sketch = SpaceSaving(capacity)
    sketch.update(keys)
    true = Counter(keys.tolist())
    found, counts, errors = (part.tolist() for part in sketch.heaviest())
    assert sketch.messages == sum(counts) == len(keys)
    assert counts == sorted(counts, reverse=True)
    assert len(set(found)) == len(found) <= capacity
    for key, count, error in zip(found, counts, errors, strict=True):
        assert count - error <= true[key] <= count
        assert error <= len(keys) / capacity
    assert {key for key, count in true.items() if count > len(keys) / capacity} <= set(found)


@given(keys=small_streams, capacity=st.integers(1, 20), cut=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_a_restored_sketch_goes_on_alike(keys, capacity, cut) -> None:
    at = int(cut * len(keys))
    whole, first, second = SpaceSaving(capacity), SpaceSaving(capacity), SpaceSaving(capacity)
    whole.update(keys)
    first.update(keys[:at])
    second.restore(first.counters())
    second.update(keys[at:])
    for mine, theirs in zip(second.heaviest(), whole.heaviest(), strict=True):
        assert np.array_equal(mine, theirs)


def test_counters_of_another_sketch_are_refused() -> None:
    sketch = SpaceSaving(10)
    sketch.update(np.arange(10, dtype=np.uint64))
    with pytest.raises(CheckpointError, match="do not fit 3"):
        SpaceSaving(3).restore(sketch.counters())
    with pytest.raises(CheckpointError, match="heavy_keys"):
        SpaceSaving(3).restore({})


@given(keys=small_streams, n=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_dkg_never_splits_a_key_and_knows_new_ones(keys, n) -> None:
    router = HeavyKeys.learn(keys, n).router(n)
    every = np.arange(100, dtype=np.uint64)
    homes = router.route(every)
    assert homes.min() >= 0
    assert homes.max() < n
    assert np.array_equal(router.route(keys), homes[keys])


def test_dkg_evens_out_what_hashing_does_not() -> None:
    rng = np.random.default_rng(1)
    keys = rng.zipf(1.4, 100_000).astype(np.uint64)
    keys = keys[keys > 1]
    learnt = np.bincount(HeavyKeys.learn(keys, 5).router(5).route(keys))
    assert learnt.max() < 1.05 * learnt.mean()


def test_dkg_is_refused_for_another_number_of_instances() -> None:
    learnt = HeavyKeys.learn(np.arange(10, dtype=np.uint64), 4)
    with pytest.raises(GroupingError, match="learn it again"):
        learnt.router(5)
