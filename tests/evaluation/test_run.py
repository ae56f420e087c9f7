"""The simulator against what queueing says must come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.network.distance import Place
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir_evaluation.routing import RandomChoices
from weir_evaluation.simulate import (
    Arrivals,
    SimulatedCluster,
    SimulatedNetwork,
    SimulatedStream,
    imbalance,
    memory,
    simulate,
    zipf,
)


@given(
    messages=st.integers(1, 5000),
    n=st.integers(1, 20),
    sources=st.integers(1, 7),
    grouping=st.sampled_from([Hash(), Shuffle(), PartialKey(), RandomChoices(), Consistent(virtual=3)]),
    rate=st.floats(1, 1000),
)
@settings(max_examples=40, deadline=None)
def test_every_message_is_assigned_once_and_only_work_leaves_the_queues(
    messages, n, sources, grouping, rate
) -> None:
    stream = zipf(messages, 200, seed=messages)
    cluster = SimulatedCluster.equal(n, rate)
    result = simulate(stream, grouping, cluster, Arrivals.steady(100.0), sources=sources, slot=1.0)
    assert result.load.sum() == messages == result.arrived[-1]
    served = np.cumsum(result.assigned, axis=0) - result.queue
    assert (served >= -1e-6).all()
    assert (np.diff(served, axis=0, prepend=0) <= rate / n + 1e-6).all()
    assert result.memory[-1] >= stream.distinct()
    if grouping.name == "KG":
        assert result.memory[-1] == stream.distinct()


def test_a_single_overloaded_queue_grows_as_it_must() -> None:
    stream = SimulatedStream("one", np.zeros(1000, np.int32), np.array([5], np.uint64))
    result = simulate(stream, Hash(), SimulatedCluster.of([4.0]), Arrivals.steady(10.0), slot=1.0)
    assert result.queue[-1, 0] == pytest.approx(1000 - 4 * 100, abs=1)
    assert result.latency[-1, 0] == pytest.approx(600 / 4, rel=0.02)
    assert result.utilisation[:, 0] == pytest.approx(2.5)


def test_a_capacity_change_also_concerns_those_who_already_wait() -> None:
    stream = SimulatedStream("one", np.zeros(10, np.int32), np.array([5], np.uint64))
    cluster = SimulatedCluster.of([1.0]).then(2.0, SimulatedCluster.of([8.0]))
    result = simulate(stream, Hash(), cluster, Arrivals.steady(10.0), slot=1.0)
    # By 2 s two are served, the other eight in the second after: finishes at 1.05, 2.0, 2.13 … 3.0.
    assert result.latency[0, 0] == pytest.approx(1.9, abs=0.05)


def test_signals_reach_only_sources_that_hear_and_arrive_late_where_told() -> None:
    stream, arrivals = zipf(60_000, 5000, seed=1), Arrivals.steady(1000.0)
    cluster = SimulatedCluster.mixed(4, 1250.0, strong=1, times=4)
    prompt = simulate(stream, Consistent(), cluster, arrivals, sources=2, slot=1.0)
    late = simulate(stream, Consistent(), cluster, arrivals, sources=2, slot=1.0, delays=[0, 20])
    assert prompt.owned is not None
    assert prompt.owned[0] > 18
    assert late.queue.max() > prompt.queue.max()
    assert prompt.imbalance() < 0.15
    with pytest.raises(ValueError, match="all 2 sources"):
        simulate(stream, Consistent(), cluster, arrivals, sources=2, delays=[1])


def test_consistent_grouping_follows_a_capacity_change() -> None:
    stream, arrivals = zipf(300_000, 20_000, z=1.2, seed=2), Arrivals.steady(1000.0)
    first, then = SimulatedCluster.mixed(10, 1250.0, 3, 5), SimulatedCluster.mixed(10, 1250.0, 2, 10)
    result = simulate(stream, Consistent(virtual=30), first.then(150.0, then), arrivals, slot=1.0)
    share = result.assigned[-50:].sum(axis=0) / result.assigned[-50:].sum()
    assert share == pytest.approx(then.rates[0] / then.rates[0].sum(), abs=0.03)


def test_runs_repeat() -> None:
    runs = [
        simulate(
            zipf(20_000, 500, seed=3),
            Consistent(),
            SimulatedCluster.equal(5, 10.0),
            Arrivals.steady(8.0),
            seed=4,
        )
        for _ in range(2)
    ]
    assert np.array_equal(runs[0].assigned, runs[1].assigned)
    assert np.array_equal(runs[0].queue, runs[1].queue)


def test_distance_costs_latency_and_slow_channels_queue() -> None:
    stream, arrivals = zipf(1000, 50, seed=1), Arrivals.steady(1000.0)
    near, far = Place("1", "a", "x"), Place("2", "b", "y")
    cluster = SimulatedCluster.of([1e6, 1e6])
    network = SimulatedNetwork.between([near], [near, far], row_bytes=1000)
    result = simulate(stream, Shuffle(), cluster, arrivals, slot=1.0, network=network)
    assert result.latency[0, 0] == pytest.approx(1e-6 + 100e-9 + 1000 / 20e9, rel=0.01)
    assert result.latency[0, 1] == pytest.approx(1e-6 + 350e-6 + 1e-4 + 41.7e-6, rel=0.01)
    jammed = SimulatedNetwork.between([near], [near, far], row_bytes=100_000)
    assert simulate(stream, Shuffle(), cluster, arrivals, slot=1.0, network=jammed).latency[0, 1] > 1


@given(load=st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_imbalance_is_zero_for_loads_that_match_capacities(load) -> None:
    assert imbalance(load, load) == pytest.approx(0, abs=1e-9)
    assert imbalance(load) == pytest.approx(max(load) / np.mean(load) - 1)


@given(seed=st.integers(0, 1000), n=st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_memory_counts_pairs(seed, n) -> None:
    rng = np.random.default_rng(seed)
    ids, to = rng.integers(0, 50, 500).astype(np.int32), rng.integers(0, n, 500).astype(np.int32)
    assert memory(ids, to) == len(set(zip(ids.tolist(), to.tolist(), strict=True)))
