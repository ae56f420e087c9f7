"""Saved state and outputs as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.engine.checkpoint import CheckpointLayout, read_table
from weir.engine.documents import Commit, FileRef
from weir.engine.inspect.inspection import (
    described_operator,
    readable_schema,
    readable_state,
    running_operator,
)
from weir.errors import EngineError
from weir.graph.model import Topology
from weir.spark.session import active_session, to_ddl, to_ddl_type
from weir.state.storage import Storage
from weir.state.view import StateView

LITTLE = 1 << 20  # bytes of a batch's output that the driver reads itself


def read_state(
    checkpoint: str,
    name: str,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str | int | float | bool] | None = None,
    *,
    batch: int | None = None,
) -> DataFrame:
    """Return the committed state of an operator, from any process that can read the checkpoint.

    Parameters
    ----------
    checkpoint
        The folder or URI that the query was started with.
    name
        The operator's name.
    spark
        The session to read with; the active one if not given.
    storage_options
        Settings of the object store that the checkpoint is in, as in :class:`weir.Options`.
    batch
        The state as this batch left it; the last one if not given. As many commits are kept as ``retain=`` of ``start``
        says, and some more until the next clean-up. Read it soon: a running query deletes old files.
    """
    session = spark or active_session()
    if session is None:
        raise EngineError(
            "read_state needs a Spark session; create one first or pass spark=. Without Spark, the command weir state "
            "shows the same"
        )
    storage = Storage(checkpoint, storage_options)
    return state_frame(session, storage, CheckpointLayout(storage).commit_of(batch), name)


def state_frame(
    session: SparkSession, storage: Storage, commit: Commit, name: str, topology: Topology | None = None
) -> DataFrame:
    """Return the state of an operator at a commit, one partition per server."""
    described = described_operator(commit, name)
    operator = running_operator(topology, described, name)
    segments = commit.manifest[name]
    stored, schema = described.entries, readable_schema(described, operator)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for server in batch.column("id").to_pylist():
                table = StateView(storage, segments[server], stored).everything()
                rows = readable_state(described, table, operator).select(schema.names)
                yield from rows.cast(schema).to_batches()

    n = len(segments)
    return session.range(0, n, 1, n).mapInArrow(read, to_ddl(schema))


def output_frame(
    session: SparkSession, storage: Storage, files: list[FileRef], schema: pa.Schema, order: str = ""
) -> DataFrame:
    """Return what a batch has for a sink. Read it before the sink returns: the files are deleted some batches later.

    What is little is read here: a job with Python tasks to read it takes longer than all the rest of a small batch.
    ``order`` is a column to be added that numbers the rows.
    """
    first, written = list(accumulate((ref.rows for ref in files), initial=0)), schema

    def rows(number: int) -> pa.Table:
        table = read_table(storage, files[number], written)
        return (
            table.append_column(order, pa.array(range(first[number], first[number + 1]))) if order else table
        )

    schema = schema.append(pa.field(order, pa.int64())) if order else schema
    if not files:
        return session.range(0).select(*[F.lit(None).cast(to_ddl_type(f.type)).alias(f.name) for f in schema])

    if sum(ref.bytes for ref in files) <= LITTLE:
        return _local_frame(session, pa.concat_tables(map(rows, range(len(files)))))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from rows(number).to_batches(1 << 16)

    n = len(files)
    frame = session.range(0, n, 1, min(n, 32)).mapInArrow(read, to_ddl(schema))
    return frame.select(*[F.col(f"`{c}`") for c in schema.names])


def _local_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return rows as a DataFrame that lives in the driver; the active session stays what it was."""
    active = SparkSession._activeSession
    try:
        return session.createDataFrame(table, _struct(table.schema))
    finally:
        SparkSession._activeSession = active


@lru_cache(maxsize=64)
def _struct(schema: pa.Schema) -> StructType:
    """Return a schema as Spark has it; asking Spark takes a tenth of what handing over a small batch does."""
    return StructType.fromDDL(to_ddl(schema))
