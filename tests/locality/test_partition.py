"""Partitioners: every vertex on one server, every operator within its bound, the same answer for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import EngineError, ParameterError
from weir.locality import KeyGraph, count_keys, count_pairs, partition
from weir.locality.partition import relabel
from weir.locality.partition._cycle import bottom_level, exchange, settle
from weir.locality.partition.base import Limits
from weir_evaluation.partition import PARTITIONERS, Metis


def chain(columns) -> KeyGraph:
    pairs = {(o, o + 1): count_pairs(a, b) for o, (a, b) in enumerate(itertools.pairwise(columns))}
    return KeyGraph.build([count_keys(k) for k in columns], pairs)


def planted(rng, rows=20_000, left=240, right=800, communities=16, mixing=0.2, operators=2):
    first = rng.integers(left, size=rows)
    columns = [first.astype(np.uint64)]
    for _ in range(operators - 1):
        inside = rng.integers(right // communities, size=rows) * communities + first % communities
        key = np.where(rng.random(rows) < mixing, rng.integers(right, size=rows), inside)
        columns.append(key.astype(np.uint64))
    return chain(columns)


GRAPH = planted(np.random.default_rng(0))


@pytest.mark.parametrize("partitioner", PARTITIONERS.values(), ids=PARTITIONERS)
def test_planted_communities_are_found(partitioner):
    parts = partition(GRAPH, 4, partitioner=partitioner, seed=1)
    assert parts.shape == (len(GRAPH),)
    assert set(np.unique(parts)) <= set(range(4))
    assert GRAPH.locality(parts) > 0.8
    assert (partition(GRAPH, 4, partitioner=partitioner, seed=1) == parts).all()


@pytest.mark.parametrize("operators", [2, 3, 4])
def test_each_operator_of_a_chain_is_balanced(operators):
    graph = planted(np.random.default_rng(1), operators=operators)
    for n in (2, 5):
        parts = partition(graph, n, seed=3)
        assert graph.overload(parts, n).max() <= 1.03 + 1e-6
        assert graph.locality(parts) > 1.3 / n


@given(st.integers(2, 6), st.integers(0, 5), st.data())
@settings(max_examples=25, deadline=None)
def test_bound_holds_up_to_the_heaviest_key(n, seed, data):
    size = data.draw(st.integers(20, 200))
    rng = np.random.default_rng(seed)
    graph = chain(
        [rng.zipf(1.8, size).clip(max=30).astype(np.uint64), rng.integers(60, size=size).astype(np.uint64)]
    )
    parts = partition(graph, n, seed=seed)
    limits = Limits.of(graph, n)
    loads = graph.loads(parts, n)
    # integral keys: no server can be expected closer to its limit than one more key
    for o in range(2):
        own = graph.operator == o
        assert loads[o].max() <= max(
            limits.limit[o, 0] + np.sort(graph.weight[own])[-2:].max(), graph.weight[own].max()
        )
    assert loads.sum() == graph.weight.sum()


def test_hub_gets_a_server_and_the_others_keep_their_bound():
    rng = np.random.default_rng(2)
    hub = np.concatenate([np.zeros(5000, np.uint64), rng.integers(1, 200, size=5000).astype(np.uint64)])
    graph = chain([rng.integers(500, size=10_000).astype(np.uint64), hub])
    n = 4
    parts = partition(graph, n)
    floor = graph.floor(n)
    assert floor[1] == pytest.approx(2.0)
    assert graph.overload(parts, n)[1] == pytest.approx(floor[1])
    assert np.sort(graph.loads(parts, n)[1])[-2] <= 1.03 * 10_000 / n
    assert graph.overload(parts, n)[0] <= 1.03 + 1e-6


def test_warm_start_moves_little_and_keeps_the_locality():
    before = partition(GRAPH, 4, seed=1)
    again = partition(GRAPH, 4, seed=9, warm=before, stay_bonus=0.05)
    assert (again != before).mean() < 0.05
    assert GRAPH.locality(again) >= GRAPH.locality(before) - 0.01
    new = before.copy()
    new[::10] = -1
    placed = partition(GRAPH, 4, seed=9, warm=new, stay_bonus=0.05)
    assert GRAPH.locality(placed) > 0.97 * GRAPH.locality(before)
    assert (placed != before)[new >= 0].mean() < 0.05


def test_full_servers_exchange_keys():
    # four pairs of keys that belong together; two pairs are torn apart, and no server has room for one key more
    left = np.repeat(np.arange(4, dtype=np.uint64), 100)
    graph = chain([left, left + np.uint64(10)])
    torn = np.array([0, 0, 1, 1, 0, 1, 0, 1], np.int32)
    limits = Limits.of(graph, 2, alpha=1.0)
    nowhere = np.full(len(graph), -1, np.int32)
    level = bottom_level(graph, limits, nowhere, 0.0, np.zeros(len(graph), np.bool_))
    stuck = torn.copy()
    settle(level, limits.limit, stuck, 0, rounds=6)
    assert graph.locality(stuck) == 0.5
    parts = exchange(level, limits.limit, torn, 0)
    assert graph.locality(parts) == 1.0
    # half of what is cut, at most, is won by looser limits: who asks for more leaves it
    assert (exchange(level, limits.limit, torn, 0, least=1.5) == torn).all()
    assert graph.overload(parts, 2).max() == 1.0


def test_the_states_that_move_are_those_that_gain_most_whatever_their_operator():
    # two of many left keys are apart from their right keys: to move the two is enough
    left = np.repeat(np.arange(20, dtype=np.uint64), 60)
    right = 100 + np.arange(1200, dtype=np.uint64) // 10
    graph = chain([left, right])
    own = graph.vertices(0, np.arange(20, dtype=np.uint64))
    present = np.empty(len(graph), np.int32)
    present[graph.vertices(1, np.unique(right))] = np.repeat([0, 1], 60)
    present[own] = np.repeat([0, 1], 10)
    present[own[[0, 19]]] = [1, 0]
    parts = partition(graph, 2, warm=present, stay_bonus=1.0)
    assert graph.locality(parts) == 1.0
    assert sorted(np.flatnonzero(parts != present)) == sorted(own[[0, 19]])


def test_fixed_vertices_and_shares_are_respected():
    fixed = np.full(len(GRAPH), -1, np.int32)
    fixed[:10] = 2
    parts = partition(GRAPH, 3, fixed=fixed)
    assert (parts[:10] == 2).all()
    shares = np.array([0.5, 0.25, 0.25])
    parts = partition(GRAPH, 3, shares=shares)
    assert GRAPH.overload(parts, 3, shares).max() <= 1.03 + 1e-6
    assert GRAPH.loads(parts, 3)[1].argmax() == 0


def test_what_cannot_share_a_server_shares_a_rack():
    racks = [[0, 1, 2, 3], [4, 5, 6, 7]]
    rack_of = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    nested, flat = partition(GRAPH, 8, hierarchy=racks), partition(GRAPH, 8)
    assert GRAPH.overload(nested, 8).max() <= 1.03 + 1e-6
    assert GRAPH.locality(rack_of[nested]) > 0.85
    assert GRAPH.locality(rack_of[nested]) >= GRAPH.locality(rack_of[flat]) - 0.02
    with pytest.raises(ParameterError, match="each server"):
        partition(GRAPH, 8, hierarchy=[[0, 1], [1, 2]])
    with pytest.raises(EngineError, match="takes no hierarchy"):
        partition(GRAPH, 8, partitioner=Metis(), hierarchy=racks)


@given(st.integers(1, 6), st.integers(0, 10_000))
@settings(deadline=None)
def test_relabelling_keeps_the_partition_and_half_of_what_could_stay(n, seed):
    """Taking the largest overlap first leaves at least half of what the best numbering leaves."""
    parts, present = np.random.default_rng(seed).integers(0, n, size=(2, 40)).astype(np.int32)
    new = relabel(parts, present, None, n)
    assert len(set(zip(parts.tolist(), new.tolist(), strict=True))) == len(set(parts.tolist()))
    assert len(set(new.tolist())) == len(set(parts.tolist()))
    names = itertools.permutations(range(n))
    best = max(int((np.array(name)[parts] == present).sum()) for name in names)
    assert 2 * int((new == present).sum()) >= best


def test_relabelling_undoes_a_renaming():
    parts = partition(GRAPH, 4, seed=1)
    renamed = np.array([2, 0, 3, 1], np.int32)[parts]
    assert (relabel(renamed, parts, None, 4) == parts).all()


def test_degenerate_graphs():
    nothing = KeyGraph.build([count_keys(np.zeros(0, np.uint64))] * 2, {})
    assert len(partition(nothing, 3)) == 0
    alone = chain([np.zeros(4, np.uint64), np.zeros(4, np.uint64)])
    assert len(set(partition(alone, 3).tolist())) == 1
    assert (partition(GRAPH, 1) == 0).all()
