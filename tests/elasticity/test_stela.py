"""Stela's decisions: what it touches, what it keeps, what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from elasticity_worlds import situations
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity import Graph, Placement, Rates, Situation, Stela
from weir.elasticity.stela import project
from weir.errors import EngineError, TopologyError
from weir_evaluation.stela.rivals import STRATEGIES, Gain

CHAIN = Graph(("in", "mid", "out"), (("in", "mid"), ("mid", "out")))


def chain(mid: float = 200, out: float = 900, **more: object) -> Situation:
    done = min(600, mid)
    rates = {"in": Rates(600, 600, 600, 2), "mid": Rates(600, mid, done, 2), "out": Rates(done, out, done, 2)}
    here = Placement(("a", "b"), dict.fromkeys(CHAIN.operators, ("a", "b")))
    return Situation(CHAIN, rates, here, **more)  # type: ignore[arg-type]


@given(situations(), st.integers(1, 3), st.sampled_from([Stela(), Gain()]))
def test_scaling_out_leaves_what_runs_alone(now: Situation, count: int, strategy: Stela) -> None:
    before = copy.deepcopy(now)
    fresh = [f"new{i}" for i in range(count)]
    decision = strategy.scale_out(now, fresh)
    assert now == before, "asking changes nothing"
    assert decision.moved() == []
    for name, places in now.placement.instances.items():
        assert decision.after.instances[name][: len(places)] == places
        assert set(decision.after.instances[name][len(places) :]) <= set(fresh)
    wanted = max(count, count * now.placement.total // len(now.placement.machines))
    assert sum(decision.added().values()) == wanted == len(decision.steps)
    each = [len(decision.after.on(machine)) for machine in fresh]
    assert max(each) - min(each) <= 1, "new machines are filled in turn"


@given(situations())
def test_the_first_slot_goes_to_the_congested_operator_of_highest_etp(now: Situation) -> None:
    first = Stela().scale_out(now, ["new"]).steps[0]
    share, stuck = now.etp(), now.congested()
    if stuck:
        assert first.operator in stuck
        assert share[first.operator] == max(share[name] for name in stuck)
    else:
        assert first.operator in now.graph.sources


@given(situations(), st.data())
def test_projection_is_monotone(now: Situation, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(now.graph.operators))
    before = project(now.graph, dict(now.rates), now.graph.operators[0])
    after = project(now.graph, before, name)
    assert all(after[n].throughput >= before[n].throughput * (1 - 1e-9) for n in now.graph.operators)
    assert after[name].parallelism == before[name].parallelism + 1


@given(situations(), st.integers(1, 4), st.sampled_from(sorted(STRATEGIES)))
def test_scaling_in_keeps_every_instance(now: Situation, count: int, name: str) -> None:
    decision = STRATEGIES[name]().scale_in(now, count)
    assert len(set(decision.machines)) == count
    assert set(decision.after.machines) == set(now.placement.machines) - set(decision.machines)
    assert decision.after.parallelism() == now.placement.parallelism()
    if name != "default":
        for operator, i in decision.moved():
            assert now.placement.instances[operator][i] in decision.machines, "nobody else moves"


@given(situations())
def test_the_machine_that_matters_least_goes_first(now: Situation) -> None:
    decision = Stela().scale_in(now, 1)
    sums = decision.machine_etp
    assert sums[decision.machines[0]] == min(sums.values())
    rest = sorted((m for m in now.placement.machines if m != decision.machines[0]), key=lambda m: sums[m])
    targets = [step.target for step in decision.steps]
    assert targets == [rest[i % len(rest)] for i in range(len(targets))]


def test_machines_can_be_named() -> None:
    now = chain()
    assert Stela().scale_in(now, machines=["b"]).after.machines == ("a",)
    with pytest.raises(EngineError, match="no machine is called 'c'; known: 'a', 'b'"):
        Stela().scale_in(now, machines=["c"])
    three = replace(now, placement=now.placement.joined(["c"]).plus("mid", "c"))
    gone = Stela().scale_in(three, machines=["a", "b"])
    assert {step.target for step in gone.steps} == {"c"}, "nothing goes to a machine that leaves, too"


def test_what_remains_must_hold_the_parallelism() -> None:
    assert len(Stela().scale_in(chain()).after.on("b")) == 6
    with pytest.raises(EngineError, match="no room for 2 instances of 'in'"):
        Stela().scale_in(chain(distinct=True))
    with pytest.raises(EngineError, match="at least one must remain"):
        Stela().scale_in(chain(), 2)
    with pytest.raises(EngineError, match="at least one machine"):
        Stela().scale_in(chain(), 0)


def test_what_lives_everywhere_comes_and_goes_with_the_machines() -> None:
    now = chain(distinct=True, everywhere=frozenset({"in", "out"}))
    out = Stela().scale_out(now, ["c"])
    assert out.after.instances == {"in": ("a", "b", "c"), "mid": ("a", "b", "c"), "out": ("a", "b", "c")}
    back = Stela().scale_in(replace(now, placement=out.after, everywhere=frozenset(CHAIN.operators)))
    assert back.after.parallelism() == {"in": 2, "mid": 2, "out": 2}
    assert back.steps == ()


def test_at_most_one_instance_per_machine_if_so_asked() -> None:
    out = Stela().scale_out(chain(mid=100, distinct=True), ["c"])
    assert out.added() == {"in": 1, "mid": 1}, "the third slot stays empty: everybody congested is there"


def test_new_machines_must_be_new() -> None:
    with pytest.raises(EngineError, match="in use already"):
        Stela().scale_out(chain(), ["b"])
    with pytest.raises(EngineError, match="in use already"):
        Stela().scale_out(chain(), ["c", "c"])
    with pytest.raises(EngineError, match="at least one new machine"):
        Stela().scale_out(chain(), [])


def test_the_explanation_has_a_row_per_operator() -> None:
    rows = {row.operator: row for row in Stela().scale_out(chain(), ["c"]).rows}
    assert (rows["mid"].congested, rows["mid"].etp, rows["mid"].chosen) == (True, 1.0, 3)
    assert (rows["in"].congested, rows["in"].etp, rows["in"].chosen) == (False, 0.0, 0)


def test_relief_moves_on_to_the_next_bottleneck() -> None:
    steps = Stela().scale_out(chain(mid=200, out=240), ["c"]).steps
    assert [step.operator for step in steps] == ["mid", "out", "mid"]


def test_situations_and_placements_are_checked() -> None:
    with pytest.raises(EngineError, match="no rates for operator 'mid': feed a batch first"):
        replace(chain(), rates={"in": Rates(1, 1, 1)})
    with pytest.raises(TopologyError, match="has no instance"):
        Placement((0,), {"a": ()})
    with pytest.raises(TopologyError, match="not a machine"):
        Placement((0,), {"a": (1,)})
    with pytest.raises(TopologyError, match="cycle"):
        Graph(("a", "b"), (("a", "b"), ("b", "a")))
    with pytest.raises(TopologyError, match="did you mean 'mid'"):
        Graph(("in", "mid"), (("in", "mdi"),))
