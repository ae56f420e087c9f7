"""Pair counts: exact when they can be, bounded always, the same whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import ParameterError
from weir.hashing import mix
from weir.locality import BatchStats, PairCounts, count_keys, count_pairs, merge
from weir.locality.key_homes import KeyHomes
from weir_evaluation.locality.batch_counter import BatchCounter
from weir_evaluation.locality.space_saving import PairSpaceSaving

pair_lists = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60)


def columns(pairs):
    array = np.array(pairs, np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(array[:, 0]), np.ascontiguousarray(array[:, 1])


def as_dict(counts: PairCounts) -> dict:
    return {(int(a), int(b)): c for a, b, c in zip(counts.left, counts.right, counts.count, strict=True)}


@given(pair_lists)
def test_counts_are_exact_and_conserved(pairs):
    counts = count_pairs(*columns(pairs))
    assert as_dict(counts) == {p: float(pairs.count(p)) for p in set(pairs)}
    assert counts.total == len(pairs)


@given(pair_lists, st.randoms(), st.integers(1, 8))
def test_order_of_rows_makes_no_difference(pairs, random, capacity):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    for make in (BatchCounter, PairSpaceSaving):
        one, two = make(capacity), make(capacity)
        one.observe(*columns(pairs))
        two.observe(*columns(shuffled))
        assert as_dict(one.counts()) == as_dict(two.counts())


@given(pair_lists, st.integers(1, 8), st.integers(0, 3))
def test_truncation_keeps_the_heaviest(pairs, capacity, seed):
    whole = count_pairs(*columns(pairs))
    kept = whole.truncate(capacity, seed)
    assert len(kept) == min(capacity, len(whole))
    assert sorted(kept.count)[::-1] == sorted(whole.count)[::-1][: len(kept)]


def test_ties_are_dropped_at_random_by_seed():
    keys = np.arange(1000, dtype=np.uint64)
    kept = [set(count_keys(keys).truncate(100, seed).left.tolist()) for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]
    assert 300 < np.mean(list(kept[0])) < 700


@given(pair_lists, pair_lists)
def test_merging_servers_equals_counting_together(one, two):
    merged = merge([count_pairs(*columns(one)), count_pairs(*columns(two))])
    assert as_dict(merged) == as_dict(count_pairs(*columns(one + two)))


@given(pair_lists, st.integers(1, 12))
@settings(deadline=None)
def test_space_saving_keeps_its_promises(pairs, capacity):
    summary = PairSpaceSaving(capacity, canonical=False)
    for at in range(0, len(pairs), 7):
        summary.observe(*columns(pairs[at : at + 7]))
    held = as_dict(summary.counts())
    assert sum(held.values()) == len(pairs)
    assert len(held) <= capacity
    for pair, count in held.items():
        assert pairs.count(pair) <= count <= pairs.count(pair) + summary.error
    for pair in set(pairs):
        if pairs.count(pair) > len(pairs) / capacity:
            assert pair in held


def test_decay_forgets():
    counter = BatchCounter(10, decay=0.5)
    counter.observe(*columns([(1, 1)] * 8))
    counter.observe(*columns([(2, 2)]))
    assert as_dict(counter.counts()) == {(1, 1): 4.0, (2, 2): 1.0}
    with pytest.raises(ParameterError, match="capacity"):
        BatchCounter(0)


def test_keys_that_come_and_go_are_forgotten_unless_a_table_lists_them():
    homes = KeyHomes(4, capacity=100_000, half_life=2, age=5)
    listed = mix(np.arange(10, dtype=np.uint64), np.uint64(1))
    homes.observe(count_keys(listed))
    homes.adopt(listed, np.full(10, 3, np.int32))
    moved = 0
    for batch in range(500):
        homes.observe(count_keys(np.arange(100 + 20 * batch, 120 + 20 * batch, dtype=np.uint64)))
        published = homes.publish()
        moved += 0 if published is None else len(published[1].hashes)
        assert len(homes) < 2000
    assert homes.route(listed).tolist() == [3] * 10
    assert moved < 10  # of those listed, and nothing else
    again = KeyHomes(4, capacity=100_000, half_life=2, age=5)
    again.restore(homes.state())
    assert len(again) == len(homes)


def test_when_all_keys_are_forgotten_they_live_by_their_hash():
    homes = KeyHomes(4, capacity=1000, half_life=1, age=5)
    keys = np.arange(200, dtype=np.uint64)
    homes.observe(count_keys(keys))
    for _ in range(40):
        homes.observe(PairCounts.empty())
        homes.publish()
    assert len(homes) == 0
    assert homes.route(keys).tolist() == KeyHomes(4, capacity=9, half_life=1, age=5).route(keys).tolist()


@given(pair_lists, pair_lists)
def test_statistics_survive_the_ride_home(one, two):
    parts = []
    for pairs in (one, two):
        left, right = columns(pairs)
        parts.append(BatchStats.of({0: left, 1: right}, {(0, 1): (left, right)}))
    home = BatchStats.merge([BatchStats.decode(p.encode()) for p in parts])
    for room in (None, 5):
        merged = BatchStats.merge(parts, capacity=room, seed=1)
        at_once = BatchStats.decode(*(p.encode() for p in parts), capacity=room, seed=1)
        assert at_once.rows == merged.rows
        assert as_dict(at_once.pairs[0, 1]) == as_dict(merged.pairs[0, 1])
        assert [as_dict(c) for c in at_once.keys.values()] == [as_dict(c) for c in merged.keys.values()]
    other_way = BatchStats.merge(parts[::-1])
    assert home.rows == other_way.rows == {0: len(one + two), 1: len(one + two)}
    assert (
        as_dict(home.pairs[0, 1])
        == as_dict(other_way.pairs[0, 1])
        == as_dict(count_pairs(*columns(one + two)))
    )
