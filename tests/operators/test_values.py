"""No value changes on its way: what does not fit its column is an error that names operator, column and value."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pytest

import weir
from weir.errors import OperatorError, SourceError, TopologyError
from weir.testing import run, start
from weir.values import to_array

PRICES = [{"k": "a", "n": 19.99}] * 3


def cents(on_error="fail"):
    source = weir.source("k string, n double")
    mapped = source.map(
        lambda r: (r.k, r.n * 100), "k string, cents long", name="to_cents", on_error=on_error
    )
    return mapped.keyed("k", weir.Aggregate(total="sum(cents)"), name="totals")


def test_a_fraction_in_an_integer_column_is_an_error_not_a_wrong_sum():
    with pytest.raises(
        OperatorError, match=r"'to_cents'.*'cents' is declared as int64: 1998.9\d* is no whole number"
    ):
        run(cents(), [PRICES], servers=2)


def test_a_fraction_can_be_diverted_and_a_whole_float_passes():
    query = run(cents("divert"), [[*PRICES, {"k": "a", "n": 2.5}]], servers=2)
    assert query.state("totals").to_pylist() == [{"k": "a", "total": 250}]
    assert query.dead_letters.num_rows == 3


@pytest.mark.parametrize("value", [1.7, Decimal("1.5"), np.float32(0.5), np.float64(2.5), math.nan, math.inf])
def test_a_process_cannot_yield_a_fraction_for_an_integer(value):
    app = weir.source("k string").process("k", lambda key, rows, state: [(value,)], output="n long", name="p")
    with pytest.raises(OperatorError, match=r"operator 'p'.*column 'n'"):
        run(app, [[{"k": "a"}]], servers=1)


TZ = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (pa.date32(), dt.datetime(2020, 1, 1, 12), "time of day"),
        (pa.date32(), 1.5, "not a date"),
        (pa.timestamp("us", "UTC"), 1.5, "not a time"),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=TZ), "time zone"),
        (pa.float32(), 1e300, "beyond"),
        (pa.list_(pa.string()), "abc", "is a text"),
        (pa.list_(pa.int64()), {1, 2}, "is a set"),
        (pa.list_(pa.int64()), [1, 2.5], "no whole number"),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}, "has a field 'b'"),
        (pa.struct([("a", pa.int64())]), {"a": 1.5}, "no whole number"),
        (pa.struct([("a", pa.int64())]), (1.5,), "no whole number"),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}, "no whole number"),
        (pa.int8(), 300, "300 does not fit"),
        (pa.string(), 5, "5 does not fit"),
        (pa.decimal128(5, 1), Decimal("1.23"), "does not fit"),
    ],
)
def test_what_arrow_would_change_or_refuse_is_named(kind, value, why):
    with pytest.raises(ValueError, match=why):
        to_array([None, value], kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 2.0),
        (pa.int64(), np.int32(7)),
        (pa.date32(), dt.datetime(2020, 1, 1)),
        (pa.list_(pa.int64()), (1, 2)),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}),
        (pa.float32(), math.inf),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}),
    ],
)
def test_what_fits_passes(kind, value):
    assert to_array([value], kind).null_count == 0


@pytest.mark.parametrize(
    ("emitted", "why"),
    [
        ("FR", r"'FR', which is no row: a row is a dict or a tuple of a, b"),
        (b"FR", "which is no row"),
        (("x",), r"\('x',\), but the declared columns are a, b"),
        ({"a": "x"}, "without 'b'"),
        ({"a": "x", "b": "y", "c": 1}, "with 'c', which is not declared"),
        (7, "which is no row"),
        ([("x", "y")], "but the declared columns"),
    ],
)
def test_what_is_no_row_is_not_taken_apart(emitted, why):
    app = weir.source("k string").process(
        "k", lambda k, r, s: [emitted], output="a string, b string", name="p"
    )
    with pytest.raises(OperatorError, match=f"operator 'p'.*{why}"):
        run(app, [[{"k": "FR"}]], servers=1)


def test_tuples_and_dicts_can_be_mixed():
    def both(key, rows, state):
        yield "x", 1
        yield {"b": 2, "a": "y"}

    app = weir.source("k string").process("k", both, output="a string, b long")
    assert run(app, [[{"k": "FR"}]], servers=1).output().to_pylist() == [
        {"a": "x", "b": 1},
        {"a": "y", "b": 2},
    ]


@dataclass
class Inner:
    n: int = 0


@dataclass
class Seen:
    n: int = 0
    inner: Inner = field(default_factory=Inner)

    @cached_property
    def twice(self):
        return 2 * self.n


def undeclared(key, rows, state):
    state.m = getattr(state, "m", 0) + 1


def undeclared_within(key, rows, state):
    state.inner.m = 1


@pytest.mark.parametrize(("function", "kind"), [(undeclared, "Seen"), (undeclared_within, "Inner")])
def test_an_attribute_that_would_vanish_is_refused(function, kind):
    app = weir.source("k string").process("k", function, state=Seen, name="p")
    with pytest.raises(OperatorError, match=f"operator 'p', key 'a': AttributeError: {kind} declares no 'm'"):
        run(app, [[{"k": "a"}]], servers=1)


def test_a_cached_property_is_no_attribute_of_its_own():
    def counts(key, rows, state):
        state.n += 1
        yield (state.twice,)

    app = weir.source("k string").process("k", counts, state=Seen, output="n long")
    assert run(app, [[{"k": "a"}]] * 2, servers=1).output().to_pylist() == [{"n": 2}, {"n": 4}]


# ---------------------------------------------------------------------------------------------- aggregates


def totals(values, kind="long", function="sum", batches=1, **options):
    app = weir.source(f"k string, n {kind}").keyed(
        "k", weir.Aggregate(x=f"{function}(n)"), name="totals", **options
    )
    rows = [{"k": "a", "n": value} for value in values]
    size = -(-len(rows) // batches)
    return (
        run(app, [rows[i : i + size] for i in range(0, len(rows), size)], servers=3)
        .state("totals")["x"][0]
        .as_py()
    )


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("options", [{}, {"routing": weir.PartialKey()}], ids=["hash", "split"])
def test_a_sum_that_does_not_fit_is_an_error(batches, options):
    with pytest.raises(OperatorError, match=r"operator 'totals': x=sum\(n\): a sum is too large for int64"):
        totals([2**62] * 3, batches=batches, **options)
    with pytest.raises(OperatorError, match="too large"):
        totals([Decimal(10**37)] * 11, "decimal(38,0)", batches=batches, **options)


@pytest.mark.parametrize("kind", ["double", "float"])
def test_nan_is_greater_than_any_number_as_in_spark(kind):
    nan = float("nan")
    assert math.isnan(totals([1.0, nan, 2.0], kind, "max"))
    assert math.isnan(totals([1.0, nan, 2.0], kind, "max", batches=3))
    assert totals([nan, 1.0, 2.0], kind, "min") == 1.0
    assert math.isnan(totals([nan, nan], kind, "min"))
    assert totals([nan, nan, 0.0, -0.0], kind, "approx_distinct") == 2


# ---------------------------------------------------------------------------------------------- joins and types


def test_an_outer_join_keeps_rows_whose_key_is_null():
    left = weir.source("k string, t timestamp, a long", "left")
    right = weir.source("k string, t timestamp, b long", "right")
    t = dt.datetime(2024, 1, 1)
    batch = {
        "left": [{"k": None, "t": t, "a": 1}, {"k": "x", "t": t, "a": 2}],
        "right": [{"k": None, "t": t, "b": 3}, {"k": "x", "t": t, "b": 4}],
    }

    def joined(how, execution="auto"):
        app = left.join(right, "k", how=how, within="1 minute", time="t", name="j")
        rows = run(app, [batch], servers=3, execution=execution).output("j").to_pylist()
        return sorted((r["k"] or "", r["a"] or 0, r["b"] or 0) for r in rows)

    assert joined("inner") == [("x", 2, 4)]
    assert joined("left") == joined("left", "live") == [("", 1, 0), ("x", 2, 4)]
    assert joined("full") == [("", 0, 3), ("", 1, 0), ("x", 2, 4)]


def test_a_left_lookup_keeps_rows_whose_key_is_null():
    stream, table = weir.source("k string, a long", "stream"), weir.source("k string, b long", "table")
    batch = {
        "stream": [{"k": None, "a": 1}, {"k": "x", "a": 2}],
        "table": [{"k": "x", "b": 4}, {"k": None, "b": 5}],
    }
    for how, expected in (("left", [(1, None), (2, 4)]), ("inner", [(2, 4)])):
        rows = run(stream.lookup(table, "k", how=how, name="l"), [batch], servers=2).output("l").to_pylist()
        assert sorted((r["a"], r["b"]) for r in rows) == expected


def test_maps_are_dicts_and_structs_can_be_declared():
    seen = []

    def looks(key, rows, state):
        seen.extend((row.m, row.s) for row in rows)

    app = weir.source("k string, m map<string, array<int>>, s struct<a: int, b: string>").process("k", looks)
    run(app, [[{"k": "x", "m": {"p": [1]}, "s": {"a": 1, "b": "c"}}]], servers=1)
    assert seen == [({"p": [1]}, {"a": 1, "b": "c"})]
    mapped = weir.source("m map<string, long>").map(lambda row: {"m": {**row.m, "q": 2}})
    assert run(mapped, [[{"m": {"p": 1}}]], servers=1).output()["m"].to_pylist() == [[("p", 1), ("q", 2)]]
    with pytest.raises(TopologyError, match="unknown type"):
        weir.source("s struct<>")


def test_columns_that_a_source_does_not_have_are_refused():
    query = start(weir.source("place string").keyed("place", weir.Count()), servers=1)
    for rows in ([{"place": "a", "n": 1}], pa.table({"place": ["a"], "n": [1]})):
        with pytest.raises(SourceError, match="source 'source' has no column 'n'"):
            query.feed(rows)


def test_maps_whose_keys_no_dict_can_have_are_pairs():
    schema = "k string, m map<struct<a: int, b: string>, array<map<array<int>, double>>>"
    rows = [{"k": "a", "m": [({"a": 1, "b": None}, [[([1, None], 0.5)], None])]}, {"k": "b", "m": None}]
    same = weir.source(schema).map(lambda row: row, name="same")
    result = run(same, [rows], servers=2).output("same").to_pylist()
    assert sorted(result, key=lambda row: row["k"]) == rows
