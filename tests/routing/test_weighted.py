"""Weight grouping and its control: shares, rounds, starvation, recovery."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from weir.errors import CheckpointError
from weir.hashing import mix
from weir.network.profile import PAPER
from weir.routing.hash import Hash
from weir.routing.locality_aware import LocalityAware
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir.routing.weighted import BalancedWeights, Weighted
from weir_evaluation.routing import DynamicWeights, PrintedWeights

defaults = st.sampled_from([Shuffle(), Hash(), PartialKey()])
far = st.lists(st.integers(0, 3), min_size=1, max_size=9)
seeds = st.integers(0, 2**32)
controls = st.builds(
    DynamicWeights,
    alpha=st.floats(1.01, 4),
    delta=st.integers(1, 9),
    floor=st.integers(1, 3),
    ceiling=st.integers(64, 300),
)
quick = settings(max_examples=60, deadline=None)
AIMD = DynamicWeights()


@st.composite
def streams(draw: st.DrawFn) -> np.ndarray:
    """From one hot key alone to all different, in bursts or shuffled."""
    rng = np.random.default_rng(draw(seeds))
    rows = draw(st.integers(0, 2000))
    keys = (rng.random(rows) ** draw(st.floats(1, 12)) * draw(st.integers(1, 500))).astype(np.uint64)
    return mix(np.sort(keys) if draw(st.booleans()) else keys, np.uint64(1))


def reports(draw: st.DrawFn, n: int, periods: int) -> np.ndarray:
    rng = np.random.default_rng(draw(seeds))
    times = rng.lognormal(0, draw(st.floats(0, 3)), (periods, n))
    times[rng.random((periods, n)) < draw(st.floats(0, 0.5))] = np.nan
    return times


@given(keys=streams(), distances=far, default=defaults, seed=seeds, source=st.integers(0, 5))
@quick
def test_every_complete_round_gives_each_receiver_its_weight(keys, distances, default, seed, source) -> None:
    n = len(distances)
    router = Weighted(default).router(n, seed=seed, source=source, distances=distances)
    to = np.concatenate([router.route(part) for part in np.array_split(keys, 3)])
    round_ = int(router.weights.sum())
    for begin in range(0, len(to), round_):
        got = np.bincount(to[begin : begin + round_], minlength=n)
        assert (got <= router.weights).all()
        if begin + round_ <= len(to):
            assert (got == router.weights).all(), "nobody starves"


@given(keys=streams(), distances=far, default=defaults, seed=seeds)
@quick
def test_rows_follow_the_default_grouping_then_priority(keys, distances, default, seed) -> None:
    """The algorithm in plain Python, row by row."""
    n = len(distances)
    router = Weighted(default).router(n, seed=seed, distances=distances)
    weights, order = router.weights.tolist(), router.order.tolist()
    used = [0] * n
    expected = []
    for wanted in default.router(n, seed=seed).route(keys).tolist():
        chosen = wanted if used[wanted] < weights[wanted] else next(c for c in order if used[c] < weights[c])
        used[chosen] += 1
        expected.append(chosen)
        if used == weights:
            used = [0] * n
    assert router.route(keys).tolist() == expected
    assert [distances[c] for c in order] == sorted(distances)


@st.composite
def lives(draw: st.DrawFn) -> tuple:
    """Some periods of rows and reports."""
    distances = draw(far)
    keys = [draw(streams())[:300] for _ in range(draw(st.integers(1, 5)))]
    return distances, keys, reports(draw, len(distances), len(keys)), draw(controls), draw(defaults)


@given(life=lives(), cut=st.floats(0, 1), seed=seeds)
@quick
def test_restored_routers_go_on_alike_and_hear_each_report_once(life, cut, seed) -> None:
    distances, keys, times, control, default = life
    grouping = Weighted(default, control=control)

    def fresh() -> weir.routing.weighted.WeightedRouter:
        return grouping.router(len(distances), seed=seed, source=1, distances=distances)

    def live(router, periods) -> list[list[int]]:
        out = []
        for k in periods:
            out.append(router.route(keys[k]).tolist())
            router.observe(times[k], slot=k)
            router.observe(times[k], slot=k)
            router.observe(times[k], slot=k - 1)
        return out

    whole, at = live(fresh(), range(len(keys))), int(cut * len(keys))
    first, second = fresh(), fresh()
    before = live(first, range(at))
    live(second, range(len(keys)))  # whatever it did before must not matter
    second.restore(first.counters())
    assert before + live(second, range(at, len(keys))) == whole


@given(life=lives())
@quick
def test_weights_stay_within_bounds_and_shares_change_in_the_middle_of_a_round(life) -> None:
    distances, keys, times, control, default = life
    n = len(distances)
    router = Weighted(default, control=control).router(n, distances=distances)
    for part, t in zip(keys, times, strict=True):
        to = router.route(part)
        assert len(to) == len(part), "every row goes somewhere"
        assert np.isin(to, np.arange(n)).all()
        weights = router.observe(t)
        assert ((weights >= control.floor) & (weights <= control.ceiling)).all()
        rest = int(router.at[1])
        assert 0 < rest <= weights.sum()
        ahead = router.counters()
        router.route(np.zeros(rest, np.uint64))
        assert router.used.sum() == 0, "the round that the report fell into ends with its shares"
        two = np.bincount(router.route(np.zeros(2 * int(weights.sum()), np.uint64)), minlength=n)
        assert (two == 2 * weights).all()
        router.restore(ahead)


@given(distances=far, control=controls, seed=seeds, periods=st.integers(0, 30), data=st.data())
@quick
def test_a_recovered_server_gets_its_weight_back(distances, control, seed, periods, data) -> None:
    router = Weighted(Shuffle(), control=control).router(len(distances), distances=distances)
    for times in reports(data.draw, len(distances), periods):
        router.observe(times)
    spread = control.alpha ** np.random.default_rng(seed).uniform(0, 0.99, len(distances))
    for _ in range(20 + -(-control.ceiling // control.delta)):
        router.observe(60 * spread)  # the way is nothing to them
    assert router.weights.tolist() == router.initial.tolist()


def test_times_far_from_the_median_change_weights() -> None:
    router = Weighted(Shuffle(), control=DynamicWeights(alpha=1.5, delta=3)).router(5)
    assert router.observe([1.0, 1.0, 1.4, 1.6, 0.6]).tolist() == [64, 64, 64, 32, 67]
    assert router.observe([1, 1, 1, 1, 1], waiting=[0, 0, 9, 0, 0]).tolist() == [64, 64, 32, 34, 66]


def test_a_near_receiver_may_keep_rows_waiting_as_long_as_another_is_away() -> None:
    """200 µs to another host: waiting for less than that is no reason to go there, more is one to come home."""
    router = Weighted(Shuffle(), control=AIMD).router(4, distances=[0, 2, 2, 2])
    assert router.observe([30e-6] * 4, waiting=[200e-6, 0, 0, 0]).tolist() == [64, 2, 2, 2]
    assert router.observe([30e-6] * 4, waiting=[900e-6, 0, 0, 0]).tolist() == [32, 2, 2, 2]
    assert router.observe([30e-6] * 4).tolist() == [34, 2, 2, 2]


def test_of_two_receivers_one_can_be_congested() -> None:
    assert Weighted(control=AIMD).router(2).observe([2.0, 1.0]).tolist() == [32, 64]


def served(router, strength, periods: int, rows: int = 4000) -> np.ndarray:
    """Shares of rows in the second half of a run in which the most overloaded server gathers all waiting rows."""
    loads = []
    for _ in range(periods):
        load = np.bincount(router.route(np.zeros(rows, np.uint64)), minlength=router.n)
        pressure = load / strength
        router.observe(1.0 / strength, waiting=np.where(pressure > 0.99 * pressure.max(), 100.0, 0.0))
        loads.append(load / load.sum())
    return np.array(loads[periods // 2 :])


@pytest.mark.parametrize(
    "strength", [(1, 1, 1, 0.25), (1, 0.5, 0.25, 0.125), (1, 0.8, 0.6, 0.5), (4, 1, 1, 1)]
)
def test_a_signal_that_only_names_the_most_loaded_server_is_enough(strength) -> None:
    """Throughput is what the most overloaded server allows: at least 85 % of the whole strength, on average."""
    strength = np.array(strength, np.float64)
    shares = served(Weighted(Shuffle(), control=AIMD).router(4), strength, 300)
    reached = (strength / shares).min(axis=1) / strength.sum()
    assert reached.mean() > 0.85
    assert (strength.min() * 4) / strength.sum() < 0.8, "round robin does not do that"


def test_a_server_that_fails_is_left_within_a_few_periods_even_after_fine_steps() -> None:
    router = Weighted(Shuffle(), control=AIMD).router(4)
    served(router, np.array([1, 0.8, 0.6, 0.5]), 200)
    for _ in range(8):
        router.observe([100.0, 1.0, 1.0, 1.0])
    assert router.weights[0] <= 0.2 * router.weights[1:].max()


def test_weights_do_not_all_sink_together() -> None:
    router = Weighted(Shuffle(), control=AIMD).router(4, distances=[0, 1, 2, 3])
    for period in range(100):
        router.observe(np.where(np.arange(4) == period % 4, 50.0, 1.0))
        assert (router.state.factor >= 1).any()


def test_equal_distances_and_speeds_are_as_balanced_as_a_shuffle() -> None:
    keys = mix(np.minimum(np.random.default_rng(1).zipf(1.3, 64_000), 999).astype(np.uint64), np.uint64(0))
    for default in (Shuffle(), Hash()):
        router = Weighted(default).router(8, distances=[2] * 8)
        load = np.zeros(8, np.int64)
        for part in np.array_split(keys, 10):
            load += np.bincount(router.route(part), minlength=8)
            router.observe(1 + 0.2 * np.random.default_rng(2).random(8))
        assert load.max() - load.min() <= 64
    one, two = (g.router(5, seed=3, source=1) for g in (Shuffle(), Weighted(Shuffle())))
    assert np.array_equal(one.route(keys), two.route(keys)), "round robin never runs out of share early"


def test_a_server_that_has_moved_starts_anew_and_the_others_go_on() -> None:
    before = Weighted(control=AIMD).router(3, distances=[0, 2, 2])
    before.observe([1.0, 9.0, 1.0])
    before.observe([9.0, 1.0, 1.0])
    after = Weighted(control=AIMD).router(3, distances=[0, 1, 2])
    after.restore(before.counters())
    assert before.weights.tolist() == [32, 1, 2]
    assert after.weights.tolist() == [32, 11, 2], "the second receiver is on this host now"


def test_nothing_known_changes_nothing() -> None:
    router = Weighted(control=AIMD).router(3)
    router.observe([9.0, 1.0, 1.0])
    assert router.observe([np.nan] * 3).tolist() == router.weights.tolist() == [32, 64, 64]
    fixed = Weighted(control=None).router(3)
    assert fixed.observe([9.0, 1.0, 1.0]).tolist() == [64, 64, 64]


@given(
    speeds=st.lists(st.floats(0.1, 1), min_size=2, max_size=8),
    gain=st.sampled_from([0.5, 0.75, 1.0]),
    far=st.booleans(),
)
@quick
def test_balanced_weights_find_what_every_server_can_carry(speeds, gain, far) -> None:
    """Batches of one source per server, each of which prefers its own: all are busy for about as long after a few."""
    strength, n = np.array(speeds), len(speeds)
    control = BalancedWeights(gain=gain)
    grouping = Weighted(Shuffle(), control=control)
    routers = [
        grouping.router(n, source=s, distances=[2 * (far and s != w) for w in range(n)]) for s in range(n)
    ]
    rows = np.zeros(2000, np.uint64)
    for batch in range(30):
        load = sum(np.bincount(r.route(rows), minlength=n) for r in routers)
        busy = load / strength * 1e-2
        for r in routers:
            weights = r.observe(1e-2 / strength, busy=busy, slot=batch)
            assert ((weights >= control.floor) & (weights <= control.ceiling)).all()
            assert np.array_equal(weights, r.observe(1e-2 / strength, busy=busy, slot=batch)), "heard once"
    assert busy.max() / busy.mean() < 1.3
    plain = (n * 2000 / n / strength).max() * 1e-2
    assert busy.max() < 1.05 * plain, "never worse than a shuffle"


def test_balanced_weights_come_back_when_a_server_has_recovered() -> None:
    router = Weighted(Shuffle()).router(4)
    rows = np.zeros(4000, np.uint64)
    for strength in ([1, 1, 1, 0.2], [1, 1, 1, 1]):
        for _ in range(10):
            busy = np.bincount(router.route(rows), minlength=4) / np.array(strength)
            router.observe(1 / np.array(strength), busy=busy)
    assert router.weights.min() >= 0.9 * router.weights.max()
    assert router.observe([1.0] * 4).tolist() == router.weights.tolist(), "nothing known, nothing changes"


def test_sources_overflow_to_different_receivers_first() -> None:
    firsts = {int(Weighted().router(4, source=s).order[0]) for s in range(4)}
    assert firsts == {0, 1, 2, 3}


def test_what_plans_are_checked_by() -> None:
    assert not Weighted().keyed
    assert Weighted(Hash()).keyed
    assert Weighted.splits_keys
    assert not Weighted.order_free
    assert Weighted(Hash()) == Weighted(Hash(), near=1.5)
    assert Weighted(profile=PAPER) == Weighted()


def test_the_printed_algorithm_forgets_distances_where_nobody_is_slow() -> None:
    control = PrintedWeights(delta=16)
    state = control.start(np.array([64, 11, 2]))
    for _ in range(16):
        weights = control.step(state, [1.0, 1.0, 1.0])
    assert weights.tolist() == [256, 256, 256]
    assert control.step(state, [1.0, 1.0, 3.0]).tolist() == [256, 256, 128]
    assert control.step(state, [np.nan, 1.0, 1.0]).tolist() == [256, 256, 144]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Weighted(default="hash"),  # type: ignore[arg-type]
        lambda: Weighted(Weighted()),
        lambda: Weighted(LocalityAware()),
        lambda: Weighted(profile="table"),  # type: ignore[arg-type]
        lambda: Weighted(profile="measure"),  # type: ignore[arg-type]
        lambda: Weighted(near=-1),
        lambda: Weighted(scale=0),
        lambda: Weighted(scale=500),
        lambda: Weighted().router(3, distances=[0, 1]),
        lambda: Weighted().router(3).observe([1.0, 2.0]),
        lambda: Weighted(control=AIMD).router(3).observe([1.0, -2.0, 1.0]),
        lambda: Weighted().router(3).observe([1.0] * 3, busy=[1.0, -2.0, 1.0]),
        lambda: Weighted().router(3).observe([1.0] * 3, busy=[1.0, 2.0]),
        lambda: BalancedWeights(gain=0),
        lambda: BalancedWeights(band=1),
        lambda: BalancedWeights(most=1),
        lambda: BalancedWeights(floor=9, ceiling=8),
        lambda: DynamicWeights(alpha=1),
        lambda: DynamicWeights(delta=0),
        lambda: DynamicWeights(floor=0),
        lambda: DynamicWeights(floor=9, ceiling=8),
        lambda: PrintedWeights(alpha=1),
        lambda: PrintedWeights(delta=0),
    ],
)
def test_senseless_parameters_are_refused(make) -> None:
    with pytest.raises(ValueError, match="got"):
        make()


def test_counters_of_another_size_are_refused() -> None:
    with pytest.raises(CheckpointError, match="used"):
        Weighted().router(3).restore(Weighted().router(4).counters())
