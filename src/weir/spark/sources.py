"""Files as a source, which Spark lists and servers read; and a batch's keys, counted before it is planned."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from weir.engine.steering.lookahead import ENTRIES, Ahead
from weir.engine.task.batch_context import SOURCE_NUMBER, column_name
from weir.errors import EngineError, TopologyError
from weir.graph.model import Topology
from weir.locality.stats import BatchStats
from weir.operators.read import BYTES, MODIFIED, PARTITION, PATH
from weir.spark.failures import translating

# a streaming reader wants to be told; content is never asked for, so Spark never opens a file
_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


def listing(reader: Any, path: str, by: str) -> DataFrame:
    """Return one row per file: its path, its partition, and what it looked like when the batch was planned."""
    if type(reader).__module__.startswith("pyspark.sql.connect"):
        raise EngineError(
            "the reader comes from a Spark Connect session, which Weir cannot run in; create the session with "
            "SparkSession.builder.master(…) (without .remote(…))"
        )
    if not hasattr(reader, "format") or not hasattr(reader, "load"):
        raise TopologyError(
            f"files are listed by a Spark reader: pass spark.readStream or spark.read, not {type(reader).__name__}"
        )
    frame = reader.format("binaryFile").schema(_SCHEMA).option("recursiveFileLookup", "true").load(path)
    # the file's size and time as they were planned, not as a task that runs again would find them
    planned = [
        F.col("_metadata.file_size").alias(BYTES),
        F.col("_metadata.file_modification_time").alias(MODIFIED),
    ]
    listed: DataFrame = frame.select(F.col("path").alias(PATH), _partition(by).alias(PARTITION), *planned)
    return listed


def _partition(by: str) -> Column:
    """Return the partition that a file belongs to, found in its path by the JVM."""
    if by in ("folder", "file"):
        return F.element_at(F.split(F.col("path"), "/"), -2 if by == "folder" else -1)
    return F.regexp_extract(F.col("path"), by, 1)


def collected(rows: DataFrame, topology: Topology, sources: Collection[str]) -> dict[str, pa.Table]:
    """Return what Spark has listed for some sources, of the rows of all."""
    out = {}
    for number, (name, schema) in enumerate(topology.sources.items()):
        if name in sources:
            part = rows.where(F.col(SOURCE_NUMBER) == number) if len(topology.sources) > 1 else rows
            columns = [F.col(f"`{column_name(number, c)}`").alias(c) for c in schema.names]
            out[name] = fetched(part.select(*columns)).cast(schema)
    return out


def fetched(frame: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame, in this process."""
    with translating():
        return frame.toArrow()


def without(rows: DataFrame, topology: Topology, sources: Collection[str] | None) -> DataFrame | None:
    """Return the rows of all sources but some, of which None stands for all; None if no source is left."""
    names = list(topology.sources)
    if sources is None or set(names) <= set(sources):
        return None
    gone = [number for number, name in enumerate(names) if name in sources]
    return rows.where(~F.col(SOURCE_NUMBER).isin(gone))


def count_ahead(rows: DataFrame, topology: Topology, ahead: Ahead) -> BatchStats:
    """Return how often keys, and pairs of keys, occur in the rows of a batch; only key columns are read.

    Rows become key hashes in the JVM, are grouped there, and the most frequent combinations reach the driver.
    """
    parts = []
    for number, source in enumerate(topology.sources):
        keys = ahead.keys.get(source, {})
        if not keys:
            continue
        part = rows.where(F.col(SOURCE_NUMBER) == number) if len(topology.sources) > 1 else rows
        needed = [F.col(f"`{column_name(number, c)}`") for c in ahead.columns(source)]
        part = part.where(reduce(lambda a, b: a & b, [c.isNotNull() for c in needed]))
        hashed = [
            F.xxhash64(*[F.col(f"`{column_name(number, c)}`") for c in key]).alias(f"h{o}")
            for o, key in keys.items()
        ]
        counted = part.select(*hashed).groupBy(*[f"h{o}" for o in keys]).count()
        table = counted.orderBy(F.desc("count")).limit(ENTRIES // len(keys)).toArrow()
        count = table["count"].to_numpy().astype(np.float64)
        parts.append(ahead.stats({o: table[f"h{o}"].to_numpy().view(np.uint64) for o in keys}, count))
    return BatchStats.merge(parts)
