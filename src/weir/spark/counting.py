"""Counts for ``weir advise``, made by Spark where the data is large, or is a table.

Rows become key hashes inside the JVM and are grouped there; what comes home are counts, bounded per slice of
time. The result is the one that :func:`weir.advise.files.count_files` gives on the same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.advise.counts import Counted, Question, average_bytes, bin_width, cut, empty, time_text
from weir.columns import canonical
from weir.errors import WeirError, did_you_mean
from weir.locality.counts import PairCounts
from weir.locality.stats import BatchStats
from weir.spark.session import arrow_schema, embedded
from weir.spark.types import to_ddl

TABLE = "table:"
_SLICE, _TIME, _COUNT = "slice", "when", "count"
_PEEK = 2_000


def session(master: str | None) -> tuple[SparkSession, bool]:
    """The session at hand, or a new one, and whether it is new: then the caller stops it."""
    present = SparkSession.getActiveSession()
    if present is not None:
        return present, False
    try:
        if master is None or master.startswith("local"):
            return embedded(master or "local[*]", "weir advise"), True
        return SparkSession.builder.master(master).appName("weir advise").getOrCreate(), True
    except Exception as error:
        raise WeirError(f"no Spark session at {master or 'local[*]'} ({error}): check --master") from error


def open_frame(spark: SparkSession, data: str, schema: pa.Schema | None = None) -> DataFrame:
    """The data as a DataFrame; ``schema`` is that of a CSV file, so that both readers see the same types."""
    if data.startswith(TABLE):
        name = data.removeprefix(TABLE)
        if not spark.catalog.tableExists(name):
            known = [t.name for t in spark.catalog.listTables()]
            raise WeirError(f"Spark knows no table {name!r}: {did_you_mean(name, known)}")
        return spark.table(name)
    if data.lower().endswith((".csv", ".csv.gz")):
        reader = spark.read.option("header", True).option("nullValue", "").option("emptyValue", "")
        return (reader if schema is None else reader.schema(_ddl(schema))).csv(data)
    try:
        return spark.read.parquet(data)
    except Exception as error:
        raise WeirError(f"Spark can't read {data} as Parquet ({error}): check the path") from error


def count_frame(question: Question, frame: DataFrame) -> Counted:
    """Counts on Spark what :func:`~weir.advise.files.count_files` counts here."""
    question.check_names(frame.columns)
    schema = arrow_schema(frame.select(*[F.col(f"`{c}`") for c in question.columns]))
    question.check(schema)
    row_bytes = average_bytes(frame.limit(_PEEK).toArrow())
    if question.sample:
        share = min(1.0, question.sample / max(1, frame.count()))
        frame = frame.sample(share, question.seed) if share < 1 else frame
    whole, nulls = _without_nulls(frame, question)
    columns = {
        f"h{o}": F.xxhash64(*[F.col(f"`{c}`") for c in key])
        for o, key in enumerate(question.operators.values())
    }
    begins: list[Any] = []
    if question.time is None:
        # a table has no order of its own: slices are drawn by lot, and say nothing about drift
        lot = F.pmod(F.xxhash64(F.monotonically_increasing_id()), F.lit(question.slices)).cast("int")
        sliced = whole.select(lot.alias(_SLICE), *[c.alias(n) for n, c in columns.items()])
    else:
        sliced, begins = _by_time(whole, question, columns, schema)
    sliced = sliced.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        slices = _slices(sliced, question)
    finally:
        sliced.unpersist()
    if not slices:
        raise empty(question, nulls)
    return Counted(
        question.operators,
        slices,
        begins,
        [_readable(whole, list(key), schema, question) for key in question.operators.values()],
        int(sum(s.rows[0] for s in slices)),
        nulls,
        row_bytes,
        question.time is not None,
        "spark",
    )


def _ddl(schema: pa.Schema) -> str:
    """A CSV file's columns in Spark's words; what Spark has no word for is read as text, nobody counts it."""
    odd = (pa.types.is_time, pa.types.is_null, pa.types.is_duration)
    fields = [pa.field(f.name, pa.string() if any(is_(f.type) for is_ in odd) else f.type) for f in schema]
    return to_ddl(canonical(pa.schema(fields)))


def _without_nulls(frame: DataFrame, question: Question) -> tuple[DataFrame, dict[str, int]]:
    missing = {}
    for name, key in {**question.operators, **({"time": [question.time]} if question.time else {})}.items():
        some = F.lit(False)
        for column in key:
            some = some | F.col(f"`{column}`").isNull()
        missing[name] = some
    totals = frame.agg(
        *[F.sum(m.cast("long")).alias(f"n{i}") for i, m in enumerate(missing.values())]
    ).first()
    nulls = {name: int((totals[i] if totals else 0) or 0) for i, name in enumerate(missing)}
    for some in missing.values():
        frame = frame.where(~some)
    return frame, nulls


def _by_time(
    whole: DataFrame, question: Question, columns: dict[str, Column], schema: pa.Schema
) -> tuple[DataFrame, list[Any]]:
    """Cuts time by a histogram, exactly as the other reader does."""
    kind = schema.field(question.time).type
    clock = F.col(f"`{question.time}`")
    if pa.types.is_timestamp(kind):
        clock = F.unix_micros(clock.cast("timestamp"))
    elif pa.types.is_date(kind):
        clock = F.unix_date(clock)
    timed = whole.select(clock.cast("long").alias(_TIME), *[c.alias(n) for n, c in columns.items()])
    span = timed.agg(F.min(_TIME), F.max(_TIME)).first()
    if span is None or span[0] is None:
        raise empty(question, {})
    first = int(span[0])
    width = bin_width(first, int(span[1]))
    place = F.expr(f"({_TIME} - ({first}L)) div {width}L")
    histogram = timed.groupBy(place.alias("bin")).agg(F.count("*").alias("n"), F.min(_TIME).alias("t"))
    bins, rows, start = (c.to_numpy() for c in histogram.orderBy("bin").toArrow().columns)
    edges = cut(bins, rows, question.slices)
    # one look-up per row, in a constant array that is made from one string
    by_bin = np.searchsorted(edges, np.arange(int(bins[-1]) + 1), side="right")
    slices = F.split(F.lit(",".join(map(str, by_bin.tolist()))), ",").cast("array<int>")
    number = F.element_at(slices, (place + 1).cast("int"))
    found, at = np.unique(np.searchsorted(edges, bins, side="right"), return_index=True)
    begins = [time_text(int(start[i]), kind) for i in at[: len(found)]]
    return timed.select(number.alias(_SLICE), *columns), begins


def _slices(sliced: DataFrame, question: Question) -> list[BatchStats]:
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
    """Per slice: the most frequent keys or pairs; among equals a draw that the seed fixes."""
    counts = sliced.groupBy(_SLICE, *by).count()
    order = Window.partitionBy(_SLICE).orderBy(F.desc(_COUNT), F.xxhash64(F.lit(question.seed), *by), *by)
    kept = counts.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= question.room)
    table = kept.select(_SLICE, *by, F.col(_COUNT).cast("double")).toArrow()
    number = table.column(_SLICE).to_numpy()
    left = _unsigned(table.column(by[0]))
    right = _unsigned(table.column(by[1])) if len(by) > 1 else np.zeros(len(left), np.uint64)
    order_here = np.lexsort((right, left, number))
    number, left, right = number[order_here], left[order_here], right[order_here]
    count = table.column(_COUNT).to_numpy()[order_here]
    found, start = np.unique(number, return_index=True)
    ends = [*start.tolist(), len(number)]
    return {
        int(s): PairCounts(left[a:b], right[a:b], count[a:b])
        for s, a, b in zip(found, ends[:-1], ends[1:], strict=True)
    }


def _unsigned(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(column.to_numpy()).view(np.uint64)


def _readable(whole: DataFrame, key: list[str], schema: pa.Schema, question: Question) -> pa.Table:
    columns = [F.col(f"`{c}`") for c in key]
    counts = whole.groupBy(*columns).count()
    tie = F.xxhash64(F.lit(question.seed), *columns)
    top = counts.orderBy(F.desc(_COUNT), tie).limit(question.capacity).select(*columns).toArrow()
    return top.cast(pa.schema([schema.field(c) for c in key])).combine_chunks()
