"""Files as a source: Spark lists them, and remembers which it has listed; servers read them."""

from __future__ import annotations

import os
import re
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from weir.columns import canonical
from weir.errors import EngineError, SourceError, TopologyError
from weir.operators.file_reader import file_schema, open_path
from weir.operators.read import BYTES, MODIFIED, PARTITION, PATH

# a streaming reader wants to be told; content is never asked for, so Spark never opens a file
_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


def listing(reader: Any, path: str, by: str) -> DataFrame:
    """One row per file: its path, its partition, and what it looked like when the batch was planned."""
    if type(reader).__module__.startswith("pyspark.sql.connect"):
        raise EngineError(
            "the reader comes from a Spark Connect session, which Weir cannot run in; create the session with "
            "SparkSession.builder.master(…) (without .remote(…))"
        )
    if not hasattr(reader, "format") or not hasattr(reader, "load"):
        raise TopologyError(
            f"files are listed by a Spark reader: pass spark.readStream or spark.read, not {type(reader).__name__}"
        )
    partition = partition_of(by)
    frame = reader.format("binaryFile").schema(_SCHEMA).option("recursiveFileLookup", "true").load(path)
    # the file's size and time as they were planned, not as a task that runs again would find them
    planned = [
        F.col("_metadata.file_size").alias(BYTES),
        F.col("_metadata.file_modification_time").alias(MODIFIED),
    ]
    listed: DataFrame = frame.select(F.col("path").alias(PATH), partition.alias(PARTITION), *planned)
    return listed


def partition_of(by: str) -> Column:
    """The partition that a file belongs to, found in its path by the JVM."""
    parts = F.split(F.col("path"), "/")
    if by == "folder":
        return F.element_at(parts, -2)
    if by == "file":
        return F.element_at(parts, -1)
    try:
        groups = re.compile(by).groups
    except re.error as error:
        raise TopologyError(f"by={by!r} is no pattern: {error}") from None
    if groups != 1:
        raise TopologyError(
            f'by={by!r} is "folder", "file", or a pattern with one (group) that finds the partition in a path, '
            r'e.g. by=r"-(\d+)\.parquet"'
        )
    return F.regexp_extract(F.col("path"), by, 1)


def base_of(path: str) -> str:
    """A folder as it appears in the paths of its files; "" for a pattern of folders.

    >>> base_of("/data/posts/"), base_of("file:///data/posts"), base_of("/data/*/posts")
    ('file:/data/posts', 'file:/data/posts', '')
    """
    if re.search(r"[*?\[{]", path):
        return ""
    if path.startswith("file:"):
        path = open_path(path)[1]
    if "://" in path:
        return path.rstrip("/")
    return f"file:{os.path.abspath(path)}"


def columns_of(path: str, format: str) -> pa.Schema:
    """The columns of some file below a folder."""
    remedy = 'pass schema=, e.g. schema="place string, n long"'
    if not base_of(path):
        raise TopologyError(
            f"{path}: the columns of files found by a pattern of folders are not known; {remedy}"
        )
    system, name = open_path(path if "://" in path or path.startswith("file:") else os.path.abspath(path))
    info = system.get_file_info(name)
    if info.type == pafs.FileType.File:
        return canonical(file_schema(path, format))
    found = system.get_file_info(pafs.FileSelector(name, recursive=True, allow_not_found=True))
    for one in sorted(found, key=lambda i: i.path):
        hidden = any(p.startswith(("_", ".")) for p in one.path[len(name) :].strip("/").split("/"))
        if one.type == pafs.FileType.File and not hidden:
            prefix = "" if isinstance(system, pafs.LocalFileSystem) else path.split("://")[0] + "://"
            return canonical(file_schema(prefix + one.path, format))
    raise SourceError(f"{path}: there is no file yet to learn the columns from; {remedy}")
