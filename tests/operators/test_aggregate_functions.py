"""Aggregate functions beside count and sum: compared with plain Python, whole and in parts."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import dicts, grouped
from weir.errors import TopologyError, UnknownColumn
from weir.flow import parts_of
from weir.operators import AggregateFunction, PythonAggregate
from weir.operators.aggregate.aggregate_functions import reduce_groups
from weir.testing import run

SCHEMA = "k string, x double, n long, t long, s string"
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from("abc"),
            "x": st.none() | st.floats(-1e6, 1e6),
            "n": st.none() | st.integers(-5, 5),
            "t": st.none() | st.integers(0, 6),
            "s": st.none() | st.sampled_from(["u", "v", "w"]),
        }
    ),
    max_size=30,
)


def truth(rows):
    x = [r["x"] for r in rows if r["x"] is not None]
    n = sorted((r["n"] for r in rows if r["n"] is not None), reverse=True)
    at = sorted((r["t"], r["s"]) for r in rows if r["t"] is not None and r["s"] is not None)
    return {
        "deviation": statistics.stdev(x) if len(x) > 1 else None,
        "spread": statistics.variance(x) if len(x) > 1 else None,
        "first": at[0][1] if at else None,
        "last": at[-1][1] if at else None,
        "top": n[:3],
        "newest": [s for _, s in at[::-1][:2]],
    }


VALUES = {
    "deviation": "stddev(x)",
    "spread": "variance(x)",
    "first": "first(s, t)",
    "last": "last(s, t)",
    "top": "top_k(n, 3)",
    "newest": "top_k(s, 2, t)",
}


@pytest.mark.parametrize("routing", [None, weir.Shuffle()], ids=["hash", "in parts"])
@settings(max_examples=12)
@given(batches=st.lists(ROWS, min_size=1, max_size=3))
def test_they_say_what_plain_python_says(routing, batches):
    app = weir.source(SCHEMA).keyed("k", weir.Aggregate(**VALUES), routing=routing)
    state = {r.pop("k"): r for r in dicts(run(app, batches, servers=3, seed=1).state("k"))}
    rows = {k: [r for b in batches for r in b if r["k"] == k] for k in "abc"}
    assert set(state) == {k for k, some in rows.items() if some}
    for k, values in state.items():
        expected = truth(rows[k])
        for name, value in values.items():
            if isinstance(value, float):
                assert math.isclose(
                    value, expected[name], rel_tol=1e-9, abs_tol=1e-4 if name == "deviation" else 1
                )
            else:
                assert value == expected[name], name


def test_small_differences_of_large_numbers_are_not_lost():
    values = [1e9 + d for d in (4, 7, 13, 16)]
    rows = [{"k": "a", "x": x} for x in values]
    app = weir.source("k string, x double").keyed("k", weir.Aggregate(v="variance(x)"))
    query = run(app, [rows[:2], rows[2:]], servers=1)
    assert dicts(query.state("k"))[0]["v"] == pytest.approx(30.0)


def test_integers_that_a_double_does_not_hold_are_rounded_not_refused():
    large = [2**60 + 1, 2**60 + 3, 2**62 + 5]
    values = weir.Aggregate(m="mean(n)", s="stddev(n)", q="approx_quantile(n, 1)")
    query = run(weir.source(SCHEMA).keyed("k", values), [[{"k": "a", "n": n}] for n in large], servers=2)
    (row,) = dicts(query.state("k"))
    assert row["m"] == pytest.approx(statistics.mean(large))
    assert row["s"] == pytest.approx(statistics.stdev(large))
    assert row["q"] == pytest.approx(large[-1])


def test_quantiles_are_close_in_rank_also_merged():
    rng = np.random.default_rng(3)
    table = pa.table({"k": pa.array(rng.choice(list("ab"), 40_000)), "x": rng.lognormal(size=40_000)})
    app = weir.source("k string, x double").keyed(
        "k",
        weir.Aggregate(mid="approx_quantile(x, 0.5)", tails="approx_quantile(x, 0.01, 0.99)"),
        routing=weir.Shuffle(),
    )
    query = run(app, [table.slice(0, 10_000), table.slice(10_000)], servers=3)
    for row in dicts(query.state("k")):
        x = np.array([r["x"] for r in grouped(table, "k")[row["k"],]])
        for rank, value in zip((0.5, 0.01, 0.99), (row["mid"], *row["tails"]), strict=True):
            assert abs((x <= value).mean() - rank) < 0.03


class Product(AggregateFunction):
    def result(self, kinds):
        return pa.float64()

    def begin(self, columns, groups, n):
        return [reduce_groups(columns[0].cast(pa.float64()), groups, n, "product")]

    def merge(self, states, groups, n):
        return [reduce_groups(states[0], groups, n, "product")]


def spread():
    return PythonAggregate(
        "n",
        zero=list,
        add=lambda state, values: [*state, values[0], values[-1]],
        merge=lambda a, b: [min(a + b), max(a + b)],
        finish=lambda state: max(state) - min(state),
        result="long",
    )


@pytest.mark.parametrize("options", [{}, {"routing": weir.Shuffle()}, {"routing": weir.PartialKey()}])
def test_functions_of_ones_own_merge_like_ours(options):
    rng = np.random.default_rng(5)
    tables = [
        pa.table(
            {"k": rng.choice(list("abcd"), 60), "n": rng.integers(1, 9, 60), "x": rng.uniform(0.9, 1.1, 60)}
        )
        for _ in range(4)
    ]
    app = weir.source("k string, n long, x double").keyed(
        "k", weir.Aggregate(emit="updates", product=Product("x"), spread=spread()), name="own", **options
    )
    query = run(app, tables, servers=3, faults=["commit-written:1"])
    last = {}
    for batch in range(6):
        last |= {r["k"]: r for r in dicts(query.output("own", batch))}
    for (k,), rows in grouped(tables, "k").items():
        assert last[k]["spread"] == max(r["n"] for r in rows) - min(r["n"] for r in rows)
        assert last[k]["product"] == pytest.approx(math.prod(r["x"] for r in rows))
    assert {"k", "product", "spread"} == set(query.state("own").column_names)
    assert {r["k"]: r["spread"] for r in dicts(query.state("own"))} == {
        k: r["spread"] for k, r in last.items()
    }


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("first(x)", TopologyError, "first\\(column, order\\)"),
        ("top_k(n, many)", TopologyError, "a number from 1 to 10,000, not 'many'"),
        ("approx_quantile(x, 50)", TopologyError, "a rank from 0 to 1"),
        ("stddev(s)", TopologyError, "stddev\\(s\\) does not work on type string"),
        ("last(s, time)", UnknownColumn, "last\\(s, time\\) needs a column 'time'"),
        ("sum(n, x)", TopologyError, "write it as sum\\(column\\)"),
        ("median(x)", TopologyError, "did you mean"),
    ],
)
def test_what_cannot_be_is_refused(value, error, said):
    with pytest.raises(error, match=said):
        parts_of(weir.source(SCHEMA).keyed("k", weir.Aggregate(v=value))).topology(2)
