"""Keys are found in sorted runs whatever the order in which they are asked for, and however hashes are spread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.state.index import Search, hash_order

NUMBERS = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1), st.integers(2**64 - 9, 2**64 - 1))
PAIRS = st.lists(st.tuples(NUMBERS, st.integers(0, 40) | NUMBERS), max_size=60)


def columns(pairs):
    return [np.array([pair[i] for pair in pairs], np.uint64) for i in range(2)]


@given(PAIRS, PAIRS, st.booleans())
def test_a_key_is_found_where_it_is(held, asked, in_order):
    run = sorted(set(held))
    asked = asked + held[::2]
    if in_order:
        asked.sort()
    search = Search(*columns(asked))
    hits = search.look(3, *columns(run))
    where = {pair: row for row, pair in enumerate(run)}
    assert search.row.tolist() == [where.get(pair, -1) for pair in asked]
    assert search.which.tolist() == [3 if pair in where else -1 for pair in asked]
    assert hits.tolist() == [i for i, pair in enumerate(asked) if pair in where]
    assert search.missing.tolist() == [i for i, pair in enumerate(asked) if pair not in where]


@given(PAIRS)
def test_keys_are_put_in_order_and_equal_ones_stay_as_they_were(pairs):
    order, first = hash_order(*columns(pairs))
    assert order.tolist() == sorted(range(len(pairs)), key=pairs.__getitem__)
    ordered = [pairs[i] for i in order]
    assert [ordered[i] for i in first] == sorted(set(pairs))
    assert first.tolist() == [i for i, pair in enumerate(ordered) if i == 0 or ordered[i - 1] != pair]


def test_a_key_that_is_there_very_often_is_not_sorted_by_buckets():
    assert hash_order(*columns([(7, 7)] * 100)) is None
    assert hash_order(*columns([(i << 57, 0) for i in range(100)])) is not None
