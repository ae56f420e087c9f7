"""One controller: what it decides from what the stream and the servers show, in the simulator and in a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import counts, posts, rows_of, two_counts
from weir.hashing import mix
from weir.locality.manager import LocalityManager
from weir.locality.proposal import propose
from weir.locality.schedule import AT_ONCE
from weir.locality.stats import BatchStats
from weir.routing.hash import Hash
from weir.testing import run, start
from weir_evaluation.simulate.chain import bound, run_chain
from weir_evaluation.simulate.scenarios import SCENARIOS


def simulated(name, *routings, batches=14, rows=6000):
    case = SCENARIOS[name].case(batches, rows, seed=3)
    runs = [run_chain(case, routing) for routing in routings]
    return rows / bound(case)[-1], runs


@pytest.mark.parametrize("name", ["affinity, slow", "affinity, skew, slow"])
def test_slow_servers_get_what_they_can_carry_and_keys_stay_together(name):
    best, (locality, auto) = simulated(name, weir.Locality(), weir.Auto())
    assert auto.rate() > 2 * locality.rate()
    assert auto.rate() > 0.88 * best
    assert auto.locality[-4:].mean() > 0.7


def test_skewed_keys_are_split_and_few_others_move():
    best, (auto,) = simulated("skew, slow", weir.Auto())
    assert auto.rate() > 0.88 * best
    assert auto.changes <= 3


@pytest.mark.parametrize("name", ["nothing to gain", "one operator"])
def test_where_nothing_is_gained_nothing_moves(name):
    _, (plain, auto) = simulated(name, weir.Hash(), weir.Auto())
    assert auto.moved == 0
    assert auto.rate() > 0.97 * plain.rate()


def test_new_affinity_and_speeds_are_followed_at_once_and_homes_within_a_few_batches():
    _, (weighted, auto) = simulated("drift", weir.Weighted(Hash()), weir.Auto(), batches=16)
    assert auto.seconds[8] < 1.3 * weighted.seconds[8]  # the batch of the change
    assert auto.rate() > 0.93 * weighted.rate()
    assert auto.locality[7] > 0.7
    assert auto.locality[12:].mean() > 0.7


def test_a_hot_key_that_cannot_be_split_gets_a_server_of_its_own():
    best, (plain, auto) = simulated("hot key, no merging", weir.Hash(), weir.Auto())
    assert auto.rate() > 0.97 * best
    assert plain.rate() < 0.75 * best


def observed(manager, keys):
    manager.observe(BatchStats.of({0: keys}, {}))
    if manager.due:
        manager.offer(propose(manager.snapshot()))
    return manager.plan_next()


def test_a_key_is_split_while_it_is_hot_and_for_a_while_after():
    manager = LocalityManager(weir.Auto(), ["words"], [], 4, splits=[0])
    rng = np.random.default_rng(0)
    hot = np.uint64(12345)
    split = []
    for share in [0.5] * 3 + [0.0] * 100:
        keys = rng.integers(2**63, size=1000, dtype=np.uint64)
        keys[: int(share * 1000)] = hot
        observed(manager, keys)
        split.append(hot in manager.hot[0])
    assert all(split[:6])
    assert not split[-1]
    assert split == sorted(split, reverse=True)  # it does not come and go


def test_what_is_split_and_measured_survives_a_restart():
    manager = LocalityManager(weir.Auto(), ["words"], [], 4, splits=[0])
    keys = np.concatenate([np.full(500, 7, np.uint64), np.arange(500, dtype=np.uint64) << np.uint64(50)])
    rows, busy = {0: np.full(4, 250.0)}, {0: np.array([0.1, 0.1, 0.1, 0.4])}
    for _ in range(3):
        manager.observe_load(rows, busy)
        observed(manager, keys)
    again = LocalityManager(weir.Auto(), ["words"], [], 4, splits=[0])
    again.restore(manager.state())
    assert again.hot[0].tolist() == manager.hot[0].tolist() == [7]
    assert again.shares.tolist() == manager.shares.tolist()
    assert again.shares[3] < again.shares[0] / 2


FAULTS = ("plan-written:2", "step-started:300", "commit-written:4", "job-done:5")


@pytest.mark.parametrize("live", [False, True], ids=["jobs", "live"])
@pytest.mark.parametrize("faults", [(), FAULTS], ids=["", "faults"])
def test_counts_are_right_whatever_it_decides(live, faults):
    tables = [posts(2000, seed) for seed in range(7)]
    query = start(
        two_counts(), servers=4, routing="auto", faults=faults, execution="live" if live else "jobs"
    )
    for number, table in enumerate(tables):
        query.feed(table)
        if number in (1, 4):
            query.reconfigure(wait=True)
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    said = query.describe()
    assert ("the last proposal was" in said) or faults  # a request dies with its driver
    assert "level the load" in said


@dataclass
class Seen:
    rows: int = 0


def test_it_says_what_only_the_user_can_change():
    def count(key, rows, state: Seen):
        state.rows += len(rows)

    rows = pa.table({"word": ["the"] * 600 + [f"w{i}" for i in range(400)]})
    app = weir.source("word string").process("word", count, state=Seen, name="words", output="word string")
    query = run(app, [rows] * 3, servers=4, routing="auto")
    assert query.progress.routing.needs["words"] == pytest.approx(2.4, abs=0.05)
    assert "the hottest key of words needs 2.4 servers: let the operator merge" in query.describe()
    assert rows_of(query.state("words"))


def test_it_says_which_operators_it_does_not_steer():
    tables = [posts(500, seed) for seed in range(3)]
    query = run(two_counts(parallelism=2), tables, servers=4, routing="auto")
    assert "topics is not steered: homes are learnt of operators on all 4 servers, and" in query.describe()
    assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_unknown_balance_is_refused():
    with pytest.raises(weir.errors.TopologyError, match="balance='tme': did you mean 'time'"):
        weir.Locality(balance="tme")


def test_keys_are_counted_now_and_then_where_nothing_is_gained():
    manager = LocalityManager(weir.Auto(), ["a", "b"], [(0, 1)], 4, splits=[0, 1])
    rng, counted = np.random.default_rng(0), []
    even = {o: np.full(4, 1000.0) for o in (0, 1)}, {o: np.full(4, 0.5) for o in (0, 1)}

    def batch(load=even):
        counted.append(manager.counting)
        manager.observe_load(*load)
        if manager.counting:
            left, right = (rng.integers(2**64 - 1, size=6000, dtype=np.uint64) for _ in range(2))
            manager.observe(BatchStats.of({0: left, 1: right}, {(0, 1): (left, right)}))
            if manager.due:
                manager.offer(propose(manager.snapshot()))
        else:
            manager.pass_over()
        assert manager.plan_next() is None

    for _ in range(100):
        batch()
    assert all(counted[:4])
    assert sum(counted[50:]) <= 2
    assert manager.batch == 100
    # one server has more to do than the others: it looks again at once
    batch((even[0], {o: np.array([0.5, 0.5, 1.5, 0.5]) for o in (0, 1)}))
    assert manager.counting


def test_what_is_not_counted_is_right_all_the_same():
    rng = np.random.default_rng(0)
    names = [[f"{kind}{i}" for i in range(3000)] for kind in "pt"]
    tables = []
    for _ in range(14):
        drawn = [rng.integers(3000, size=3000) for _ in range(2)]
        columns = [[names[k][i] for i in ids] for k, ids in enumerate(drawn)]
        tables.append(pa.table({"place": columns[0], "topic": columns[1], "n": drawn[0]}))
    query = start(two_counts(), servers=3, routing="auto")
    for table in tables:
        query.feed(table)
        query.reconfigure(wait=True)  # so that all has been judged when the next batch is planned
    assert not all(p.routing.counting for p in query.recent_progress)
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_moving_costs_what_states_were_seen_to_weigh():
    rng = np.random.default_rng(0)
    place = rng.integers(1500, size=4000)
    names = {kind: [f"{kind}{'long' * 20}{i}" for i in range(1500)] for kind in "pt"}
    columns = {"place": [names["p"][i] for i in place], "topic": [names["t"][i] for i in place], "n": place}
    query = start(two_counts(), servers=3, routing="auto")
    for _ in range(4):
        query.feed(pa.table(columns))
        query.reconfigure(wait=True)
    decided = [one for p in query.recent_progress for one in p.routing.new]
    told = next(one.forecast for one in decided if one.forecast.moved)
    assert told.bytes / told.moved != 100  # which is taken before anything is measured
    assert 10 < told.bytes / told.moved < 500


def run_of(speeds, batches, seconds=1, rows=3000, seed=0):
    """Return the manager after batches of some seconds each, and in which of them keys moved, by adopted tables."""
    rng, manager = np.random.default_rng(seed), LocalityManager(weir.Auto(), ["a", "b"], [(0, 1)], 4)
    adopted = []
    for number in range(batches):
        left = rng.integers(60, size=rows)
        right = np.where(rng.random(rows) < 0.8, left % 20, rng.integers(20, size=rows)) + 20 * rng.integers(
            3, size=rows
        )
        keys = [mix(k.astype(np.uint64), np.uint64(o)) for o, k in enumerate((left, right))]
        before = sum(d.adopted for d in manager.decisions)
        manager.plan_next()
        if sum(d.adopted for d in manager.decisions) > before:
            adopted.append(number)
        loads = [np.bincount(manager.route(o, k), minlength=4).astype(float) for o, k in enumerate(keys)]
        manager.budget.tell(number * seconds * 1_000_000)
        manager.observe_load(
            dict(enumerate(loads)), {o: 1e-3 * n / speeds(number) for o, n in enumerate(loads)}
        )
        manager.observe(BatchStats.of(dict(enumerate(keys)), {(0, 1): (keys[0], keys[1])}))
        if manager.due:
            manager.offer(propose(manager.snapshot()))
    return manager, adopted


@given(st.integers(0, 2**31))
@settings(max_examples=2, deadline=None)
def test_noise_moves_nothing_once_keys_have_their_homes(seed):
    rng = np.random.default_rng(seed)
    manager, adopted = run_of(lambda _: np.exp(rng.uniform(-0.1, 0.1, 4)), 40, seed=seed)
    assert adopted
    assert max(adopted) < 20
    assert manager.shares is None


def test_however_speeds_swing_changes_are_bounded():
    swing = [np.array([1, 1, 1, 0.3]), np.array([0.3, 1, 1, 1])]
    _, adopted = run_of(lambda number: swing[number // 3 % 2], 120)
    later = [b for b in adopted if b > 20]
    assert later
    assert len(later) <= 100 / 4 + 100 / 20  # at most every fourth batch, and once per period
    assert len(adopted) <= AT_ONCE + 120 / 60 + 1


def test_after_many_changes_one_a_minute_is_left_and_a_request_is_served_at_once():
    manager, _ = run_of(lambda _: np.ones(4), 3)
    while manager.budget.left:
        manager.budget.spend()
    manager.batch += 100  # a period is over
    assert not manager.due
    again = LocalityManager(weir.Auto(), ["a", "b"], [(0, 1)], 4)
    again.restore(manager.state())
    again.batch += 100
    assert not again.due
    again.budget.tell(manager.budget.clock + 60_000_000)
    assert again.due
    manager.request()
    assert manager.due
