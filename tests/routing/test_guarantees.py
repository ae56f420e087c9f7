"""What each grouping promises, for any stream of keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.testing
from weir.hashing import mix
from weir.routing.base import Grouping, InstanceLoad
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir_evaluation.routing import Dalton, Fish, RandomChoices
from weir_evaluation.routing.bounded_ring import BoundedRing
from weir_evaluation.routing.d_choices import DChoices
from weir_evaluation.routing.dkg import HeavyKeys
from weir_evaluation.routing.two_choices import TwoChoices
from weir_evaluation.routing.w_choices import WChoices

ALL: list[Grouping] = [
    Hash(),
    PartialKey(),
    TwoChoices(),
    RandomChoices(epsilon=0.05, virtual=3),
    BoundedRing(epsilon=0.05, virtual=3),
    DChoices(threshold=0.1),
    WChoices(threshold=0.1),
    HeavyKeys(),
    Fish(epoch=100, counters=20),
    Dalton(window=200, threshold=0.1, explore=0.05),
    Consistent(epsilon=0.05, virtual=3),
]
names = [grouping.name for grouping in ALL]
quick = settings(max_examples=60, deadline=None)


@st.composite
def streams(draw: st.DrawFn) -> np.ndarray:
    """Keys from one hot key alone to all different, in bursts or shuffled, hashed or raw."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(0, 3000))
    keys = (rng.random(rows) ** draw(st.floats(1, 12)) * draw(st.integers(1, 1000))).astype(np.uint64)
    if draw(st.booleans()):
        keys = np.sort(keys)
    return mix(keys, np.uint64(1)) if draw(st.booleans()) else keys


workers = st.integers(1, 40)
seeds = st.integers(0, 2**64 - 1)


def pairs(keys: np.ndarray, to: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(keys.tolist(), to.tolist(), strict=True))


def capacity(epsilon: float, rows: int, bins: int) -> int:
    return int(np.ceil((1.0 + epsilon) / bins * rows))


@pytest.mark.parametrize("grouping", ALL, ids=names)
@given(keys=streams(), n=workers, seed=seeds, cut=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_a_restored_router_goes_on_as_if_nothing_had_happened(grouping, keys, n, seed, cut) -> None:
    at = int(cut * len(keys))
    whole = grouping.router(n, seed=seed, source=2).route(keys)
    assert whole.dtype == np.int32
    assert np.bincount(whole, minlength=n).shape == (n,), "every row has a receiver in 0 … n−1"
    first = grouping.router(n, seed=seed, source=2)
    before = first.route(keys[:at])
    saved = first.counters()
    second = grouping.router(n, seed=seed, source=2)
    second.route(keys[::-1])  # whatever it did before must not matter
    second.restore(saved)
    first.route(keys)  # nor may the saved counters follow the original
    after = second.route(keys[at:])
    assert np.array_equal(np.concatenate([before, after]), whole)


@pytest.mark.parametrize(
    "grouping",
    [*ALL, weir.Table.of({"a": 0}), weir.Weighted(weir.Hash()), weir.Weighted(PartialKey()), weir.Shuffle()],
    ids=lambda g: g.name,
)
def test_the_library_keeps_what_it_asks_of_groupings_of_users(grouping) -> None:
    weir.testing.check_grouping(grouping)


@pytest.mark.parametrize("grouping", [g for g in ALL if g.name not in ("KG", "DKG")], ids=lambda g: g.name)
def test_seeds_differ_and_repeat(grouping) -> None:
    keys = mix(np.arange(2000, dtype=np.uint64) % np.uint64(300), np.uint64(0))
    one, again, other = (grouping.router(10, seed=s).route(keys) for s in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@given(keys=streams(), n=workers)
@quick
def test_key_grouping_holds_each_key_once(keys, n) -> None:
    assert len(pairs(keys, Hash().router(n).route(keys))) == len(np.unique(keys))


@given(keys=streams(), n=workers, seed=seeds)
@quick
def test_partial_key_grouping_uses_two_workers_per_key_even_with_many_sources(keys, n, seed) -> None:
    seen: dict[int, set[int]] = {}
    for source in range(3):
        to = PartialKey().router(n, seed=seed, source=source).route(keys[source::3])
        for key, worker in pairs(keys[source::3], to):
            seen.setdefault(key, set()).add(worker)
    assert all(len(places) <= 2 for places in seen.values())


@pytest.mark.parametrize("kind", [RandomChoices, BoundedRing, Consistent])
@given(keys=streams(), n=workers, seed=seeds, virtual=st.integers(1, 5), epsilon=st.floats(0.001, 2))
@quick
def test_no_bin_ever_exceeds_its_capacity(kind, keys, n, seed, virtual, epsilon) -> None:
    grouping = kind(epsilon=epsilon, virtual=virtual)
    router = grouping.router(n, seed=seed)
    full = max(epsilon, getattr(grouping, "light", 0.0))
    sent = 0
    for part in np.array_split(keys, 7):
        router.route(part)
        sent += len(part)
        assert router.load.sum() == sent
        assert router.load.max() <= capacity(full, sent, n * virtual)


@given(keys=streams(), n=workers, seed=seeds, epsilon=st.floats(0.001, 1))
@quick
def test_imbalance_of_random_choices_is_at_most_epsilon_plus_rounding(keys, n, seed, epsilon) -> None:
    if len(keys) == 0:
        return
    load = np.bincount(RandomChoices(epsilon, 4).router(n, seed=seed).route(keys), minlength=n)
    assert load.max() / load.mean() - 1 <= epsilon + 4 * n / len(keys) + 1e-9


def first_with_room(keys, sequences, load, epsilon) -> list[int]:
    """The capacity rule in plain Python: no memo, no short cut."""
    out = []
    for sent, key in enumerate(keys.tolist(), 1):
        room = capacity(epsilon, sent, len(load))
        chosen = next(b for b in sequences(key) if load[b] < room)
        load[chosen] += 1
        out.append(chosen)
    return out


@given(keys=streams(), n=st.integers(1, 12), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_random_choices_takes_the_first_of_the_keys_own_sequence(keys, n, seed) -> None:
    keys = keys[:600]
    router = RandomChoices(0.02, 1).router(n, seed=seed)

    def sequence(key: int):
        for step in range(4 * n):
            hashed = int(mix(np.uint64(key) ^ router.salt, np.uint64(step)))
            yield (hashed >> 32) * n >> 32
        last = (int(mix(np.uint64(key) ^ router.salt, np.uint64(4 * n))) >> 32) * n >> 32
        for step in range(4 * n, 5 * n):
            yield (last + step) % n

    assert router.route(keys).tolist() == first_with_room(keys, sequence, [0] * n, 0.02)


@given(keys=streams(), n=st.integers(1, 12), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_bounded_ring_goes_clockwise(keys, n, seed) -> None:
    keys = keys[:600]
    router = BoundedRing(0.02, 1).router(n, seed=seed)

    def clockwise(key: int):
        at = int(np.searchsorted(router.points, mix(np.uint64(key) ^ router.salt, np.uint64(0))))
        return ((at + step) % n for step in range(n))

    bins = first_with_room(keys, clockwise, [0] * n, 0.02)
    assert router.route(keys).tolist() == router.owner[bins].tolist()


@given(keys=streams(), seed=seeds)
@quick
def test_w_choices_splits_heavy_keys_only(keys, seed) -> None:
    to = WChoices(threshold=0.2).router(12, seed=seed).route(keys)
    places: dict[int, set[int]] = {}
    for key, worker in pairs(keys, to):
        places.setdefault(key, set()).add(worker)
    for key, found in places.items():
        here = np.flatnonzero(keys == key)
        ever_heavy = (np.arange(2, len(here) + 1) > 0.15 * (here[1:] + 1)).any()
        assert len(found) <= 2 or ever_heavy


def test_d_choices_balances_with_fewer_copies_than_w_choices() -> None:
    rng = np.random.default_rng(3)
    keys = np.where(rng.random(200_000) < 0.3, 1, rng.integers(2, 20_000, 200_000)).astype(np.uint64)
    router = DChoices().router(50)
    sparing, lavish = router.route(keys), WChoices().router(50).route(keys)
    assert 15 <= router.d < 50
    assert np.bincount(sparing).max() < 1.01 * len(keys) / 50
    assert len(pairs(keys, sparing)) < len(pairs(keys, lavish))


@given(keys=streams(), n=st.integers(2, 40), seed=seeds)
@quick
def test_fish_and_dalton_spread_hot_keys_only(keys, n, seed) -> None:
    shares = np.unique(keys, return_counts=True)
    for grouping, most in ((Fish(epoch=10_000, counters=4000), 2), (Dalton(window=10_000, threshold=0.9), 1)):
        to = grouping.router(n, seed=seed).route(keys)
        hot = (1 / (4 * n)) if most == 2 else 0.9
        for key, count in zip(*shares, strict=True):
            here = np.flatnonzero(keys == key)
            ever_hot = (np.arange(2, count + 1) > hot * (here[1:] + 1)).any()
            assert ever_hot or len(set(to[here].tolist())) <= most


def test_fish_forgets_what_was_hot_and_avoids_slow_instances() -> None:
    rng = np.random.default_rng(5)
    cold = rng.integers(10, 50_000, 40_000)
    keys = np.where(rng.random(40_000) < 0.5, np.repeat([1, 2], 20_000), cold).astype(np.uint64)
    fish = Fish()
    router = fish.router(10)
    router.route(keys)
    assert router.hot().tolist() == [2]
    busy = np.where(np.arange(10) == 3, 4.0, 1.0)  # the fourth takes four times as long for a row
    router.listen(fish.feedback(InstanceLoad(0, np.full(10, 4000.0), busy, np.zeros(10))))
    hot = router.route(np.full(10_000, 2, np.uint64))
    load = np.bincount(hot, minlength=10)
    assert load[3] < 0.4 * np.delete(load, 3).mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomChoices(epsilon=0),
        lambda: RandomChoices(virtual=0),
        lambda: BoundedRing(epsilon=-1),
        lambda: WChoices(threshold=2),
        lambda: DChoices(epsilon=-1),
        lambda: Fish(decay=2),
        lambda: Fish(epoch=0),
        lambda: Dalton(spread=2),
        lambda: Consistent(idle=0.9, busy=0.8),
        lambda: PartialKey().router(0),
    ],
)
def test_senseless_parameters_are_refused(make) -> None:
    with pytest.raises(ValueError, match="got"):
        make()


def test_what_plans_are_checked_by() -> None:
    splitting = {"PKG", "PoTC", "PoRC", "CH", "D-C", "W-C", "FISH", "Dalton", "CG"}
    assert {g.name for g in ALL if g.splits_keys} == splitting
    assert {g.name for g in ALL if not g.order_free} == splitting
    assert all(g.keyed for g in ALL)
    assert Consistent() == Consistent(epsilon=0.01)
