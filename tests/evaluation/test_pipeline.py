"""A chain of operators under full load: calibration, conservation, distance, slow servers."""

from __future__ import annotations

import numpy as np
import pytest

from weir.network.distance import Place
from weir.network.profile import PAPER
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir.routing.table import Table
from weir.routing.weighted import Weighted
from weir_evaluation.simulate import PipelineStage, SimulatedStream, saturate, zipf

HERE = Place("1", "a", "x")
RACK = [Place("1", host, "x") for host in "abcd"]


def one_channel(there: Place) -> float:
    """Throughput from one source to one operator at some distance."""
    stream = zipf(20_000, 100)
    hashes = np.sort(stream.hashes)
    table = Table(hashes, np.ones(len(hashes), np.int32))
    stages = [PipelineStage(table, PAPER.handling_s)]
    return saturate(stream, stages, [HERE, there], sources=[0], window=40).rows_per_s


def test_the_papers_cost_by_distance_comes_out_again() -> None:
    """Squirrel's Fig. 3(b), which the profile was made from, measured in the simulator."""
    near, node, rack, far = (one_channel(Place(*place)) for place in ("1ax", "2ax", "1bx", "1by"))
    assert near == pytest.approx(33_000, rel=0.01)
    assert near / rack == pytest.approx(2.5, rel=0.02)
    assert near / far == pytest.approx(3.6, rel=0.02)
    assert near > node >= rack > far


def run(grouping, *, rows=60_000, z=0.0, **more):
    return saturate(zipf(rows, 10_000, z, seed=1), [PipelineStage(grouping, 30e-6)], RACK, window=27, **more)


def test_every_row_is_served_once_and_runs_repeat() -> None:
    stages = [PipelineStage(Weighted(Shuffle()), 20e-6, keep=0.3), PipelineStage(Weighted(Hash()), 20e-6)]
    one, two = (
        saturate(zipf(30_000, 500, seed=1), stages, RACK, window=9, speeds=[1, 1, 0.5, 0.2], seed=4)
        for _ in range(2)
    )
    assert one.assigned[0].sum() == one.hops[0].sum() == 30_000
    assert one.assigned[1].sum() == one.hops[1].sum() == pytest.approx(9_000, rel=0.05)
    assert np.array_equal(one.assigned, two.assigned)
    assert one.latency_s == two.latency_s


def test_rows_in_flight_are_throughput_times_latency() -> None:
    """Little's law."""
    out = run(Shuffle())
    assert out.rows_per_s * out.latency_s == pytest.approx(4 * 27, rel=0.02)


def test_weights_keep_rows_near_and_costs_nothing_where_all_are_alike() -> None:
    plain, weighted = run(Hash()), run(Weighted(Hash()))
    assert weighted.hops[0, 0] > 0.75 * weighted.hops.sum()
    assert weighted.rows_per_s > 1.5 * plain.rows_per_s
    inside = [Place("1", "a")] * 4
    stream = zipf(60_000, 10_000, 0.0, seed=1)
    flat = [
        saturate(stream, [PipelineStage(g, 30e-6)], inside, window=27)
        for g in (Shuffle(), Weighted(Shuffle()))
    ]
    assert flat[1].rows_per_s == pytest.approx(flat[0].rows_per_s, rel=0.01)


def test_control_spares_a_slow_server_and_uses_it_again_when_it_has_recovered() -> None:
    speeds = [1, 1, 1, 0.2]
    fixed, steered = (run(Weighted(Hash(), control=c), speeds=speeds) for c in (None, Weighted().control))
    assert steered.rows_per_s > 1.15 * fixed.rows_per_s
    again = run(Weighted(Hash()), rows=300_000, speeds=speeds, changes=[(1.0, [1, 1, 1, 1])], period=0.02)
    slow, well = again.weights[40, 0, 3, 3], again.weights[-5, 0, 3, 3]
    assert slow < 64 <= well


def test_a_grouping_with_a_memory_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="got PKG"):
        run(PartialKey())
    with pytest.raises(ValueError, match="speed"):
        run(Hash(), speeds=[1, 1, 1, 0])
    with pytest.raises(ValueError, match="window"):
        saturate(SimulatedStream("none", np.zeros(1, np.int32), np.zeros(1, np.uint64)), [], RACK, window=1)
