"""The columns that every segment has before those of its operator."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

H1, H2, DEAD, DEADLINE = "__h1", "__h2", "__dead", "__deadline"
SYSTEM = (
    pa.field(H1, pa.uint64(), nullable=False),
    pa.field(H2, pa.uint64(), nullable=False),
    pa.field(DEAD, pa.bool_(), nullable=False),
    pa.field(DEADLINE, pa.int64(), nullable=False),
)
NEVER = np.iinfo(np.int64).max


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return entries with the columns of a schema that may have gained some since they were written: null there.

    >>> completed(pa.table({"n": [1]}), pa.schema([("n", pa.int64()), ("more", pa.string())])).to_pydict()
    {'n': [1], 'more': [None]}
    """
    if table.schema.names == schema.names:
        return table
    held = set(table.column_names)
    columns = [table[f.name] if f.name in held else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a segment that stores ``schema``."""
    return pa.schema([*SYSTEM, *schema])
