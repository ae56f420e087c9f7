"""Rows that say what an operator keeps of a key, as entries of its state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.errors import TopologyError, did_you_mean
from weir.hashing import hash_columns
from weir.state.segment import NEVER, completed, entries

if TYPE_CHECKING:
    from weir.graph.model import Node

Hashes = NDArray[np.uint64]


def checked_rows(
    node: Node, rows: pa.Table, values: Mapping[str, pa.DataType | None], optional: Collection[str] = ()
) -> pa.Table:
    """Return the key's columns and some others, in the types that they are kept in; None: any type.

    Raise a TopologyError that names what is missing, unknown, of another type, or a key that is null.
    """
    if node.window is not None:
        raise TopologyError("rows cannot say what open windows hold; give weir.State(checkpoint, operator)")
    wanted = {**{k: node.state.field(k).type for k in node.key}, **values}
    for column in wanted:
        if column not in rows.column_names and column not in optional:
            raise TopologyError(
                f"no column {column!r}; it takes {', '.join(wanted)}, and there are {', '.join(rows.column_names)}"
            )
    for column in rows.column_names:
        if column not in wanted:
            raise TopologyError(
                f"column {column!r} says nothing about its state; {did_you_mean(column, wanted)}"
            )
    out = {}
    for column, kind in wanted.items():
        if column not in rows.column_names:
            continue
        try:
            out[column] = rows[column] if kind is None else rows[column].cast(kind)
        except pa.ArrowException as error:
            raise TopologyError(f"column {column!r} is {rows[column].type}, not {kind} ({error})") from None
        if column in node.key and out[column].null_count:
            raise TopologyError(f"{out[column].null_count} rows have no key: {column!r} is null there")
    return pa.table(out).combine_chunks()


def key_hashes(node: Node, rows: pa.Table) -> tuple[Hashes, Hashes]:
    """Return both hashes of each row's key."""
    return hash_columns([rows[k] for k in node.key]), node.second_hash(rows)


def keyed_entries(node: Node, data: pa.Table, clock: int) -> pa.Table:
    """Return one entry per key, as if each had been touched now."""
    deadline = np.full(data.num_rows, NEVER if node.ttl is None else clock + node.ttl)
    return entries(completed(data, node.state), *key_hashes(node, data), deadline=deadline)


def plain_entries(node: Node, rows: pa.Table, clock: int) -> pa.Table:
    """Return entries of an operator that keeps a few columns per key, from rows that have these."""
    values = {f.name: f.type for f in node.state if f.name not in node.key}
    return keyed_entries(node, checked_rows(node, rows, values), clock)


def times_of(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return times as µs since 1970."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us", column.type.tz))
    return np.asarray(column.cast(pa.int64()).to_numpy())
