"""Reading files where they are assigned to: the first operator of an application over files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import SourceError, TopologyError, did_you_mean
from weir.operators.base import Operator
from weir.operators.file_reader import CHUNK_ROWS, read_file
from weir.operators.instance import Context, Instance
from weir.rows import Rows, one_batch

PATH, PARTITION, BYTES, MODIFIED = "path", "partition", "bytes", "modified"
LISTING = pa.schema(
    [
        (PATH, pa.string()),
        (PARTITION, pa.string()),
        (BYTES, pa.int64()),
        (MODIFIED, pa.timestamp("us", "UTC")),
    ]
)
CHUNK_BYTES = 16 << 20
FORMATS = ("parquet", "arrow")


@dataclass(frozen=True)
class Read(Operator):
    """Turns paths of files into their rows, on the server that the file's partition is assigned to.

    What reaches it is a listing, one small row per file (:data:`LISTING`); what it emits are the files' rows.
    It keeps no state, so a partition may be read elsewhere from one batch to the next at no cost. Use
    :func:`weir.files`, which makes the listing.

    A column of the schema that a file lacks is taken from its path (``…/day=7/…``). The format ``"arrow"`` is
    Arrow's file format, also called Feather 2. ``base`` is the folder that files are looked for in, to tell a
    partition's folder from it ("" if unknown); ``recurs`` says whether partitions come back with new files, so that
    something can be learnt about them. A batch reads ``max_bytes`` of files at most, or a single file.
    """

    schema: pa.Schema
    format: str = "parquet"
    base: str = ""
    recurs: bool = True
    max_bytes: int | None = None

    reads_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise TopologyError(f"format={self.format!r}: {did_you_mean(self.format, FORMATS)}")
        if not len(self.schema):
            raise TopologyError("files need at least one column to be read")

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return set(LISTING.names)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return self.schema

    def instance(self, context: Context) -> Instance:
        return _ReadInstance(context)


class _ReadInstance(Instance):
    """Read the files that are assigned to its server; rows come from the partition of their file."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        operator, schema = self.operator, self.node.rows_out
        listed = [rows.column(c).to_pylist() for c in (PATH, PARTITION, BYTES)]
        listed.append(rows.column(MODIFIED).cast(pa.int64()).to_pylist())
        hashes = rows.hash(self.node.key)
        kept: list[pa.RecordBatch] = []
        origins: list[NDArray[np.uint64]] = []
        count = size = 0
        # small files are put together: what one of them sends to one server would be a message of few rows
        for at in np.argsort(np.array(listed[0], object)):
            path, partition, length, modified = (column[at] for column in listed)
            self._check(operator, path, partition)
            for batch in read_file(path, operator.format, schema, size=length, modified=modified):
                kept.append(batch)
                origins.append(np.full(batch.num_rows, hashes[at]))
                count, size = count + batch.num_rows, size + batch.nbytes
                if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    yield self._together(kept, origins)
                    kept, origins, count, size = [], [], 0, 0
        if kept:
            yield self._together(kept, origins)

    def _check(self, operator: Read, path: str, partition: str | None) -> None:
        if not partition:
            raise SourceError(
                f"{path}: the pattern by= finds no partition in this path; fix it, or move the file"
            )
        if operator.base and path.rpartition("/")[0] == operator.base:
            raise SourceError(
                f'{path}: lies in no folder of its own, which by="folder" takes for its partition; put files into '
                'folders by partition, or say by="file" or by=r"a pattern with a (group)"'
            )

    def _together(self, batches: list[pa.RecordBatch], origins: list[NDArray[np.uint64]]) -> Rows:
        batch = one_batch(batches)
        self.report.rows_in += batch.num_rows
        self.report.rows_out += batch.num_rows
        return Rows(batch, origin=(self.node.name, np.concatenate(origins)))
