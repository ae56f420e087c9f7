"""An order of rows that depends on what they are, not on how they arrived.

When an executor dies, Spark runs its lost tasks again and their input arrives in another order, while other
tasks have already read what the first run sent. So whatever depends on order (round robin, power-of-choices
routers, a user's function) is given its rows in this order. Rows that are equal in it are equal.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.hashing import SECOND_SEED, SPARK_SEED, hash_columns


def row_hashes(batch: pa.RecordBatch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """128 bits over all columns of each row."""
    columns = [_plain(c) for c in batch.columns]
    # a null must not hash like an absent column, so its position takes part
    columns += [c.is_null() for c in batch.columns if c.null_count]
    return hash_columns(columns, SPARK_SEED), hash_columns(columns, SECOND_SEED)


def canonical_order(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Positions of the rows in canonical order.

    >>> a = pa.record_batch({"x": [3, 1, 2]})
    >>> b = pa.record_batch({"x": [2, 3, 1]})
    >>> a.take(pa.array(canonical_order(a))).equals(b.take(pa.array(canonical_order(b))))
    True
    """
    first, second = row_hashes(batch)
    return np.lexsort((second, first))


def _plain(column: pa.Array) -> pa.Array:
    """A column of a type that the hash knows, different where the original differs."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return pa.array(np.ascontiguousarray(values).view(np.int64))
    if pa.types.is_nested(kind) or pa.types.is_map(kind):
        return pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.int32())
    if pa.types.is_decimal(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return column.cast(pa.string())
    if pa.types.is_unsigned_integer(kind):
        return column.cast(pa.int64(), safe=False)
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column
