"""One value per group: what the loops over numbers say is what Arrow says."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import OperatorError
from weir.operators import grouped
from weir.operators.grouped import extreme_rows, reduce_groups

DAYS = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
COLUMNS = {
    pa.int64(): st.integers(-(2**62), 2**62),
    pa.int16(): st.integers(-300, 300),
    pa.float64(): st.floats(-1e6, 1e6) | st.just(float("nan")),
    pa.date32(): DAYS,
    pa.timestamp("us"): TIMES,
    pa.string(): st.text(max_size=2),
}


def rows(kind):
    return st.lists(st.tuples(st.integers(0, 4), st.none() | COLUMNS[kind], st.none() | st.integers(0, 3)))


def plain(array):
    """Return values that can be compared: NaN equals NaN, and there is one zero."""
    return [repr(v + 0.0 if isinstance(v, float) else v) for v in array.to_pylist()]


def test_the_order_of_rows_does_not_decide_which_zero_is_told():
    groups = np.zeros(2, np.int64)
    for how in ("min", "max", "sum"):
        for zeros in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]):
            assert repr(reduce_groups(pa.array(zeros), groups, 1, how)[0].as_py()) == "0.0"


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
@given(data=st.data())
def test_values_per_group_are_arrows(kind, data):
    drawn = data.draw(rows(kind))
    groups = np.array([g for g, _, _ in drawn], np.int64)
    column = pa.array([v for _, v, _ in drawn], kind)
    for how in ("min", "max", *(["sum"] if kind in (pa.int64(), pa.float64()) else [])):
        exact = (
            [sum(v for g, v, _ in drawn if g == group and v is not None) for group in range(5)]
            if how == "sum"
            else []
        )
        if kind == pa.int64() and any(not -(2**63) <= total < 2**63 for total in exact):
            with pytest.raises(OperatorError, match="a sum is too large for int64"):
                reduce_groups(column, groups, 5, how)
            continue
        ours, arrows = (one(column, groups, 5, how) for one in (reduce_groups, grouped._by_arrow))
        if kind == pa.float64() and how == "max":  # in Spark, unlike Arrow, NaN is greater than any number
            nan = {g for g, v, _ in drawn if v is not None and v != v}
            arrows = pa.array(
                [float("nan") if g in nan else v for g, v in enumerate(arrows.to_pylist())], kind
            )
        assert ours.type == kind
        assert plain(ours) == plain(arrows)


def test_sums_of_decimals_do_not_wrap():
    kind, groups = pa.decimal128(38, 0), np.zeros(2, np.int64)
    most = decimal.Decimal(10**38 - 1)
    least = most.copy_negate()
    assert reduce_groups(pa.array([most, least], kind), groups, 1, "sum")[0].as_py() == 0
    for values in ([most, most], [least, least]):
        with pytest.raises(OperatorError, match="a sum is too large"):
            reduce_groups(pa.array(values, kind), groups, 1, "sum")


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.string()], ids=str)
@given(data=st.data(), greatest=st.booleans())
def test_the_first_and_the_last_row_of_a_group(kind, data, greatest):
    drawn = data.draw(rows(kind))
    groups = np.array([g for g, _, _ in drawn], np.int64)
    values, orders = (pa.array([r[i] for r in drawn], t) for i, t in ((1, kind), (2, pa.int64())))
    chosen = extreme_rows(orders, values, groups, 5, greatest)
    for group, at in enumerate(chosen.tolist()):
        mine = [(o, v) for g, v, o in drawn if g == group and o is not None and v is not None]
        if not mine:
            assert at == -1
            continue
        _, value, order = drawn[at]
        assert drawn[at][0] == group
        assert (order, value) == (max if greatest else min)(mine)
