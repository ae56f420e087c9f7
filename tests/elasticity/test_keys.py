"""As few keys move as balance needs, and routers agree on where they went."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.elasticity.keys import SLACK, spread
from weir.errors import GroupingError, ParameterError
from weir.hashing import key_group, mix
from weir.routing.table import NO_TABLE, Table, finer


def rescaled(rule: Table, n: int, load: np.ndarray, listed_load: np.ndarray | None = None) -> Table:
    """Key groups and listed keys balanced together."""
    more, groups = np.ones(len(rule)) if listed_load is None else listed_load, len(rule.key_groups)
    homes = np.concatenate([rule.key_groups, rule.instances])
    after = spread(homes, n, weights=np.concatenate([load, more]))
    return Table(rule.hashes, after[groups:]).with_key_groups(after[:groups])


def per_group(rule: Table, keys: np.ndarray) -> np.ndarray:
    """Return the keys in each key group, without those that have a home of their own."""
    own, groups = rule.find(keys) >= 0, len(rule.key_groups)
    return np.bincount(key_group(keys[~own], groups), minlength=groups)


def least_moves(homes: np.ndarray, n: int, weights: np.ndarray, slack: float = SLACK) -> int:
    """Return how many keys move at least: those without a home and, of each instance above its limit, the heaviest."""
    gone = homes >= n
    limit = (1 + slack) * weights.sum() / n * (1 + 1e-9)
    moves = int(gone.sum())
    for instance in range(n):
        mine = np.sort(weights[homes == instance])[::-1]
        left = mine.sum() - np.concatenate([[0], np.cumsum(mine)])
        moves += int(np.argmax(left <= limit))
    return moves


def some_keys(n: int, seed: int = 0) -> np.ndarray:
    return mix(np.arange(n, dtype=np.uint64), np.uint64(seed))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2000), st.integers(0, 99))
def test_equal_keys_move_exactly_as_often_as_they_must(
    before: int, after: int, count: int, seed: int
) -> None:
    homes = np.random.default_rng(seed).integers(0, before, count)
    done = spread(homes, after, slack=0.0)
    held = np.bincount(homes, minlength=max(before, after))
    least = held[after:].sum() + np.maximum(0, held[:after] - np.ceil(count / after)).sum()
    assert (done != homes).sum() == least
    assert len(done) == count
    assert np.bincount(done, minlength=after).max() <= np.ceil(count / after)


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["even", "normal", "zipf 0.6", "zipf 1"]),
    st.integers(0, 999),
)
def test_weighted_keys_move_at_most_a_fifth_more_than_needed(
    before: int, after: int, kind: str, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    count = 20_000
    rank = np.arange(1, count + 1, dtype=float)
    weights = {
        "even": dice.uniform(0.5, 1.5, count),
        "normal": np.maximum(0.01, dice.normal(1, 0.2, count)),
        "zipf 0.6": rank**-0.6,
        "zipf 1": 1 / rank,
    }[kind]
    homes = dice.integers(0, before, count)
    done = spread(homes, after, weights=weights)
    fair = weights.sum() / after
    load = np.bincount(done, weights, minlength=after)
    if weights.max() <= 0.1 * fair:
        assert (done != homes).sum() <= 1.2 * least_moves(homes, after, weights) + 1
        assert load.max() <= 1.03 * fair * (1 + 1e-6)
    elif weights.max() < fair:
        assert load.max() <= 1.03 * fair + weights.max(), "one heavy item may be too much, not two"
    assert 0 <= done.min() <= done.max() < after


@given(st.integers(2, 6), st.integers(0, 99))
def test_what_is_balanced_stays(n: int, seed: int) -> None:
    homes = np.random.default_rng(seed).permutation(np.arange(600) % n)
    assert np.array_equal(spread(homes, n), homes)


def test_a_key_heavier_than_its_share_stays_and_the_rest_makes_room() -> None:
    weights = np.array([100.0] + [1.0] * 60)
    homes = np.array([0] + [0] * 30 + [1] * 30)
    done = spread(homes, 3, weights=weights)
    assert done[0] == 0
    load = np.bincount(done, weights, minlength=3)
    assert load[0] == pytest.approx(100, abs=4), "the light ones leave"
    assert abs(load[1] - load[2]) <= 4


def test_a_million_keys_from_two_to_four_to_three_in_a_few_kilobytes() -> None:
    keys = some_keys(1_000_000)
    rule = NO_TABLE.with_key_groups(finer(range(2)))
    here = rule.router(2).route(keys)
    assert np.array_equal(here, key_group(keys, 2)), "to speak of key groups moves nothing"
    for n in (4, 3):
        rule = rescaled(rule, n, per_group(rule, keys))
        there = rule.router(n).route(keys)
        assert (here != there).sum() <= 1.2 * least_moves(here, n, np.ones(len(keys)))
        load = np.bincount(there, minlength=n)
        assert load.max() <= 1.04 * load.mean()
        here = there
    assert rule.key_groups.nbytes <= 65_536


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 99))
def test_buckets_name_only_instances_that_exist(sizes: list[int], seed: int) -> None:
    keys = some_keys(5000, seed)
    heavy = Table(keys[:5], np.zeros(5, np.int32))
    rule = heavy.with_key_groups(finer(range(sizes[0]), 256))
    for n in sizes:
        rule = rescaled(rule, n, per_group(rule, keys), listed_load=np.full(5, 50.0))
        home = rule.router(n).route(keys)
        assert 0 <= home.min() <= home.max() < n
        assert np.array_equal(home[:5], rule.find(keys[:5]))
    again = Table(rule.hashes, rule.instances).with_key_groups(rule.key_groups.copy())
    assert rule == again
    assert hash(rule) == hash(again)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least one instance"):
        spread([0], 0)
    with pytest.raises(ParameterError, match="slack"):
        spread([0], 1, slack=-1)
    with pytest.raises(ParameterError, match="one weight"):
        spread([0], 1, weights=[1, 2])
    with pytest.raises(ParameterError, match="negative"):
        spread([0], 1, weights=[-1])
    with pytest.raises(GroupingError, match="only 2"):
        NO_TABLE.with_key_groups(finer(range(4))).router(2)
    with pytest.raises(GroupingError, match="home each"):
        NO_TABLE.with_key_groups([])
