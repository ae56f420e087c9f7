"""Scaling in the simulator: the model by hand, the evaluation's targets, the benchmark's records."""

from __future__ import annotations

import argparse
import io
from itertools import combinations

import numpy as np
import pytest
from rich.console import Console

from weir.elasticity import Stela
from weir_evaluation.bench import stela as bench
from weir_evaluation.simulate.dag import Deployment, DeploymentPhase, SimulatedOperator, flow
from weir_evaluation.stela.rivals import STRATEGIES, Default, Random
from weir_evaluation.stela.topologies import CASES, page_load_in
from weir_evaluation.stela.trial import convergence, decide, situation, steady, steady_from, trial


def pair(cpu: float, cores: float) -> Deployment:
    nodes = (SimulatedOperator("a", 100, cpu=cpu), SimulatedOperator("b", 50, cpu=cpu))
    return Deployment(nodes, (("a", "b"),), {"a": [0], "b": [0]}, [cores])


def test_waiting_instances_do_not_hinder_each_other() -> None:
    assert flow([DeploymentPhase(0, pair(0.5, 1.0))], 10).throughput()[-1] == pytest.approx(50)
    ran = flow([DeploymentPhase(0, pair(1.0, 1.0))], 10)
    assert ran.throughput()[-1] == pytest.approx(25, abs=1)
    assert ran.busy["b"][-1] == 1.0, "who waits for a core is busy"


def test_what_waits_too_long_is_given_up() -> None:
    ran = flow([DeploymentPhase(0, pair(0.1, 1.0))], 100, timeout=4.0)
    assert max(ran.queue["b"]) == pytest.approx(200)


def test_jitter_is_repeatable_and_fair_on_average() -> None:
    one, two, other = (
        flow([DeploymentPhase(0, pair(0.1, 1.0))], 100, jitter=0.2, seed=seed).throughput()
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert one.mean() == pytest.approx(50, rel=0.05)


def test_convergence_counts_crossings_within_the_band() -> None:
    assert convergence(np.array([99.0, 101, 99, 101]), 100) == 4
    assert convergence(np.array([99.0, 101, 50, 99, 101, 99, 101]), 100) == 7, "starts anew after an outlier"
    assert convergence(np.array([99.0, 99, 99]), 100) is None, "never crosses"


def test_a_series_is_steady_once_it_stays_near_its_mean() -> None:
    assert steady_from(np.array([99.0, 99, 99]), 100) == 0
    assert steady_from(np.array([99.0, 50, 99]), 100) == 2
    assert steady_from(np.array([99.0, 99, 50]), 100) is None


@pytest.mark.parametrize("name", list(CASES))
def test_the_measured_situation_finds_who_is_slow(name: str) -> None:
    slow = {
        "Star": {"hub"},
        "Linear": {"second"},
        "Diamond": {"sink"},
        "PageLoad": {"join"},
        "Processing": {"rules"},
        "Network": {"signatures", "score"},
    }
    assert situation(CASES[name]).congested() == slow[name]


@pytest.mark.parametrize(("name", "least"), [("Linear", 1.45), ("Star", 1.65), ("Diamond", 2.2)])
def test_gains_over_the_default_in_the_long_run(name: str, least: float) -> None:
    case = CASES[name]
    now = situation(case)
    ours, theirs = (steady(case, decide(case, s, now).after) for s in (Stela(), Default()))
    assert ours >= least * theirs


def test_other_speeds_never_make_stela_worse_than_before() -> None:
    for case in CASES.values():
        for seed in range(5):
            other = case.redrawn(seed)
            now = situation(other, jitter=0.0)
            assert steady(other, decide(other, Stela(), now).after) >= 0.99 * steady(other, other.placement())


def test_scaling_in_removes_what_comes_before_the_bottleneck() -> None:
    case = page_load_in()
    decision = decide(case, Stela(), situation(case))
    assert {step.operator for step in decision.steps} == {"spout", "transform", "filter"}
    ran = trial(case, Stela(), seconds=600)
    assert ran.down == 0
    assert ran.after >= 0.9 * ran.before


def test_machines_asked_for_too_much_share_what_they_have() -> None:
    assert flow([DeploymentPhase(0, pair(1.0, 1.0))], 30).processed["a"][-1] == pytest.approx(50)
    assert flow([DeploymentPhase(0, pair(0.5, 1.0))], 10).throughput()[-1] == pytest.approx(50)


def test_scaling_in_keeps_what_chance_loses() -> None:
    case = page_load_in()
    now, before = situation(case), steady(case, case.placement())
    groups = list(combinations(case.placement().machines, 4))[::3]
    chance = np.mean([steady(case, Random().scale_in(now, 4, machines=g).after) for g in groups])
    assert 0.7 * before < chance < 0.85 * before
    assert steady(case, Stela().scale_in(now, 4).after) >= 0.99 * before


def test_the_benchmark_keeps_its_shape() -> None:
    parser = argparse.ArgumentParser()
    bench.arguments(parser)
    page = io.StringIO()
    console = Console(file=page, width=160)
    result = bench.run(parser.parse_args(["--quick", "--topology", "PageLoad", "Star"]), console)
    keys = {"topology", "operation", "strategy", "before", "after", "convergence_s", "silent_batches"}
    assert all(set(record) == keys for record in result)
    assert {r["operation"] for r in result} == {"in", "out"}
    assert {r["strategy"] for r in result if r["topology"] == "Star"} == set(STRATEGIES)
    assert all(r["silent_batches"] == 0 for r in result if r["strategy"] == "stela")
    bench.show(result, console)
    assert "target: 1.65 × default" in page.getvalue()
