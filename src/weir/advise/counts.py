"""A recorded stream as counts per slice of time, in bounded memory.

Two readers return the same :class:`Counted`: :mod:`weir.advise.files` reads with pyarrow what fits on this machine,
:mod:`weir.spark.counting` lets Spark count what does not. Both cut time by the same rule (:func:`cut`) and hash keys
with the same hash, so they agree row for row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.columns import can_be_key, canonical_type
from weir.errors import TopologyError, UnknownColumn, WeirError, did_you_mean
from weir.locality.stats import BatchStats

TABLE = "table:"  # begins the name of a table that Spark knows
SLICES = 100
_BINS = 20_000
_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


@dataclass(frozen=True)
class Question:
    """What is to be counted."""

    data: str  # a Parquet file or folder, a CSV file, or table:NAME for a table that Spark knows
    # key columns by operator, in the order in which rows pass the operators
    operators: Mapping[str, Sequence[str]]
    time: str | None = None  # the column that orders rows; without it they are taken in the order of the file
    sample: int | None = None  # count about so many rows, drawn at random; all by default
    # most pairs per edge, and most keys per operator, that all slices together may keep
    capacity: int = 5_000_000
    slices: int = SLICES  # the number of slices of about equally many rows
    seed: int = 0  # fixes the sample, and which of equally frequent keys and pairs are kept

    @property
    def slice_capacity(self) -> int:
        """Return the most pairs, or keys, that one slice may keep."""
        return max(1, self.capacity // self.slices)

    @property
    def required(self) -> dict[str, Sequence[str]]:
        """Return the columns that a row must have to be counted, by operator, and by ``"time"`` for the time."""
        return {**self.operators, **({"time": [self.time]} if self.time else {})}

    @property
    def columns(self) -> list[str]:
        """Return every column that has to be read."""
        return list(dict.fromkeys(column for columns in self.required.values() for column in columns))

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse columns that the data does not have."""
        for column in self.columns:
            if column not in names:
                raise UnknownColumn(f"{self.data} has no column {column!r}: {did_you_mean(column, names)}")

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the data does not have, or whose type cannot be a key or a time."""
        self.check_names(schema.names)
        for key in self.operators.values():
            for name in key:
                if not can_be_key(key_type(schema.field(name).type)):
                    raise TopologyError(
                        f"column {name!r} has type {schema.field(name).type}, which can't be a key: cast it to a "
                        "string or an integer in the data"
                    )
        if self.time and not _is_time(schema.field(self.time).type):
            raise TopologyError(
                f"time {self.time!r}: a column of type {schema.field(self.time).type} doesn't tell the time; "
                "name a timestamp, a date or an integer column, or leave time out"
            )


@dataclass(frozen=True)
class Counted:
    """A recorded stream as counts: slices of about equally many rows, oldest first."""

    operators: Mapping[str, Sequence[str]]  # key columns by operator, as in the question
    # key and pair counts per slice; operators are numbered in their order, edges join neighbours
    slices: Sequence[BatchStats]
    begins: Sequence[Any]  # the time at which each slice begins; empty if no time column was named
    keys: Sequence[pa.Table]  # per operator, an Arrow table of its most frequent keys, readable
    rows: int  # the number of rows counted
    # per operator (and for time), the number of rows left out because a column of it was null
    nulls: Mapping[str, int]
    row_bytes: float  # the average size of a row with all its columns
    ordered: bool  # whether slices follow each other in time. If not, nothing can be said about drift
    reader: str  # what counted: "pyarrow" or "spark"


def key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a key column has in Spark, where it must hash to the same value.

    >>> key_type(pa.dictionary(pa.int32(), pa.large_string())), key_type(pa.uint16())
    (DataType(string), DataType(int32))
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_date(kind):
        return pa.date32()
    return _UNSIGNED.get(kind, canonical_type(kind))


def cut(bins: NDArray[np.int64], rows: NDArray[np.int64], slices: int) -> NDArray[np.int64]:
    """Cut a histogram of time into slices of about equally many rows.

    Return the bins at which the second slice, the third … begin. Rows of one bin stay together, so two readers
    that have the same histogram agree about every row.

    >>> cut(np.arange(6), np.array([5, 5, 1, 1, 4, 4]), 4).tolist()
    [1, 2, 5]
    """
    before = np.cumsum(rows) - rows
    number = before * slices // max(1, int(rows.sum()))
    return bins[np.searchsorted(number, np.arange(1, slices), side="left").clip(max=len(bins) - 1)]


def bin_width(first: int, last: int) -> int:
    """Return the time that one bin of the histogram spans."""
    return (last - first) // _BINS + 1


def time_text(value: int, kind: pa.DataType) -> Any:
    """Return a time as JSON can hold it: microseconds and days as ISO dates, plain numbers as they are."""
    if pa.types.is_timestamp(kind):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        return moment.isoformat(timespec="seconds")
    if pa.types.is_date(kind):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    return value


def nothing_to_count(question: Question, nulls: Mapping[str, int]) -> WeirError:
    """Return the error for data without a single row that counts."""
    reason = "all keys are null" if any(nulls.values()) else "it has no rows"
    return WeirError(f"{question.data}: nothing to count, {reason}; give data with rows that have keys")


def average_bytes(rows: pa.Table) -> float:
    """Return the average size of a table's rows in Arrow's layout."""
    return rows.nbytes / max(1, len(rows))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind))
