"""Counting in bounded memory: never too much, too little by at most the error that it tells."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.locality.counts import HeavyPairs, count_pairs

pieces = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=12), max_size=12)


def columns(pairs):
    array = np.array(pairs, np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(array[:, 0]), np.ascontiguousarray(array[:, 1])


def counted(counts):
    return {(int(a), int(b)): c for a, b, c in zip(counts.left, counts.right, counts.count, strict=True)}


@given(pieces, st.integers(1, 40), st.integers(0, 3))
def test_counts_are_below_the_truth_by_the_error_at_most(batches, hold, seed):
    heavy = HeavyPairs(hold, seed)
    for batch in batches:
        heavy.add(*columns(batch))
        assert heavy._held <= 2 * hold
    counts = counted(heavy.counts())
    truth = counted(count_pairs(*columns([pair for batch in batches for pair in batch])))
    assert len(counts) <= hold
    for pair, rows in truth.items():
        assert rows - heavy.error <= counts.get(pair, 0.0) <= rows
    if len(truth) <= hold:
        assert counts == truth
        assert heavy.error == 0


def test_what_is_lost_on_a_skewed_stream_is_little():
    """A million rows, 400,000 distinct pairs, of which 65,536 are held: measured against exact counts."""
    rng = np.random.default_rng(1)
    rank = np.exp(rng.random((2, 1_000_000)) * np.log(3e5)).astype(np.uint64)
    heavy = HeavyPairs(1 << 16)
    for at in range(0, len(rank[0]), 50_000):
        heavy.add(rank[0][at : at + 50_000], rank[1][at : at + 50_000] >> np.uint64(6))
    truth = count_pairs(rank[0], rank[1] >> np.uint64(6))
    assert len(truth) > 4 * heavy.hold
    best, kept = truth.truncate(10_000), heavy.counts(10_000)
    same = np.isin(kept.left * np.uint64(1 << 32) + kept.right, best.left * np.uint64(1 << 32) + best.right)
    assert kept.total > 0.99 * best.total
    assert same.mean() > 0.93  # most of the others are ties at the rim
