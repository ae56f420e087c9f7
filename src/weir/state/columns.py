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


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a segment that stores ``schema``."""
    return pa.schema([*SYSTEM, *schema])
