"""Only the columns travel that somebody reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.graph.model import Declared


def needed_columns(
    order: Sequence[Declared],
    inputs: Mapping[str, pa.Schema],
) -> dict[str, set[str]]:
    """Return the columns that must reach each operator, found from the end backwards."""
    needed: dict[str, set[str]] = {}
    for d in reversed(order):
        wanted = d.operator.needs(inputs[d.name])
        mine = set(inputs[d.name].names) if wanted is None else set(wanted)
        mine |= set(d.key)
        if d.window:
            mine.add(d.window.column)
        if d.passes:
            for other in order:
                if d.name in other.inputs:
                    mine |= needed[other.name]
        # nothing but its key travels to an operator only if it has one; a row needs at least one column
        needed[d.name] = mine or {inputs[d.name].names[0]}
    return needed


def rows_out_schema(
    d: Declared,
    schema: pa.Schema,
    keep: set[str],
    order: Sequence[Declared],
    needed: Mapping[str, set[str]] | None,
    sinks: Sequence[str],
) -> pa.Schema:
    """Return the columns that leave an operator: of files, only those are read that somebody wants."""
    if d.passes:
        return only(schema, keep)
    if d.operator.reads_files and needed is not None and d.name not in sinks:
        return only(schema, {c for other in order if d.name in other.inputs for c in needed[other.name]})
    return schema


def only(schema: pa.Schema, columns: set[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    return pa.schema([f for f in schema if f.name in columns])
