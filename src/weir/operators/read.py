"""Reading files where they are assigned to: the first operator of an application over files."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from weir.errors import TopologyError, did_you_mean
from weir.operators.base import Operator

PATH, PARTITION, BYTES, MODIFIED = "path", "partition", "bytes", "modified"
LISTING = pa.schema(
    [
        (PATH, pa.string()),
        (PARTITION, pa.string()),
        (BYTES, pa.int64()),
        (MODIFIED, pa.timestamp("us", "UTC")),
    ]
)
FORMATS = ("parquet", "arrow")


@dataclass(frozen=True)
class Read(Operator):
    """Turns paths of files into their rows, on the server that the file's partition is assigned to.

    What reaches it is a listing, one small row per file (:data:`LISTING`); what it emits are the files' rows.
    It keeps no state, so a partition may be read elsewhere from one batch to the next at no cost. Use
    :func:`weir.files`, which makes the listing.

    Parameters
    ----------
    schema
        The columns that files are read for. A column that a file lacks is taken from its path (``…/day=7/…``).
    format
        ``"parquet"`` or ``"arrow"`` (Arrow's file format, also called Feather 2).
    base
        The folder that files are looked for in, to tell a partition's folder from it; "" if unknown.
    recurs
        Whether partitions come back with new files, so that something can be learnt about them.
    """

    schema: pa.Schema
    format: str = "parquet"
    base: str = ""
    recurs: bool = True

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise TopologyError(f"format={self.format!r}: {did_you_mean(self.format, FORMATS)}")
        if not len(self.schema):
            raise TopologyError("files need at least one column to be read")

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return set(LISTING.names)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return self.schema
