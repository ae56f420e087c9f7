"""Consistent Grouping: signals, pairing, and sources that hear late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weir.errors import CheckpointError, ParameterError
from weir.hashing import mix
from weir.routing.base import InstanceLoad
from weir.routing.consistent import BUSY, CONTENT, IDLE, Consistent

rounds = st.lists(st.lists(st.sampled_from([IDLE, CONTENT, BUSY]), min_size=6, max_size=6), max_size=40)


def test_thresholds_make_signals() -> None:
    said = Consistent().signals([0.2, 0.75, 0.8, 0.85, 0.9, 7.0])
    assert said.tolist() == [IDLE, CONTENT, CONTENT, CONTENT, BUSY, BUSY]


@given(
    said=rounds,
    virtual=st.integers(1, 60),
    patience=st.integers(0, 3),
    growth=st.sampled_from([1.0, 1.5, 2.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_number_of_virtual_workers_is_constant_and_nobody_is_left_without(
    said, virtual, patience, growth
) -> None:
    router = Consistent(virtual=virtual, patience=patience, growth=growth).router(6)
    for slot, signals in enumerate(said):
        before = router.owner.copy()
        moved = router.feedback(signals, slot)
        assert len(router.owner) == 6 * virtual == router.owned().sum()
        assert router.owned().min() >= 1
        assert (router.owner != before).sum() == moved
        assert ((router.step >= 1) & (router.step <= max(1, virtual / 10))).all()


@given(said=rounds, late=st.integers(1, 10), cut=st.floats(0, 1))
# a busy worker that found nobody to try asked again when its words were repeated
@example(said=[[-1] * 6] * 13 + [[-1, 1, 1, -1, -1, -1]] * 4 + [[1, 1, 1, 1, -1, 1]], late=1, cut=0.0)
@settings(max_examples=60, deadline=None)
def test_sources_that_hear_late_or_twice_end_up_alike(said, late, cut) -> None:
    prompt, slow = Consistent().router(6, source=0), Consistent().router(6, source=1)
    waiting = []
    for slot, signals in enumerate(said):
        prompt.feedback(signals, slot)
        prompt.feedback(signals, slot)
        waiting.append((signals, slot))
        if slot % late == 0:
            for one in waiting:
                slow.feedback(*one)
            waiting.clear()
    for one in waiting:
        slow.feedback(*one)
    assert np.array_equal(prompt.owner, slow.owner)


@given(said=rounds, cut=st.floats(0, 1), patience=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_map_and_queues_survive_a_restart(said, cut, patience) -> None:
    at = int(cut * len(said))
    whole, first, second = (Consistent(patience=patience).router(6) for _ in range(3))
    for slot, signals in enumerate(said):
        whole.feedback(signals, slot)
        if slot < at:
            first.feedback(signals, slot)
    second.restore(first.counters())
    for slot, signals in enumerate(said[at:], at):
        second.feedback(signals, slot)
    assert np.array_equal(second.owner, whole.owner)


def test_pairs_are_first_come_first_served() -> None:
    router = Consistent(virtual=5).router(4)
    assert router.feedback([BUSY, CONTENT, CONTENT, CONTENT], 0) == 0
    assert router.feedback([BUSY, BUSY, CONTENT, CONTENT], 1) == 0
    assert router.feedback([BUSY, BUSY, CONTENT, IDLE], 2) == 1
    assert router.owned().tolist() == [4, 5, 5, 6], "worker 0 has waited longer than worker 1"
    assert router.feedback([CONTENT, CONTENT, IDLE, CONTENT], 3) == 0, "a content worker waits no more"


def test_a_patient_worker_tries_those_who_do_not_complain() -> None:
    router = Consistent(virtual=5, patience=2).router(4)
    assert router.feedback([CONTENT, BUSY, CONTENT, CONTENT], 0) == 0
    assert router.feedback([BUSY, CONTENT, CONTENT, CONTENT], 1) == 0, "patience first"
    assert router.feedback([BUSY, CONTENT, CONTENT, CONTENT], 2) == 1
    assert router.owned().tolist() == [4, 5, 6, 5], "worker 1 has complained before, worker 2 never"
    assert Consistent(virtual=5).router(4).feedback([BUSY, CONTENT, CONTENT, CONTENT], 9) == 0


def test_silence_and_old_news_change_nothing() -> None:
    router = Consistent(virtual=10).router(3)
    assert router.feedback([BUSY, CONTENT, IDLE], [5, -1, 5]) == 1
    assert router.feedback([BUSY, CONTENT, IDLE], [4, -1, 5]) == 0
    assert router.feedback([CONTENT, CONTENT, CONTENT], -1) == 0
    assert router.heard.tolist() == [5, -1, 5]


def test_a_virtual_worker_goes_home_first() -> None:
    router = Consistent(virtual=2).router(3)
    start = router.owner.copy()
    router.feedback([BUSY, IDLE, CONTENT], 0)
    router.feedback([IDLE, BUSY, CONTENT], 1)
    assert np.array_equal(router.owner, start)


def test_moves_concern_later_rows_only_and_follow_the_owner() -> None:
    router = Consistent.of_the_paper(10).router(2, seed=1)
    keys = np.arange(20_000, dtype=np.uint64)
    for slot in range(5):
        router.feedback([BUSY, IDLE], slot)
    share = np.bincount(router.route(keys)) / len(keys)
    assert share == pytest.approx([0.25, 0.75], abs=0.02)


def settle(grouping: Consistent, strength: list[float], slots: int, late: int = 0) -> np.ndarray:
    """Slot by slot, the greatest distance of a worker's share from what its strength asks for, in shares of that."""
    router, wanted = grouping.router(len(strength)), np.array(strength) / np.sum(strength)
    said, off = [], []
    for slot in range(slots):
        share = router.owned() / len(router.owner)
        off.append(float(np.abs(share / wanted - 1).max()))
        said.append(grouping.signals(0.8 * share / wanted))
        if slot >= late:
            router.feedback(said[slot - late], slot - late)
    return np.array(off)


@pytest.mark.parametrize("late", [0, 2, 5])
def test_many_small_virtual_workers_find_their_places_as_soon_as_few_large_ones(late) -> None:
    strength = [5.0, 5.0, 5.0, *[1.0] * 7]
    ours = settle(Consistent(), strength, 120, late)
    fine = settle(Consistent.of_the_paper(50, patience=5), strength, 120, late)
    coarse = settle(Consistent.of_the_paper(10, patience=5), strength, 120, late)

    def within(off: np.ndarray) -> int:
        return int(np.argmax(off < 0.5))

    assert within(ours) <= max(within(fine) / 2, 10)
    assert ours[60:].mean() < 0.2, "signals that come late do not set it swinging"
    assert ours[60:].mean() <= coarse[60:].mean()


@given(
    seed=st.integers(0, 2**32),
    skew=st.floats(1, 12),
    distinct=st.integers(1, 3000),
    virtual=st.integers(1, 30),
    light=st.floats(0, 0.5),
)
@settings(max_examples=60, deadline=None)
def test_no_virtual_worker_exceeds_its_share_whoever_may_spill(seed, skew, distinct, virtual, light) -> None:
    keys = (np.random.default_rng(seed).random(4000) ** skew * distinct).astype(np.uint64)
    grouping = Consistent(virtual=virtual, light=light)
    whole, first, second = (grouping.router(5, seed=seed) for _ in range(3))
    to = whole.route(keys)
    assert whole.load.sum() == len(keys) == len(to), "every row goes somewhere"
    assert whole.load.max() <= np.ceil((1 + max(0.01, light)) * len(keys) / (5 * virtual))
    half = first.route(keys[:2000])
    second.restore(first.counters())
    assert np.array_equal(np.concatenate([half, second.route(keys[2000:])]), to)


def test_light_keys_stay_at_home() -> None:
    rng = np.random.default_rng(3)
    keys = mix(
        np.where(rng.random(200_000) < 0.1, 0, rng.integers(1, 20_000, 200_000)).astype(np.uint64),
        np.uint64(1),
    )
    copies = {}
    for light in (0.0, 0.1):
        to = Consistent(light=light).router(10, seed=1).route(keys)
        copies[light] = len(np.unique(keys * np.uint64(10) + to.astype(np.uint64))) / len(np.unique(keys)) - 1
        assert np.bincount(to).max() / np.bincount(to).mean() < 1.04
    assert copies[0.1] < 0.35 * copies[0.0]


def test_a_batch_on_equal_servers_moves_nothing_and_a_slow_server_gives_away() -> None:
    def heard(busy: list[float]) -> list[int]:
        grouping, n = Consistent(), len(busy)
        router = grouping.router(n)
        rows = np.full(n, 100.0)
        router.listen(grouping.feedback(InstanceLoad(7, rows, np.array(busy), rows)))
        return router.owned().tolist()

    assert heard([1.0, 0.93, 0.9, 0.96]) == [50] * 4, "differences of a few per cent are noise"
    owned = heard([1.0, 0.3, 0.3, 0.3])
    assert owned[0] == 35
    assert sum(owned) == 200
    assert Consistent().feedback(InstanceLoad(0, np.zeros(2), np.zeros(2), np.zeros(2))) is None


def test_shares_survive_another_number_of_virtual_workers_and_the_counters_of_version_0_1() -> None:
    paper = Consistent.of_the_paper(10)
    before = paper.router(4)
    for slot in range(6):
        before.feedback([BUSY, CONTENT, CONTENT, IDLE], slot)
    assert before.owned().tolist() == [4, 10, 10, 16]
    old = {k: v for k, v in before.counters().items() if k not in ("step", "top", "run", "way", "cells")}
    after = Consistent().router(4)
    after.restore(old)
    assert after.owned().tolist() == [20, 50, 50, 80]
    assert (after.owner == after.first_owner).sum() == 170, "as few as must change hands"
    again = paper.router(4)
    again.restore(old)
    assert np.array_equal(again.owner, before.owner)


@pytest.mark.parametrize("wrong", [{"growth": 0.5}, {"light": -1}, {"patience": -1}, {"idle": 0.9}])
def test_senseless_parameters_are_refused(wrong) -> None:
    with pytest.raises(ParameterError, match="got"):
        Consistent(**wrong)


def test_counters_of_another_size_are_refused() -> None:
    with pytest.raises(CheckpointError, match="load"):
        Consistent().router(3).restore(Consistent().router(4).counters())


def test_streams_of_more_rows_than_32_bits_count():
    router = Consistent().router(4)
    before = router.counters()
    router.restore({**before, "cells": np.full_like(before["cells"], 2**31 - 2)})
    router.route(np.full(9, 5, np.uint64))
    assert router.cells.max() == 2**31 + 7


def heard(router, grouping: Consistent, period: int, strength: list[float], noise: np.ndarray) -> None:
    """Let a router hear of a period in which each worker gets rows by its share, more or less."""
    rows = router.owned() * noise
    feedback = grouping.feedback(InstanceLoad(period, rows, rows / strength, rows))
    if feedback is not None:
        router.listen(feedback)


@pytest.mark.parametrize("seed", range(5))
def test_strengths_that_change_are_followed_after_long_noise(seed) -> None:
    """Noise lets moves become small, and they must not stay small when two servers change places."""
    grouping, rng = Consistent(), np.random.default_rng(seed)
    router = grouping.router(8)
    before, after = [0.3] + [1.0] * 7, [1.0] * 7 + [0.3]
    for period in range(60):
        heard(router, grouping, period, before, rng.normal(1, 0.15, 8).clip(0.5))
    assert router.owned()[0] <= 30
    for period in range(60, 70):
        heard(router, grouping, period, after, np.ones(8))
    fair = 400 * np.array(after) / sum(after)
    assert (router.owned() / fair).max() < 1.25


def test_what_was_heard_before_does_not_let_moves_grow() -> None:
    grouping = Consistent()
    router = grouping.router(4)
    router.top[:] = 1.0
    load = InstanceLoad(3, np.ones(4), np.array([1.0, 0.1, 0.1, 0.1]), np.ones(4))
    router.listen(grouping.feedback(load))
    assert np.isinf(router.top).all()
    router.top[:] = 1.0
    router.listen(grouping.feedback(load))
    assert (router.top == 1.0).all()
