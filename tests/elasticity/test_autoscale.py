"""When to scale: soon in trouble, late in quiet, never to and fro."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity.autoscale import Autoscale, AutoscaleWatcher
from weir.errors import TopologyError


def busy(scale: AutoscaleWatcher, machines: int, batches: int) -> list[int]:
    return [scale.watch(machines, lag=60, congested=2, utilisation=0.98) for _ in range(batches)]


def test_trouble_must_last() -> None:
    scale = Autoscale(target_lag=10, max=8).watcher()
    assert busy(scale, 4, 2) == [0, 0]
    assert scale.watch(4, lag=1, congested=0, utilisation=0.7) == 0
    assert busy(scale, 4, 3) == [0, 0, 3], "a short calm starts the count anew"


def test_two_queries_share_one_setting_but_not_its_counts() -> None:
    shared = Autoscale(target_lag=10, max=8)
    one, two = shared.watcher(), shared.watcher()
    assert busy(one, 4, 2) == [0, 0]
    assert busy(two, 4, 2) == [0, 0], "the trouble of one query is not that of the other"
    assert busy(one, 4, 1) == [3]
    assert busy(two, 4, 1) == [3], "nor does the other wait after a change of the first"
    assert shared == Autoscale(target_lag=10, max=8)
    with pytest.raises(AttributeError):
        shared.max = 16  # type: ignore[misc]


def test_it_waits_for_the_effect() -> None:
    scale = Autoscale(target_lag=10, max=20, patience=1, cooldown=4).watcher()
    assert busy(scale, 4, 1) == [3]
    assert busy(scale, 7, 5) == [0, 0, 0, 0, 4]


def test_congestion_alone_counts_when_machines_are_busy() -> None:
    scale = Autoscale(target_lag=10, patience=1).watcher()
    assert scale.watch(2, lag=0, congested=1, utilisation=0.5) == 0
    assert scale.watch(2, lag=0, congested=1, utilisation=0.9) == 1


def test_one_more_when_the_stream_is_late_though_nobody_is_busy() -> None:
    assert Autoscale(target_lag=10, patience=1).watcher().watch(6, lag=99, congested=1, utilisation=0.3) == 1


def test_bounds_and_step() -> None:
    assert Autoscale(target_lag=1, min=3).watcher().watch(1, lag=0, congested=0, utilisation=0) == 2
    assert Autoscale(target_lag=1, max=3).watcher().watch(5, lag=99, congested=1, utilisation=1) == -2
    assert busy(Autoscale(target_lag=1, max=4, patience=1).watcher(), 4, 3) == [0, 0, 0]
    assert busy(Autoscale(target_lag=1, max=9, patience=1, step=1).watcher(), 4, 1) == [1]


@given(st.floats(0.05, 0.95), st.integers(1, 16))
def test_a_steady_load_ends_the_scaling(work: float, machines: int) -> None:
    """Work for ``16 × work`` machines: whatever the start, it settles, and does not swing."""
    scale = Autoscale(target_lag=10, min=1, max=30, patience=2, calm=4, cooldown=2).watcher()
    changes = []
    for _ in range(200):
        used = 16 * work / machines
        late = 100.0 if used > 1 else 0.0
        change = scale.watch(machines, lag=late, congested=int(used > 0.9), utilisation=min(1.0, used))
        machines += change
        changes.append(change)
    assert not any(changes[100:])
    assert 16 * work / machines <= 1
    signs = [c > 0 for c in changes if c]
    assert signs == sorted(signs) or signs == sorted(signs, reverse=True), "never out and in again"


@pytest.mark.parametrize(
    "wrong",
    [
        {"min": 0},
        {"min": 5, "max": 4},
        {"target_lag": 0},
        {"low": 0.7},
        {"high": 1.2},
        {"patience": 0},
        {"step": -1},
    ],
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(TopologyError, match="Autoscale needs"):
        Autoscale(**({"target_lag": 10} | wrong))  # type: ignore[arg-type]
