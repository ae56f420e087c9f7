"""The manager: learns, places new keys, moves only what pays, and goes on from a checkpoint as if nothing was."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import CheckpointMismatch, TopologyError
from weir.hashing import key_group, mix
from weir.locality import BatchStats, Locality, LocalityManager, propose
from weir.locality.key_affinity import KeyAffinity
from weir.locality.placement import place, place_for_next
from weir.routing.table import Table
from weir_evaluation.partition import Metis

pytestmark = pytest.mark.usefixtures("few_starts")

N = 4


def batch(rng, rows=2000, communities=16, tags=400, shift=0, mixing=0.1):
    state = rng.integers(96, size=rows)
    tag = rng.integers(tags // communities, size=rows) * communities + (state + shift) % communities
    tag = np.where(rng.random(rows) < mixing, rng.integers(tags, size=rows), tag)
    return mix(state.astype(np.uint64), np.uint64(1)), mix(tag.astype(np.uint64), np.uint64(2))


def stats_of(left, right):
    return BatchStats.of({0: left, 1: right}, {(0, 1): (left, right)})


def turn(manager, left, right):
    manager.observe(stats_of(left, right))
    if manager.due:
        manager.offer(propose(manager.snapshot()))
    return manager.plan_next()


def manager_for(**config):
    return LocalityManager(Locality(**{"period": 5, **config}), ["states", "tags"], [("states", "tags")], N)


def test_learns_and_then_leaves_well_alone():
    rng, manager, moved = np.random.default_rng(0), manager_for(), []
    for _ in range(30):
        plan = turn(manager, *batch(rng))
        moved.append(plan.moved if plan else 0)
    assert manager.locality > 0.8
    assert max(manager.imbalance) < 1.2
    assert sum(moved[10:]) < 0.02 * (96 + 400) * 20
    assert any(d.adopted for d in manager.decisions)
    told = [d for d in manager.decisions if d.adopted and d.outcome.get("batches", 0) >= 3]
    assert abs(told[-1].forecast.locality_then - told[-1].outcome["locality"]) < 0.1


def test_follows_a_drift():
    rng, manager = np.random.default_rng(1), manager_for(half_life=1.0)
    for _ in range(12):
        turn(manager, *batch(rng))
    turn(manager, *batch(rng, shift=5))
    assert manager.locality < 0.5
    for _ in range(15):
        turn(manager, *batch(rng, shift=5))
    assert manager.locality > 0.75


def test_new_keys_join_their_company_at_the_next_boundary():
    rng, manager = np.random.default_rng(2), manager_for()
    for _ in range(12):
        turn(manager, *batch(rng))
    left, right = batch(rng, mixing=0.0)
    new = right + np.uint64(1)
    manager.observe(stats_of(left, new))
    first = manager.locality
    before = manager.table(1)
    changed = manager.plan_next().patches[1].hashes
    assert int((before.find(changed) < 0).sum()) == len(np.unique(new))
    manager.observe(stats_of(left, new))
    assert first < 0.4 < 0.7 < manager.locality
    paper = manager_for(new_keys="hash")
    for _ in range(4):
        turn(paper, left, right)
    paper.observe(stats_of(left, new))
    assert paper.plan_next() is None


def test_patches_and_moves_tell_the_whole_story():
    rng, manager = np.random.default_rng(3), manager_for()
    tables = {o: manager.table(o) for o in range(2)}
    for i in range(12):
        plan = turn(manager, *batch(rng, shift=i // 6))
        for o in range(2):
            before = tables[o]
            if plan and o in plan.patches:
                tables[o] = before.patch(plan.patches[o], version=plan.version)
                moves = before.diff(tables[o])
                assert plan.moves[o].hashes.tolist() == moves.hashes.tolist()
                assert plan.moves[o].source.tolist() == moves.source.tolist()
                assert plan.moves[o].target.tolist() == moves.target.tolist()
            now = manager.table(o)
            assert tables[o].hashes.tolist() == now.hashes.tolist()
            assert tables[o].instances.tolist() == now.instances.tolist()


def test_goes_on_from_its_state_exactly():
    rng = np.random.default_rng(4)
    batches = [batch(rng, shift=i // 8) for i in range(20)]
    manager = manager_for()
    for b in batches[:9]:
        turn(manager, *b)
    state = manager.state()
    state["about"] = json.loads(json.dumps(state["about"]))
    assert all(isinstance(v, np.ndarray) for k, v in state.items() if k != "about")
    copy = manager_for()
    copy.restore(state)
    for b in batches[9:]:
        one, two = turn(manager, *b), turn(copy, *b)
        assert (one is None) == (two is None)
        for o in range(2):
            assert manager.table(o).hashes.tolist() == copy.table(o).hashes.tolist()
            assert manager.table(o).instances.tolist() == copy.table(o).instances.tolist()
    other = LocalityManager(Locality(), ["a", "b"], [("a", "b")], N)
    with pytest.raises(CheckpointMismatch, match="operators"):
        other.restore(state)


@given(st.permutations(range(200)))
@settings(max_examples=10, deadline=None)
def test_order_of_rows_within_a_batch_makes_no_difference(order):
    left, right = batch(np.random.default_rng(5), rows=200)
    one, two = manager_for(), manager_for()
    for _ in range(3):
        turn(one, left, right)
        turn(two, left[order], right[order])
    for o in range(2):
        assert one.table(o).hashes.tolist() == two.table(o).hashes.tolist()
        assert one.table(o).instances.tolist() == two.table(o).instances.tolist()


def test_memory_is_bounded_and_old_keys_leave():
    rng, manager = np.random.default_rng(6), manager_for(capacity=300)
    for i in range(20):
        left = rng.integers(50, size=500).astype(np.uint64)
        right = (rng.integers(200, size=500) + 100 * i).astype(np.uint64)
        plan = turn(manager, left, right)
    state = manager.state()
    assert len(state["keys.1.left"]) <= 375
    assert len(state["history.0.left"]) <= 375
    assert len(manager.table(1)) <= 375
    assert plan is not None


def test_starts_from_a_table_and_serves_other_sizes():
    manager = manager_for()
    table = Table(np.array([11, 12], np.uint64), np.array([3, 2], np.int32), N, "tags")
    manager.start_from({1: table})
    keys = np.array([11, 12, 13], np.uint64)
    assert manager.route(1, keys).tolist() == [3, 2, int(key_group(keys[2:], N)[0])]
    manager.resize(3)
    assert manager.route(1, keys[:2]).tolist() == [int(key_group(keys[:1], 3)[0]), 2]
    rng = np.random.default_rng(7)
    for _ in range(4):
        turn(manager, *batch(rng))
    assert manager.table(0).n == 3
    late = propose(manager.snapshot())
    manager.resize(2)
    manager.offer(late)
    assert manager.due
    assert manager.plan_next() is None or manager.table(1).instances.max(initial=0) < 2
    assert manager.table(0).instances.max() <= 2


def test_names_the_keys_that_only_splitting_can_balance():
    rng, manager = np.random.default_rng(9), manager_for()
    manager.splits = frozenset({0, 1})
    left, right = batch(rng)
    right[:1000] = 77
    turn(manager, left, right)
    assert {o: keys.tolist() for o, keys in manager.hot.items()} == {0: [], 1: [77]}
    assert manager.heaviest(0) < 1 < manager.heaviest(1)


def test_a_hierarchy_and_other_partitioners():
    for config in ({"hierarchy": [[0, 1], [2, 3]]}, {"partitioner": Metis(), "forecast": None}):
        rng, manager = np.random.default_rng(8), manager_for(**config)
        for _ in range(6):
            turn(manager, *batch(rng))
        assert manager.locality > 0.7
    with pytest.raises(
        TopologyError, match="partitioner='metis': expected .* weir_evaluation.partition.Metis"
    ):
        Locality(partitioner="metis")


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 1000))
@settings(deadline=None)
def test_placement_respects_room_and_order(keys, n, seed):
    rng = np.random.default_rng(seed)
    ties = rng.integers(0, 4, size=(keys, n)).astype(np.float32)
    servers = np.tile(np.arange(n, dtype=np.int32), (keys, 1))
    weight = rng.integers(1, 5, size=keys).astype(np.float64)
    hashes = rng.permutation(keys).astype(np.uint64)
    limit = np.full(n, 1.03 * weight.sum() / n)
    to = place(servers, ties, weight, np.zeros(n), limit, hashes)
    assert ((to >= 0) == (ties.sum(axis=1) > 0)).all()
    load = np.bincount(to[to >= 0], weights=weight[to >= 0], minlength=n)
    assert load.max(initial=0) <= limit[0] + weight.max()
    order = rng.permutation(keys)
    again = place(servers, ties[order], weight[order], np.zeros(n), limit, hashes[order])
    assert (again == to[order]).all()


@given(
    keys=st.integers(1, 40),
    n=st.integers(2, 5),
    seed=st.integers(0, 1000),
    cost=st.sampled_from([0.0, 0.5, 1.0]),
    stay=st.sampled_from([0.0, 2.0]),
)
@settings(deadline=None)
def test_keys_go_where_their_next_rows_are_if_that_pays_and_there_is_room(keys, n, seed, cost, stay):
    rng = np.random.default_rng(seed)
    coming = rng.integers(0, 4, size=(keys, n)).astype(np.float32)
    rows = coming + rng.integers(0, 3, size=(keys, n)).astype(np.float32)
    servers = np.tile(np.arange(n, dtype=np.int32), (keys, 1))
    weight = rng.integers(1, 5, size=keys).astype(np.float64)
    hashes, homes = rng.permutation(keys).astype(np.uint64), rng.integers(0, n, keys).astype(np.int32)
    load = np.bincount(homes, weights=weight, minlength=n).astype(np.float64)
    limit = np.full(n, 1.1 * weight.sum() / n)
    terms = {"cost": cost, "stay": stay}
    to = place_for_next(servers, coming, rows, weight, load, limit, hashes, homes, **terms)
    moved, at = to != homes, np.arange(keys)
    gained = coming[at, to] - coming[at, homes]
    settled_there = rows[at, to] >= rows[at, homes]
    assert (gained[moved] > np.maximum(np.where(settled_there, cost, 2 * cost), stay)[moved]).all()
    after = np.bincount(to, weights=weight, minlength=n)
    assert (after <= np.maximum(limit, load) + 1e-9).all()
    if not moved.any() and (load < limit - weight.max()).all():
        best = coming.max(axis=1) - coming[at, homes]
        assert (best <= max(2 * cost, stay)).all()
    order = rng.permutation(keys)
    some = (servers, coming[order], rows[order], weight[order], load, limit, hashes[order], homes[order])
    assert (place_for_next(*some, **terms) == to[order]).all()
    still = np.zeros_like(coming)
    assert (place_for_next(servers, still, rows, weight, load, limit, hashes, homes) == homes).all()


def test_company_that_an_older_version_saved_as_a_matrix_is_read():
    matrix = np.array([[0.0, 2.0], [1.0, 0.0]], np.float32)
    old, again = (KeyAffinity(half_life=5, age=5, capacity=10) for _ in range(2))
    old.restore({"entry": np.array([3, 8]), "born": np.array([1, 2]), "ties": matrix})
    again.restore(old.state())
    again.renumber(np.array([8, 3]))
    for affinity, keys in ((old, [8, 3]), (again, [0, 1])):
        servers, rows, _ = affinity.of(np.array(keys), batch=2)
        assert (servers[:, 0].tolist(), rows[:, 0].tolist()) == ([0, 1], [1.0, 2.0])


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=20), max_size=12))
@settings(deadline=None)
def test_company_is_what_was_added_and_the_longest_unseen_keys_leave(batches):
    affinity, truth, seen = KeyAffinity(half_life=1e12, age=3, capacity=8), {}, {}
    for number, pairs in enumerate(batches):
        entries = np.array(sorted({key for key, _ in pairs}), np.int64)
        affinity.forget()
        truth = {key: rows for key, rows in truth.items() if affinity.has(np.array([key]))[0]}
        affinity.touch(entries, number, np.full(len(entries), -1, np.int32))
        seen.update(dict.fromkeys(entries.tolist(), number))
        keys, servers = np.array(pairs, np.int64).reshape(-1, 2).T
        affinity.add(keys, servers.astype(np.int32), np.ones(len(keys)))
        for key, server in pairs:
            truth.setdefault(key, {}).setdefault(server, 0)
            truth[key][server] += 1
        kept = np.array(sorted(truth), np.int64)
        assert len(affinity) == len(kept)
        servers, rows, _ = affinity.of(kept, number)
        for at, key in enumerate(kept.tolist()):
            held = {int(s): int(r) for s, r in zip(servers[at], rows[at], strict=True) if s >= 0 and r}
            assert held == truth[key]
    affinity.forget()
    if len(affinity) < len(truth):
        left = [k for k in truth if not affinity.has(np.array([k]))[0]]
        stay = [k for k in truth if affinity.has(np.array([k]))[0]]
        assert max(seen[k] for k in left) <= min(seen[k] for k in stay)
        assert len(stay) == 8


def test_a_manager_without_decisions_says_so_after_three_periods():
    manager = LocalityManager(Locality(period=2), ["a", "b"], [(0, 1)], 2)
    keys = np.arange(50, dtype=np.uint64)
    said = []
    for _ in range(8):
        manager.observe(BatchStats.of({0: keys, 1: keys}, {(0, 1): (keys, keys)}))
        manager.plan_next()
        said.append((manager.stalled(), manager.stalled(computing=True)))
    assert said[5] == (None, None)
    assert said[-1][0] == "no reconfiguration was decided on in the last 6 batches: none was computed"
    assert said[-1][1].endswith("one is still being computed")
    manager.offer(propose(manager.snapshot()))
    manager.plan_next()
    assert manager.stalled() is None
    assert LocalityManager(Locality(period=None), ["a", "b"], [(0, 1)], 2).stalled() is None
