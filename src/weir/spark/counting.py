"""Count for ``weir advise`` on Spark, where the data is large or is a table.

Rows become key hashes inside the JVM and are grouped there; only counts reach the driver, bounded per slice of time.
The result is the one that :func:`weir.advise.counts.count_files` returns for the same rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.advise.counts import (
    TABLE,
    Counted,
    Question,
    average_bytes,
    bin_width,
    cut,
    nothing_to_count,
    time_text,
)
from weir.columns import canonical
from weir.errors import WeirError, did_you_mean
from weir.locality.counts import PairCounts
from weir.locality.stats import BatchStats
from weir.spark.session import active_session, arrow_schema, embedded, to_ddl

_SLICE, _TIME, _COUNT = "slice", "when", "count"
_MEASURED = 2_000  # rows whose average size stands for all


def session(master: str | None) -> tuple[SparkSession, bool]:
    """Return the active session, or a new one, and whether it is new and the caller has to stop it."""
    active = active_session()
    if active is not None:
        return active, False
    try:
        if master is None or master.startswith("local"):
            return embedded(master or "local[*]", "weir advise"), True
        return SparkSession.builder.master(master).appName("weir advise").getOrCreate(), True
    except Exception as error:
        raise WeirError(f"no Spark session at {master or 'local[*]'} ({error}): check the master") from error


def open_frame(spark: SparkSession, data: str, schema: pa.Schema | None = None) -> DataFrame:
    """Return the data as a DataFrame; ``schema`` is that of a CSV file, so that both readers see the same types."""
    if data.startswith(TABLE):
        name = data.removeprefix(TABLE)
        if not spark.catalog.tableExists(name):
            tables = [table.name for table in spark.catalog.listTables()]
            raise WeirError(f"Spark knows no table {name!r}: {did_you_mean(name, tables)}")
        return spark.table(name)
    if data.lower().endswith((".csv", ".csv.gz")):
        reader = spark.read.option("header", True).option("nullValue", "").option("emptyValue", "")
        return (reader if schema is None else reader.schema(_ddl(schema))).csv(data)
    try:
        return spark.read.parquet(data)
    except Exception as error:
        raise WeirError(f"Spark can't read {data} as Parquet ({error}): check the path") from error


def count_frame(question: Question, frame: DataFrame) -> Counted:
    """Count keys and pairs on Spark."""
    question.check_names(frame.columns)
    schema = arrow_schema(frame.select(*[F.col(f"`{c}`") for c in question.columns]))
    question.check(schema)
    row_bytes = average_bytes(frame.limit(_MEASURED).toArrow())
    if question.sample:
        share = min(1.0, question.sample / max(1, frame.count()))
        frame = frame.sample(share, question.seed) if share < 1 else frame
    complete, nulls = _without_nulls(frame, question)
    sliced, begins = _slice(complete, question, schema)
    sliced = sliced.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        slices = _count_slices(sliced, question)
    finally:
        sliced.unpersist()
    if not slices:
        raise nothing_to_count(question, nulls)
    return Counted(
        question.operators,
        slices,
        begins,
        [_readable(complete, list(key), schema, question) for key in question.operators.values()],
        int(sum(s.rows[0] for s in slices)),
        nulls,
        row_bytes,
        question.time is not None,
        "spark",
    )


def _ddl(schema: pa.Schema) -> str:
    """Return a CSV file's columns as a Spark schema; types that Spark does not have, which are not counted, as text."""
    without = (pa.types.is_time, pa.types.is_null, pa.types.is_duration)
    fields = [
        pa.field(f.name, pa.string() if any(is_(f.type) for is_ in without) else f.type) for f in schema
    ]
    return to_ddl(canonical(pa.schema(fields)))


def _without_nulls(frame: DataFrame, question: Question) -> tuple[DataFrame, dict[str, int]]:
    """Return the rows without nulls, and the number of rows with one, per operator and for the time."""
    missing = {}
    for name, columns in question.required.items():
        has_null = F.lit(False)
        for column in columns:
            has_null = has_null | F.col(f"`{column}`").isNull()
        missing[name] = has_null
    sums = [F.sum(has_null.cast("long")).alias(f"n{i}") for i, has_null in enumerate(missing.values())]
    totals = frame.agg(*sums).first()
    nulls = {name: int((totals[i] if totals else 0) or 0) for i, name in enumerate(missing)}
    for has_null in missing.values():
        frame = frame.where(~has_null)
    return frame, nulls


def _slice(complete: DataFrame, question: Question, schema: pa.Schema) -> tuple[DataFrame, list[Any]]:
    """Return the slice of each row with its key hashes, and when each slice begins."""
    hashes = {
        f"h{o}": F.xxhash64(*[F.col(f"`{c}`") for c in key])
        for o, key in enumerate(question.operators.values())
    }
    if question.time is not None:
        return _slice_by_time(complete, question, hashes, schema)
    # a table has no order of its own: slices are drawn at random, and say nothing about drift
    drawn = F.pmod(F.xxhash64(F.monotonically_increasing_id()), F.lit(question.slices)).cast("int")
    return complete.select(drawn.alias(_SLICE), *[c.alias(name) for name, c in hashes.items()]), []


def _slice_by_time(
    complete: DataFrame, question: Question, hashes: dict[str, Column], schema: pa.Schema
) -> tuple[DataFrame, list[Any]]:
    """Cut time by a histogram, exactly as the reader for files does."""
    kind = schema.field(question.time).type
    clock = F.col(f"`{question.time}`")
    if pa.types.is_timestamp(kind):
        clock = F.unix_micros(clock.cast("timestamp"))
    elif pa.types.is_date(kind):
        clock = F.unix_date(clock)
    timed = complete.select(clock.cast("long").alias(_TIME), *[c.alias(name) for name, c in hashes.items()])
    span = timed.agg(F.min(_TIME), F.max(_TIME)).first()
    if span is None or span[0] is None:
        raise nothing_to_count(question, {})
    first = int(span[0])
    width = bin_width(first, int(span[1]))
    bin_ = F.expr(f"({_TIME} - ({first}L)) div {width}L")
    histogram = timed.groupBy(bin_.alias("bin")).agg(F.count("*").alias("n"), F.min(_TIME).alias("t"))
    bins, rows, start = (c.to_numpy() for c in histogram.orderBy("bin").toArrow().columns)
    edges = cut(bins, rows, question.slices)
    # one look-up per row, in a constant array; as one string it is a small plan
    slice_of_bin = np.searchsorted(edges, np.arange(int(bins[-1]) + 1), side="right")
    slices = F.split(F.lit(",".join(map(str, slice_of_bin.tolist()))), ",").cast("array<int>")
    number = F.element_at(slices, (bin_ + 1).cast("int"))
    _, first_bins = np.unique(np.searchsorted(edges, bins, side="right"), return_index=True)
    begins = [time_text(int(start[i]), kind) for i in first_bins]
    return timed.select(number.alias(_SLICE), *hashes), begins


def _count_slices(sliced: DataFrame, question: Question) -> list[BatchStats]:
    """Return the counts of each slice."""
    operators = range(len(question.operators))
    rows = {r[_SLICE]: float(r[_COUNT]) for r in sliced.groupBy(_SLICE).count().collect()}
    keys = {o: _top(sliced, [f"h{o}"], question) for o in operators}
    pairs = {(o, o + 1): _top(sliced, [f"h{o}", f"h{o + 1}"], question) for o in operators[:-1]}
    return [
        BatchStats(
            {o: k.get(s, PairCounts.empty()) for o, k in keys.items()},
            {e: p.get(s, PairCounts.empty()) for e, p in pairs.items()},
            dict.fromkeys(operators, rows[s]),
        )
        for s in sorted(rows)
    ]


def _top(sliced: DataFrame, by: list[str], question: Question) -> dict[int, PairCounts]:
    """Return, per slice, the most frequent keys or pairs; among equals, a draw that the seed fixes."""
    counts = sliced.groupBy(_SLICE, *by).count()
    heaviest = Window.partitionBy(_SLICE).orderBy(F.desc(_COUNT), F.xxhash64(F.lit(question.seed), *by), *by)
    kept = counts.withColumn("rank", F.row_number().over(heaviest)).where(
        F.col("rank") <= question.slice_capacity
    )
    table = kept.select(_SLICE, *by, F.col(_COUNT).cast("double")).toArrow()
    number = table.column(_SLICE).to_numpy()
    left = _unsigned(table.column(by[0]))
    right = _unsigned(table.column(by[1])) if len(by) > 1 else np.zeros(len(left), np.uint64)
    order = np.lexsort((right, left, number))
    number, left, right = number[order], left[order], right[order]
    count = table.column(_COUNT).to_numpy()[order]
    slices, start = np.unique(number, return_index=True)
    bounds = pairwise([*start.tolist(), len(number)])
    return {
        int(s): PairCounts(left[a:b], right[a:b], count[a:b])
        for s, (a, b) in zip(slices, bounds, strict=True)
    }


def _unsigned(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(column.to_numpy()).view(np.uint64)


def _readable(complete: DataFrame, key: list[str], schema: pa.Schema, question: Question) -> pa.Table:
    """Return the most frequent keys of an operator."""
    columns = [F.col(f"`{c}`") for c in key]
    counts = complete.groupBy(*columns).count()
    tie = F.xxhash64(F.lit(question.seed), *columns)
    top = counts.orderBy(F.desc(_COUNT), tie).limit(question.capacity).select(*columns).toArrow()
    return top.cast(pa.schema([schema.field(c) for c in key])).combine_chunks()
