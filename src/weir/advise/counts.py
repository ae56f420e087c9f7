"""What advice is made of: a recorded stream, counted slice by slice of time, in bounded memory.

Two readers give the same :class:`Counted`: ``advise_files`` reads with pyarrow what fits this machine,
``weir.spark.counting`` lets Spark count what doesn't. Both cut time by the same rule (:func:`cut`) and hash keys
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

SLICES = 100
_BINS = 20_000
_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


@dataclass(frozen=True)
class Question:
    """What is to be counted.

    Attributes
    ----------
    data
        A Parquet file or folder, a CSV file, or ``table:NAME`` for a table that Spark knows.
    operators
        Key columns by operator, in the order in which rows pass the operators.
    time
        The column that orders rows; without it they are taken in the order of the file.
    sample
        Count about so many rows, drawn at random; all by default.
    capacity
        Most pairs per edge, and most keys per operator, that all slices together may keep.
    """

    data: str
    operators: Mapping[str, Sequence[str]]
    time: str | None = None
    sample: int | None = None
    capacity: int = 5_000_000
    slices: int = SLICES
    seed: int = 0

    @property
    def room(self) -> int:
        """Most pairs, or keys, of one slice."""
        return max(1, self.capacity // self.slices)

    @property
    def columns(self) -> list[str]:
        """Every column that has to be read."""
        wanted = [c for key in self.operators.values() for c in key]
        return list(dict.fromkeys([*wanted, *([self.time] if self.time else [])]))

    def check_names(self, known: Sequence[str]) -> None:
        """Refuses columns that aren't there."""
        for name in self.columns:
            if name not in known:
                raise UnknownColumn(f"{self.data} has no column {name!r}: {did_you_mean(name, known)}")

    def check(self, schema: pa.Schema) -> None:
        """Refuses columns that aren't there, or that can't be what they are asked to be."""
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
                f"--time {self.time}: a column of type {schema.field(self.time).type} doesn't tell the time; "
                "name a timestamp, a date or an integer column, or leave --time out"
            )


@dataclass(frozen=True)
class Counted:
    """A recorded stream as counts: slices of about equally many rows, oldest first.

    Attributes
    ----------
    slices
        Key and pair counts per slice; operators are numbered in their order, edges join neighbours.
    begins
        The time at which each slice begins, as ``--time`` has it; empty without.
    keys
        Per operator, readable: an Arrow table of its most frequent keys.
    rows, nulls
        Rows counted, and per operator (or ``time``) the rows left out because that was null.
    row_bytes
        What an average row weighs, all its columns included.
    ordered
        Whether slices follow each other in time. If not, nothing can be said about drift.
    """

    operators: Mapping[str, Sequence[str]]
    slices: Sequence[BatchStats]
    begins: Sequence[Any]
    keys: Sequence[pa.Table]
    rows: int
    nulls: Mapping[str, int]
    row_bytes: float
    ordered: bool
    reader: str


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which Spark would see a key, for the sake of equal hashes.

    >>> key_type(pa.dictionary(pa.int32(), pa.large_string())), key_type(pa.uint16())
    (DataType(string), DataType(int32))
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_date(kind):
        return pa.date32()
    return _UNSIGNED.get(kind, canonical_type(kind))


def cut(bins: NDArray[np.int64], rows: NDArray[np.int64], slices: int) -> NDArray[np.int64]:
    """Where slices of about equally many rows begin, given how many rows each fine bin of time has.

    Returns the bins at which the second slice, the third … begin. Rows of one bin stay together, so a reader
    needs nothing but a histogram to agree with any other about every row.

    >>> cut(np.arange(6), np.array([5, 5, 1, 1, 4, 4]), 4).tolist()
    [1, 2, 5]
    """
    before = np.cumsum(rows) - rows
    number = before * slices // max(1, int(rows.sum()))
    return bins[np.searchsorted(number, np.arange(1, slices), side="left").clip(max=len(bins) - 1)]


def bin_width(first: int, last: int) -> int:
    """How much time one fine bin spans."""
    return (last - first) // _BINS + 1


def time_text(value: int, kind: pa.DataType) -> Any:
    """A slice's beginning, readable: microseconds and days become ISO dates, plain numbers stay."""
    if pa.types.is_timestamp(kind):
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)).isoformat(
            timespec="seconds"
        )
    if pa.types.is_date(kind):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    return value


def empty(question: Question, nulls: Mapping[str, int]) -> WeirError:
    """The error for data without a single row that counts."""
    why = "all keys are null" if any(nulls.values()) else "it has no rows"
    return WeirError(f"{question.data}: nothing to count, {why}; give data with the keys of real rows")


def average_bytes(rows: pa.Table) -> float:
    """What a row of a table weighs in Arrow's layout."""
    return rows.nbytes / max(1, len(rows))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind))
