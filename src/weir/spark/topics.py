"""Topics on Spark: a source that only says how far they reach, so that Spark's trigger knows when there is work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from weir.errors import SourceUnavailable
from weir.messages.feed import RANGES
from weir.messages.topics import Topics
from weir.spark.session import to_ddl, to_ddl_type

if TYPE_CHECKING:
    from weir.graph.declare import Assembly

STARTS = 5  # tries to start a stream
POLL = 0.1  # seconds between two questions to the brokers


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
