"""Consistent Grouping: signals, pairing, and sources that hear late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import CheckpointError
from weir.routing.consistent import BUSY, CONTENT, IDLE, Consistent

rounds = st.lists(st.lists(st.sampled_from([IDLE, CONTENT, BUSY]), min_size=6, max_size=6), max_size=40)


def test_thresholds_make_signals() -> None:
    said = Consistent().signals([0.2, 0.75, 0.8, 0.85, 0.9, 7.0])
    assert said.tolist() == [IDLE, CONTENT, CONTENT, CONTENT, BUSY, BUSY]


@given(said=rounds, virtual=st.integers(1, 4), patience=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_the_number_of_virtual_workers_is_constant_and_nobody_is_left_without(
    said, virtual, patience
) -> None:
    router = Consistent(virtual=virtual, patience=patience).router(6)
    for slot, signals in enumerate(said):
        before = router.owner.copy()
        moved = router.feedback(signals, slot)
        assert len(router.owner) == 6 * virtual == router.owned().sum()
        assert router.owned().min() >= 1
        assert (router.owner != before).sum() == moved


@given(said=rounds, late=st.integers(1, 10), cut=st.floats(0, 1))
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
    router = Consistent().router(3)
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
    router = Consistent(virtual=10).router(2, seed=1)
    keys = np.arange(20_000, dtype=np.uint64)
    for slot in range(5):
        router.feedback([BUSY, IDLE], slot)
    share = np.bincount(router.route(keys)) / len(keys)
    assert share == pytest.approx([0.25, 0.75], abs=0.02)


def test_counters_of_another_size_are_refused() -> None:
    with pytest.raises(CheckpointError, match="load"):
        Consistent().router(3).restore(Consistent().router(4).counters())
