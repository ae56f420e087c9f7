"""DS2 and Flink's autoscaler: as many instances as it takes, from any number of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity.graph import Graph
from weir.elasticity.rates import Rates
from weir_evaluation.stela.targets import FlinkAutoscaler, ds2

GRAPH = Graph(("in", "a", "b", "out"), (("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")))


@st.composite
def measured(draw: st.DrawFn) -> tuple[dict[str, Rates], float]:
    """Rates of operators that may be too slow, and the rows that the stream offers."""
    offered = draw(st.floats(1, 1e6))
    comes, rates = {"in": offered}, {}
    for name in GRAPH.order:
        for parent in GRAPH.parents[name]:
            comes[name] = comes.get(name, 0.0) + rates[parent].emit
        can, k = draw(st.floats(1, 1e6)), draw(st.integers(1, 50))
        rates[name] = Rates(comes[name], can, min(comes[name], can) * draw(st.floats(0.1, 3)), k)
    return rates, offered


@given(measured())
def test_ds2_takes_the_least_with_which_every_operator_keeps_up(case) -> None:
    rates, offered = case
    instances = ds2(GRAPH, rates, {"in": offered})
    comes = {"in": offered}
    for name in GRAPH.order:
        if name != "in":
            comes[name] = sum(comes[p] * rates[p].selectivity for p in GRAPH.parents[name])
        one = rates[name].processing / rates[name].parallelism
        assert instances[name] * one >= comes[name] * (1 - 1e-6)
        assert instances[name] == 1 or (instances[name] - 1) * one <= comes[name] * (1 + 1e-6)


@given(measured())
def test_flinks_rule_keeps_a_reserve_and_takes_away_little_at_a_time(case) -> None:
    rates, offered = case
    least = ds2(GRAPH, rates, {"in": offered})
    for name, k in FlinkAutoscaler().decide(GRAPH, rates, {"in": offered}).items():
        assert k >= least[name]
        assert k >= 0.4 * rates[name].parallelism - 1e-9


def test_inside_the_band_nothing_changes_and_a_backlog_asks_for_more() -> None:
    graph = Graph(("in",), ())
    seen = {"in": Rates(500, 1000, 500, parallelism=4)}
    rule = FlinkAutoscaler()
    assert rule.decide(graph, seen, {"in": 500}) == {"in": 4}
    assert rule.decide(graph, seen, {"in": 500}, backlog={"in": 1_800_000})["in"] > 4
    with pytest.raises(ValueError, match="between its bounds"):
        FlinkAutoscaler(utilization=0.3)
