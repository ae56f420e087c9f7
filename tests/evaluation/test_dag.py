"""The fluid model against what can be worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from weir.errors import TopologyError
from weir_evaluation.simulate.dag import Deployment, DeploymentPhase, SimulatedOperator, flow


def chain(*rates: float, cores: float = 100.0, parallel: dict[str, int] | None = None) -> Deployment:
    nodes = tuple(SimulatedOperator(f"o{i}", rate) for i, rate in enumerate(rates))
    edges = tuple((a.name, b.name) for a, b in pairwise(nodes))
    placement = {node.name: [0] * (parallel or {}).get(node.name, 1) for node in nodes}
    return Deployment(nodes, edges, placement, [cores])


def test_the_slowest_operator_sets_the_pace_and_its_queue_grows() -> None:
    ran = flow([DeploymentPhase(0, chain(500, 800, 200, 900))], 20)
    assert ran.throughput()[-1] == pytest.approx(200)
    assert ran.queue["o2"][-1] == pytest.approx(300 * 20, rel=0.05)
    assert ran.queue["o1"][-1] <= 500 * 0.1 + 1e-9


def test_nothing_is_lost() -> None:
    ran = flow(
        [
            DeploymentPhase(0, chain(500, 800, 200, 900)),
            DeploymentPhase(5, chain(500, 300, 700, 900), pause=2),
        ],
        20,
    )
    emitted = ran.processed["o0"].sum() * 0.1
    held = sum(ran.queue[name][-1] for name in ("o1", "o2", "o3"))
    assert ran.processed["o3"].sum() * 0.1 + held == pytest.approx(emitted)
    assert ran.throughput()[52] == 0, "the pause"


def test_sources_hold_back_when_too_much_is_pending() -> None:
    ran = flow([DeploymentPhase(0, chain(500, 100))], 60, pending=200)
    assert max(ran.queue["o1"]) <= 200 + 500 * 0.1 + 1e-9
    assert ran.throughput()[-1] == pytest.approx(100)


def test_every_child_gets_a_copy_and_selectivity_counts() -> None:
    nodes = (
        SimulatedOperator("s", 100, selectivity=2.0),
        SimulatedOperator("a", 1e4),
        SimulatedOperator("b", 1e4),
        SimulatedOperator("t", 1e4),
    )
    edges = (("s", "a"), ("s", "b"), ("a", "t"), ("b", "t"))
    ran = flow([DeploymentPhase(0, Deployment(nodes, edges, {n.name: [0] for n in nodes}, [9]))], 5)
    assert ran.throughput()[-1] == pytest.approx(400)


def test_instances_share_the_cores_of_their_machine() -> None:
    # Both could fill a core of their own: of a single one each gets half.
    ran = flow([DeploymentPhase(0, chain(100, 50, cores=1.0))], 10)
    assert ran.processed["o1"][-1] == pytest.approx(25, abs=1)
    ran = flow([DeploymentPhase(0, chain(100, 50, cores=2.0))], 10)
    assert ran.processed["o1"][-1] == pytest.approx(50)


def test_more_instances_carry_more() -> None:
    ran = flow(
        [DeploymentPhase(0, chain(500, 100)), DeploymentPhase(10, chain(500, 100, parallel={"o1": 3}))], 20
    )
    assert ran.throughput()[[90, 190]] == pytest.approx([100, 300])
    assert np.all(np.diff(ran.time) > 0)


def test_graphs_are_checked() -> None:
    nodes = (SimulatedOperator("a", 1), SimulatedOperator("b", 1))
    with pytest.raises(TopologyError, match="cycle"):
        Deployment(nodes, (("a", "b"), ("b", "a")), {"a": [0], "b": [0]}, [1])
    with pytest.raises(TopologyError, match="did you mean 'alpha'"):
        Deployment((SimulatedOperator("alpha", 1),), (("alpah", "alpha"),), {"alpha": [0]}, [1])
    with pytest.raises(TopologyError, match="needs instances"):
        Deployment(nodes, (), {"a": [0], "b": [1]}, [1])
    with pytest.raises(ValueError, match="start at 0"):
        flow([], 1)
