"""Servers that stay where they are: a cached row per server gives Spark a reason to come back.

Each server has a *slot*, an integer that Spark's hash partitioning sends to the server's partition. A tiny
cached DataFrame, partitioned by slot, is united with the rows of every exchange. Both sides being partitioned
alike, Spark aligns the union partition by partition and prefers the hosts that hold the cached blocks. When a
host dies the block is recomputed elsewhere, and the server stays there from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.engine.task.batch_context import host_name


class ServerAffinity:
    """Where ``n`` servers run again, in one Spark session."""

    def __init__(self, session: SparkSession, n: int) -> None:
        self.slots = find_slots(session, n)
        # not createDataFrame: it would make this session the active one for the whole process
        # Spark brings a partition to where its input was written; one row per task, on whoever is free, makes that
        # a different place for every server. From a single task all servers would gather on its host.
        self._settle(self._numbered(session.range(0, n, 1, n), F.col("id"), list(range(n))))

    def _settle(self, rows: DataFrame) -> None:
        self.n = len(self.slots)
        context = rows.sparkSession.sparkContext
        before = set(context._jsc.getPersistentRDDs())
        self.frame = rows.repartition(self.n, "slot").persist(StorageLevel.MEMORY_AND_DISK)
        self.frame.count()
        added = set(context._jsc.getPersistentRDDs()) - before
        self.rdd = max(added, default=-1)  # the number of the cached blocks in Spark's books
        self._anchor: DataFrame | None = None

    def _numbered(self, rows: DataFrame, index: Column, numbers: list[int]) -> DataFrame:
        """Rows with the server that ``numbers`` has at their index, and that server's slot."""
        slots = F.array(*[F.lit(self.slots[i]) for i in numbers])
        servers = F.array(*[F.lit(i) for i in numbers])
        at = index.cast("int") + 1
        return rows.select(F.element_at(slots, at).alias("slot"), F.element_at(servers, at).alias("server"))

    def rearranged(self, session: SparkSession, origin: list[int]) -> ServerAffinity:
        """Return the same for other servers; ``origin`` has for each its number here, −1 for a new one.

        Servers that stay bring their row along from where they live, and since it makes up all that the shuffle
        has for their partition, Spark prefers to put that there again.
        """
        affinity = ServerAffinity.__new__(ServerAffinity)
        affinity.slots = find_slots(session, len(origin))
        kept = {old: new for new, old in enumerate(origin) if old >= 0}
        stay = self.frame.where(F.col("server").isin(list(kept)))
        # −1 would be an index from the end; servers that go are filtered out, any number will do for them
        rows = affinity._numbered(stay, F.col("server"), [kept.get(i, 0) for i in range(self.n)])
        fresh = [new for new, old in enumerate(origin) if old < 0]
        if fresh:
            newcomers = session.range(0, len(fresh), 1, len(fresh))
            rows = rows.union(affinity._numbered(newcomers, F.col("id"), fresh))
        affinity._settle(rows)
        return affinity

    def exchange(self, rows: DataFrame) -> DataFrame:
        """Send each row to the server of its slot, where that server lives; the columns are always the same."""
        if self._anchor is None:
            others = {f.name: F.lit(None).cast(f.dataType).alias(f.name) for f in rows.schema.fields}
            columns = list({**others, "slot": F.col("slot")}.values())
            # an empty branch, but one that Spark cannot see to be empty: it brings its place, not its rows
            self._anchor = self.frame.where(F.col("server") < 0).select(*columns)
        # A partition goes where most of its inputs are. The rows have one vote: for the host of a task that wrote much
        # of them, if there is one. With two votes the cached row always wins.
        return self._anchor.union(self._anchor).union(rows.repartition(self.n, F.col("slot")))

    def each(self) -> DataFrame:
        """One row per server, in the server's own partition."""
        return self.frame.select("slot", "server")

    def locate(self) -> dict[int, tuple[str, str]]:
        """Return host and executor of each server, as a task of its own sees them."""

        def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            host, executor = host_name(), f"{host_name()}:{os.getppid()}"
            for batch in batches:
                said = [batch.column("server"), *(pa.repeat(name, len(batch)) for name in (host, executor))]
                yield pa.RecordBatch.from_arrays(said, names=["server", "host", "executor"])

        rows = self.each().mapInArrow(where, "server int, host string, executor string").collect()
        return {row.server: (row.host, row.executor) for row in rows}


def find_slots(session: SparkSession, n: int) -> list[int]:
    """For each server an integer that hash partitioning sends to its partition."""
    slots: dict[int, int] = {}
    start, width = 0, max(64, 16 * n)
    while len(slots) < n:
        numbers = session.range(start, start + width).select(F.col("id").cast("int").alias("slot"))
        for row in numbers.select("slot", F.pmod(F.hash("slot"), F.lit(n)).alias("p")).collect():
            slots.setdefault(row["p"], row["slot"])
        start += width
    return [slots[i] for i in range(n)]
