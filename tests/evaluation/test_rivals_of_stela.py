"""The other strategies do what they are named after."""

from __future__ import annotations

import pytest
from elasticity_worlds import situations
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity import Graph, Placement, Rates, Situation
from weir.errors import EngineError
from weir_evaluation.stela.rivals import STRATEGIES, Default, Random, restarts

ORDERS = [name for name in STRATEGIES if name not in ("stela", "gain", "default", "random")]


@given(situations(), st.integers(1, 3), st.sampled_from([*ORDERS, "default"]))
def test_they_move_instances_and_add_none(now: Situation, count: int, name: str) -> None:
    fresh = [f"new{i}" for i in range(count)]
    decision = STRATEGIES[name]().scale_out(now, fresh)
    assert decision.after.parallelism() == now.placement.parallelism()
    assert decision.added() == {}
    if name != "default":
        assert all(step.target in fresh for step in decision.steps)
        assert len(decision.moved()) == len(decision.steps)


@given(situations(), st.integers(1, 3))
def test_the_default_deals_out_evenly(now: Situation, count: int) -> None:
    decision = Default().scale_out(now, [f"new{i}" for i in range(count)])
    each = [len(decision.after.on(machine)) for machine in decision.after.machines]
    assert max(each) - min(each) <= 1
    assert restarts(decision)


@given(situations(), st.integers(0, 99))
def test_chance_is_repeatable(now: Situation, seed: int) -> None:
    assert Random(seed).scale_out(now, ["new"]) == Random(seed).scale_out(now, ["new"])
    assert Random(seed).scale_in(now, 2) == Random(seed).scale_in(now, 2)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("distance from source", "s"),
        ("distance to sink", "t"),
        ("descendants", "s"),
        ("centrality", "b"),
        ("least link load", "s"),
        ("most link load", "b"),
    ],
)
def test_who_goes_first(name: str, first: str) -> None:
    graph = Graph(("s", "a", "b", "c", "t"), (("s", "b"), ("a", "b"), ("b", "c"), ("b", "t"), ("c", "t")))
    emit = {"s": 10, "a": 50, "b": 60, "c": 60, "t": 0}
    rates = {n: Rates(100, 100, e, 2) for n, e in emit.items()}
    now = Situation(graph, rates, Placement((0, 1), dict.fromkeys(graph.operators, (0, 1))))
    assert STRATEGIES[name]().scale_out(now, [2]).steps[0].operator == first


def test_limits_hold_for_them_too() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    rates = {"a": Rates(1, 1, 1, 2), "b": Rates(1, 1, 1, 2)}
    here = Placement((0, 1), {"a": (0, 1), "b": (0, 1)})
    with pytest.raises(EngineError, match="do not fit on 1"):
        Default().scale_in(Situation(graph, rates, here, distinct=True))
    with pytest.raises(EngineError, match="no room"):
        Random().scale_in(Situation(graph, rates, here, distinct=True))
