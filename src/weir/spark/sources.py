"""Rows of Spark's sources, as one DataFrame; files, which Spark lists and servers read; and topics.

Of topics Spark only learns how far they reach, so that its trigger knows when there is work.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from weir.engine.task.batch_context import SOURCE_NUMBER, column_name
from weir.errors import SourceUnavailable, TopologyError
from weir.graph.model import Topology
from weir.messages.feed import RANGES
from weir.messages.topics import Topics
from weir.operators.read import BYTES, MODIFIED, PARTITION, PATH
from weir.spark.failures import translating
from weir.spark.session import own_session, refuse_connect, to_ddl, to_ddl_type

if TYPE_CHECKING:
    from weir.graph.declare import Assembly

STARTS = 5  # tries to start a stream
POLL = 0.1  # seconds between two questions to the brokers
# a streaming reader wants to be told; content is never asked for, so Spark never opens a file
_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


def listing(reader: Any, path: str, by: str) -> DataFrame:
    """Return one row per file: its path, its partition, and what it looked like when the batch was planned."""
    refuse_connect(reader, "the reader")
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


class SparkRows:
    """Rows of sources as DataFrames: all sources as one, in which each keeps its columns, and only those needed.

    Sources that are ``announcing`` only say when there is something to read.
    """

    def __init__(self, frames: dict[str, DataFrame], announcing: Collection[str] = ()) -> None:
        self._frames, self._announcing = frames, announcing
        self.session: SparkSession | None = None  # of the batches, once there was one
        self.nothing: DataFrame | None = None  # the last rows that were handed out without any

    @property
    def users(self) -> SparkSession:
        """The session that the application was started in."""
        return next(iter(self._frames.values())).sparkSession

    def united(self, topology: Topology) -> DataFrame:
        """Return all sources as one DataFrame."""
        united: DataFrame | None = None
        for number, (name, frame) in enumerate(self._frames.items()):
            wanted = topology.sources[name].names
            part = frame.select(*[F.col(f"`{c}`").alias(column_name(number, c)) for c in wanted])
            if len(self._frames) > 1:
                part = part.withColumn(SOURCE_NUMBER, F.lit(number))
            united = part if united is None else united.unionByName(part, allowMissingColumns=True)
        assert united is not None
        return united

    def no_rows(self, topology: Topology) -> DataFrame:
        """Return an empty DataFrame like those of the source, in the session of the batches if there was one."""
        template = self.united(topology)
        if self.session is None:
            self.session = own_session(template.sparkSession)
        nothing = [F.lit(None).cast(f.dataType).alias(f.name) for f in template.schema.fields]
        # Spark must not see that it is empty: it would leave the exchange out, and with it which server a task is
        return self.session.range(0, 1, 1, 1).where(F.rand(0) < -1).select(*nothing)

    def listings(self, rows: DataFrame, topology: Topology, sources: Collection[str]) -> dict[str, pa.Table]:
        """Return what Spark has listed for some sources, of the rows of all."""
        out = {}
        for number, (name, schema) in enumerate(topology.sources.items()):
            if name in sources and name not in self._announcing:
                columns = [F.col(f"`{column_name(number, c)}`").alias(c) for c in schema.names]
                out[name] = fetched(_of_source(rows, topology, number).select(*columns)).cast(schema)
        return out

    def without(
        self, rows: DataFrame, topology: Topology, sources: Collection[str] | None = None
    ) -> DataFrame:
        names = list(topology.sources)
        if sources is None or set(names) <= set(sources):
            self.nothing = rows.limit(0)
            return self.nothing
        gone = [number for number, name in enumerate(names) if name in sources]
        return rows.where(~F.col(SOURCE_NUMBER).isin(gone))


def _of_source(rows: DataFrame, topology: Topology, number: int) -> DataFrame:
    return rows.where(F.col(SOURCE_NUMBER) == number) if len(topology.sources) > 1 else rows


def fetched(frame: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame, in this process."""
    with translating():
        return frame.toArrow()


class OffsetsOnlyReader(DataSourceStreamReader):
    """A stream without rows, whose offset is that of the topics. The driver plans what a batch reads."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self._known: dict[str, int] = {}
        self._asked = 0.0

    def initialOffset(self) -> dict[str, int]:
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        # Spark asks a hundred times a second where nothing comes; whoever waits for its answer wants a fresh one
        time.sleep(max(0.0, self._asked + POLL - time.monotonic()))
        try:
            reach = self.topics.offsets(self.topics.partitions())
            self._known = {partition: high for partition, (_, high) in reach.items()}
        except SourceUnavailable:
            pass  # nothing new as far as anybody knows; the brokers are asked again
        self._asked = time.monotonic()
        return self._known or start or {}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())

    def stop(self) -> None:
        """End this process where Spark has closed the connection: PySpark would print how writing to it fails."""
        if isinstance(sys.exc_info()[1], ConnectionError | EOFError):
            os._exit(0)


def frames_of(parts: Assembly, session: SparkSession, *, streaming: bool) -> dict[str, DataFrame]:
    """Return the DataFrame of each source, in the application's order; that of topics only shows that there is news."""
    frames: dict[str, DataFrame] = {}
    for name in parts.schemas:
        feed = parts.feeds.get(name)
        if feed is None:
            frames[name] = parts.frames[name]
        elif streaming:
            frames[name] = _bell(session, feed.topics)
        else:
            # columns of constants would be routed as one constant, which Spark takes for one partition
            columns = (f"cast(id as {to_ddl_type(field.type)}) as `{field.name}`" for field in RANGES)
            frames[name] = session.range(0).selectExpr(*columns)
    return frames


def _bell(session: SparkSession, topics: Topics) -> DataFrame:
    called = f"weir_topics_{uuid.uuid4().hex}"

    # made here: its settings travel with it, and appear in no plan that Spark shows
    class OffsetsOnlySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> str:
            return to_ddl(RANGES)

        def streamReader(self, schema: Any) -> OffsetsOnlyReader:
            return OffsetsOnlyReader(topics)

    session.dataSource.register(OffsetsOnlySource)
    return session.readStream.format(called).load()


def started_stream(writer: Any) -> Any:
    """Start a stream over topics, again if need be, and return Spark's query.

    Spark gives the Python process of such a source ten seconds to appear, which a busy host may not keep. A stream
    that fails with that has not begun.
    """
    for _ in range(STARTS):
        stream = writer.start()
        while stream.isActive and stream.status["message"].startswith("Initializing"):
            time.sleep(0.02)
        if stream.isActive or "failed to connect back" not in str(stream.exception()):
            break
    return stream
