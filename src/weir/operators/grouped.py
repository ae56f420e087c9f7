"""One value per group of rows, on whole columns: sums, least and greatest values, and which row comes first or last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.compiled import compiled
from weir.errors import OperatorError

Groups = NDArray[np.int64]
_OPERATIONS = {"sum": 0, "min": 1, "max": 2}


@compiled("T[]", "bool[]", "int64[]", "out T[]", "out bool[]", "out int64[]", "int64", T=("int64", "float64"))
def _reduce(values, valid, groups, out, seen, carry, operation):  # type: ignore[no-untyped-def]
    """Add values up per group, or keep the least or greatest, NaN being greater than any number.

    ``carry`` counts how often a sum has left the 64 bits: then it has another sign than both of its terms.
    """
    for i in range(len(values)):
        if len(valid) and not valid[i]:
            continue
        g, v = groups[i], values[i]
        if not seen[g]:
            seen[g] = True
            out[g] = v
        elif operation == 0:
            before = out[g]
            out[g] += v
            if (before < 0) == (v < 0) != (out[g] < 0):
                carry[g] += -1 if v < 0 else 1
        elif operation == 1:
            if v < out[g] or out[g] != out[g]:
                out[g] = v
        elif v > out[g] or v != v:
            out[g] = v


@compiled("int64[]", "int64[]", "bool[]", "int64[]", "bool", "out int64[]")
def _extreme(orders, values, valid, groups, greatest, out):  # type: ignore[no-untyped-def]
    """Note in ``out`` the row of each group with the least or greatest order; of equals, by value."""
    for i in range(len(orders)):
        if not valid[i]:
            continue
        g = groups[i]
        j = out[g]
        if j < 0:
            out[g] = i
        elif orders[i] != orders[j]:
            if (orders[i] > orders[j]) == greatest:
                out[g] = i
        elif values[i] != values[j] and (values[i] > values[j]) == greatest:
            out[g] = i


def reduce_groups(column: pa.Array, groups: Groups, n: int, how: str) -> pa.Array:
    """Return one value per group, in the order of the groups' numbers; null for a group without any value.

    ``how`` is ``sum``, ``min``, ``max`` or another of Arrow's grouped aggregations.

    >>> reduce_groups(pa.array([1, 2, None, 4]), np.array([0, 2, 1, 0]), 3, "sum").to_pylist()
    [5, None, 2]
    """
    if how == "sum" and pa.types.is_decimal(column.type):
        # Arrow's sums of 128 bits wrap
        wide = _by_arrow(column.cast(pa.decimal256(76, column.type.scale)), groups, n, how)
        try:
            return wide.cast(column.type)
        except pa.ArrowInvalid:
            raise _too_large(column.type) from None
    values = _numbers(column) if how in _OPERATIONS else None
    if values is None or (how == "sum" and column.type not in (pa.int64(), pa.float64())):
        return _by_arrow(column, groups, n, how)
    out, seen = np.zeros(n, values.dtype), np.zeros(n, np.bool_)
    carry = np.zeros(n, np.int64)
    valid = _there(column) if column.null_count else np.empty(0, np.bool_)  # nothing at all if all are there
    _reduce(values, valid, groups, out, seen, carry, _OPERATIONS[how])
    if out.dtype.kind == "i" and carry.any():
        raise _too_large(column.type)
    result, kind = pa.array(out, mask=None if seen.all() else ~seen), column.type
    if result.type == kind:
        return result
    return result.cast(pa.int32()).view(kind) if pa.types.is_date32(kind) else result.cast(kind)


def _too_large(kind: pa.DataType) -> OperatorError:
    wider = "a double" if pa.types.is_decimal(kind) else "a double or a decimal(38, 0)"
    return OperatorError(
        f"a sum is too large for {kind}: cast the column to {wider} before, or aggregate in windows"
    )


def extreme_rows(orders: pa.Array, values: pa.Array, groups: Groups, n: int, greatest: bool) -> Groups:
    """Return the row of each group with the least or greatest order, of equals by value; −1 for a group without any.

    Rows in which either is null don't count.

    >>> orders, values = pa.array([3, 7, 7, None]), pa.array(["a", "b", "c", "d"])
    >>> extreme_rows(orders, values, np.array([0, 0, 0, 1]), 2, greatest=True).tolist()
    [2, -1]
    """
    valid = np.asarray(pc.and_(orders.is_valid(), values.is_valid()).to_numpy(zero_copy_only=False))
    out = np.full(n, -1, np.int64)
    orders, values = sort_key(orders), sort_key(values)
    numbers = [_numbers(column) for column in (orders, values)]
    if not any(one is None for one in numbers):
        _extreme(*numbers, valid, groups, greatest, out)
        return out
    rows = np.flatnonzero(valid)
    table = pa.table({"g": groups, "o": orders, "v": values}).take(pa.array(rows))
    direction = "descending" if greatest else "ascending"
    by = [("g", "ascending"), ("o", direction), ("v", direction)]
    order = pc.sort_indices(table, sort_keys=by).to_numpy()
    numbered = groups[rows[order]]
    leads = np.ones(len(order), np.bool_)
    leads[1:] = numbered[1:] != numbered[:-1]
    out[numbered[leads]] = rows[order[leads]]
    return out


def sort_key(column: pa.Array) -> pa.Array:
    """Return a column that sorts as Spark sorts this one: of floats, NaN is the greatest, and there is one zero.

    >>> sort_key(pa.array([float("nan"), 1.0, None])).is_valid().to_pylist()
    [True, True, False]
    """
    if not pa.types.is_floating(column.type):
        return column
    numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    bits = numbers.view(np.int64)
    # the bits of a negative number grow as it gets smaller
    return pa.array(bits ^ ((bits >> 63) & np.int64(2**63 - 1)), mask=~_there(column))


def _there(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _by_arrow(column: pa.Array, groups: Groups, n: int, how: str) -> pa.Array:
    table = pa.table({"g": groups, "v": column})
    out = pa.TableGroupBy(table, "g", use_threads=False).aggregate([("v", how)])
    numbers, values = out["g"].to_numpy(), out[f"v_{how}"].combine_chunks()
    if len(numbers) == n and np.array_equal(numbers, np.arange(n)):
        return values
    position = np.full(n, -1, dtype=np.int64)
    position[numbers] = np.arange(len(numbers))
    return values.take(pa.array(position, mask=position < 0))


def _numbers(column: pa.Array) -> Any:
    """Return a column as numbers of 64 bits that compare as its values do; None if it has no such."""
    kind, t = column.type, pa.types
    if kind in (pa.float64(), pa.float32()):
        width = pa.float64()
    elif t.is_signed_integer(kind) or t.is_timestamp(kind) or t.is_date(kind):
        width = pa.int64()
        if t.is_date32(kind):
            column = column.view(pa.int32())
    else:
        return None
    column = column if column.type == width else column.cast(width)
    if column.null_count:
        column = column.fill_null(0)
    numbers = column.to_numpy(zero_copy_only=False)
    # of 0.0 and −0.0, which are equal, the order of rows would decide which one is kept
    return numbers + 0.0 if numbers.dtype.kind == "f" else numbers
