"""Rates from batches: capacity by busy time, a window that slides, inputs that follow."""

from __future__ import annotations

import pytest
from elasticity_worlds import situations
from hypothesis import given

from weir.elasticity import Graph, Rates, Situation
from weir.elasticity.rates import Meter, Sample, congested, propagate
from weir.errors import ParameterError


def test_capacity_is_known_without_being_used() -> None:
    meter = Meter()
    meter.observe(10, {"a": Sample(100, 100, busy=1.0, parallelism=2)})
    assert meter.rates()["a"] == Rates(input=10, processing=200, emit=10, parallelism=2)


def test_instances_that_take_turns_have_less_time() -> None:
    # Two operators share a server of which they fill 8 of 10 seconds, 6 and 2: both could do 10/8 of it.
    meter = Meter()
    meter.observe(
        10,
        {
            "a": Sample(600, 600, busy=6.0, parallelism=1, available=7.5),
            "b": Sample(600, 0, busy=2.0, parallelism=1, available=2.5),
        },
    )
    assert {name: r.processing for name, r in meter.rates().items()} == {"a": 75.0, "b": 75.0}


def test_the_window_slides_and_forgets() -> None:
    meter = Meter(window=2)
    for rows in (1000, 10, 20):
        meter.observe(1, {"a": Sample(rows, 0, busy=0.5, parallelism=1)})
    assert meter.rates()["a"].input == 15
    meter.observe(1, {"a": Sample(50, 0, busy=0.5, parallelism=2)})
    assert meter.rates()["a"].input == 50, "what was measured with another parallelism no longer counts"


def test_an_operator_without_work_is_not_congested() -> None:
    meter = Meter()
    assert meter.rates() == {}
    meter.observe(1, {"a": Sample(0, 0, busy=0.0, parallelism=1)})
    assert not congested(meter.rates())
    with pytest.raises(ParameterError, match="takes time"):
        meter.observe(0, {})
    with pytest.raises(ParameterError, match="at least one"):
        Meter(window=0)


def test_equal_rates_are_no_congestion_and_the_threshold_is_strict() -> None:
    assert not Rates(120, 100, 100).congested()
    assert Rates(120.1, 100, 100).congested()
    assert not Rates(100, 100, 100).congested(1.0)
    assert Rates(1, 0, 0).congested(), "nothing at all is processed"


def test_what_is_offered_shows_who_would_be_congested() -> None:
    graph = Graph(("a", "b", "c"), (("a", "b"), ("b", "c")))
    seen = {"a": Rates(100, 300, 200), "b": Rates(200, 250, 20), "c": Rates(20, 100, 20)}
    ahead = propagate(graph, seen, {"a": 400})
    assert ahead["a"].ratio == pytest.approx(4 / 3)
    assert ahead["b"].input == 600, "a processes 300 and emits two for one"
    assert ahead["c"].input == pytest.approx(25)
    assert congested(ahead) == {"a", "b"}


@given(situations())
def test_propagating_what_holds_already_changes_nothing(now: Situation) -> None:
    once = propagate(now.graph, now.rates)
    twice = propagate(now.graph, once)
    for name in now.graph.operators:
        assert twice[name].input == pytest.approx(once[name].input)
        assert twice[name].emit == pytest.approx(once[name].emit)
