"""Stages of a batch: a task over a DataFrame, and the columns that it sends to the next stage or to the driver.

Types are given as such and columns chosen by the task: to parse a schema, or to plan a ``select``, takes Spark some ten
milliseconds each, with every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from weir.engine.exchange.wire import WIRE

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_TYPES = {
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
}
_SENT = T.StructType([T.StructField(field.name, _TYPES[field.type]) for field in WIRE])
_ANSWERED = T.StructType([_SENT[name] for name in ("kind", "payload")])


def sending(frame: DataFrame, task: Task) -> DataFrame:
    """Return what a task sends on to servers."""
    return frame.mapInArrow(task, _SENT)


def answering(frame: DataFrame, task: Task) -> DataFrame:
    """Return what a task of the last stage tells the driver: kinds and payloads."""

    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in task(batches):
            yield batch.select(_ANSWERED.names)

    return frame.mapInArrow(answers, _ANSWERED)
