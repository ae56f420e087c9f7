"""The functions of :class:`~weir.Aggregate`: how each begins, merges and finishes, on whole columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.operators.distinct import REGISTERS, estimate, fill, merge_registers

Groups = NDArray[np.int64]
Columns = list[pa.Array]
Begin = Callable[[pa.Array | None, Groups, int], Columns]


@dataclass(frozen=True)
class Function:
    """One aggregate function: how to begin, how to merge, how to finish."""

    fields: Callable[[pa.DataType | None], list[tuple[str, pa.DataType]]]
    begin: Begin
    merge: Sequence[str]
    finish: Callable[[Sequence[pa.Array]], pa.Array]
    result: Callable[[pa.DataType | None], pa.DataType]
    accepts: Callable[[pa.DataType], bool]


def reduce_groups(column: pa.Array, groups: Groups, n: int, how: str) -> pa.Array:
    """One value per group, in the order of the groups' numbers."""
    table = pa.table({"g": groups, "v": column})
    out = pa.TableGroupBy(table, "g", use_threads=False).aggregate([("v", how)])
    numbers, values = out["g"].to_numpy(), out[f"v_{how}"].combine_chunks()
    if len(numbers) == n and np.array_equal(numbers, np.arange(n)):
        return values
    position = np.full(n, -1, dtype=np.int64)
    position[numbers] = np.arange(len(numbers))
    return values.take(pa.array(position, mask=position < 0))


def _sum_type(kind: pa.DataType | None) -> pa.DataType:
    if kind is not None and pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.float64() if kind is not None and pa.types.is_floating(kind) else pa.int64()


def _numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _ordered(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        _numeric(kind) or t.is_string(kind) or t.is_binary(kind) or t.is_temporal(kind) or t.is_boolean(kind)
    )


def _count(column: pa.Array | None, groups: Groups, n: int) -> Columns:
    if column is not None and column.null_count:
        groups = groups[column.is_valid().to_numpy(zero_copy_only=False)]
    return [pa.array(np.bincount(groups, minlength=n).astype(np.int64))]


def _mean(column: pa.Array | None, groups: Groups, n: int) -> Columns:
    assert column is not None
    total = reduce_groups(column.cast(pa.float64()), groups, n, "sum")
    return [pc.fill_null(total, 0.0), *_count(column, groups, n)]


def _need(column: pa.Array | None) -> pa.Array:
    assert column is not None
    return column


def _one_column(
    how: str, kind: Callable[[Any], pa.DataType], accepts: Callable[[pa.DataType], bool], begin: Begin
) -> Function:
    """Return a function whose state is its value."""
    return Function(lambda column: [("", kind(column))], begin, [how], lambda c: c[0], kind, accepts)


FUNCTIONS: dict[str, Function] = {
    "count": _one_column("sum", lambda kind: pa.int64(), lambda kind: True, _count),
    "sum": _one_column(
        "sum",
        _sum_type,
        _numeric,
        lambda c, g, n: [reduce_groups(_need(c).cast(_sum_type(_need(c).type)), g, n, "sum")],
    ),
    "min": _one_column(
        "min", lambda kind: kind, _ordered, lambda c, g, n: [reduce_groups(_need(c), g, n, "min")]
    ),
    "max": _one_column(
        "max", lambda kind: kind, _ordered, lambda c, g, n: [reduce_groups(_need(c), g, n, "max")]
    ),
    "mean": Function(
        lambda kind: [(".sum", pa.float64()), (".count", pa.int64())],
        _mean,
        ["sum", "sum"],
        lambda c: pc.if_else(pc.greater(c[1], 0), pc.divide(c[0], pc.cast(c[1], pa.float64())), None),
        lambda kind: pa.float64(),
        _numeric,
    ),
    "approx_distinct": Function(
        lambda kind: [(".registers", pa.binary(REGISTERS))],
        lambda c, g, n: [fill(_need(c), g, n)],
        ["registers"],
        lambda c: estimate(c[0]),
        lambda kind: pa.int64(),
        lambda kind: not pa.types.is_nested(kind),
    ),
}
FUNCTIONS["avg"] = FUNCTIONS["mean"]


def merge_column(column: pa.Array, groups: Groups, n: int, how: str) -> pa.Array:
    """Merge a column of partial states: rows of equal group become one."""
    return merge_registers(column, groups, n) if how == "registers" else reduce_groups(column, groups, n, how)
