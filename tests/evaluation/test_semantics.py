"""A short run of the differential test: every type and every kind of operator, in process and on Spark."""

from __future__ import annotations

import random

import pytest

from weir_evaluation.bench.semantics import in_process, on_spark
from weir_evaluation.bench.semantics.places import IN_PROCESS, ON_SPARK, Place, Tally
from weir_evaluation.bench.semantics.values import nested


@pytest.mark.parametrize(
    ("where", "round_of", "few", "least"),
    [
        (IN_PROCESS, in_process, {"groups": 40, "draws": 2}, 9000),
        (ON_SPARK, on_spark, {"groups": 8}, 4000),
    ],
)
def test_values_are_sparks(spark, where, round_of, few, least):
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"  # as it is by default
    tally = Tally()
    round_of(Place(spark, where), random.Random(5), tally, **few)
    assert tally.differences == []
    assert tally.by(1).keys() == {where}
    assert sum(tally.by(1).values()) > least
    assert len(tally.by(0)) >= 31


def test_a_difference_is_found():
    tally, place = Tally(), Place(None)
    nan = float("nan")
    tally.rows("same", place, [{"v": [nan, None]}] * 2, [{"v": [nan, None]}] * 2, "v")
    assert (tally.by(0), tally.differences) == ({"same": 2}, [])
    tally.rows("other", place, [{"v": [nan]}], [{"v": [None]}], "v")
    tally.rows("fewer", place, [{"v": 0.0}], [{"v": 0.0}] * 2, "v")
    assert [one["kind"] for one in tally.differences] == ["other", "other", "fewer"]


def test_types_are_nested_in_each_other():
    drawn = [nested(random.Random(seed), depth=3)[0] for seed in range(200)]
    assert max(kind.count("<") for kind in drawn) >= 3
    assert any("map<struct<" in kind for kind in drawn)
