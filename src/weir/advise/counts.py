"""A recorded stream as counts per slice of time, in bounded memory.

Two readers return the same :class:`Counted`: :mod:`weir.advise.counts` reads with pyarrow what fits on this machine,
:mod:`weir.spark.counting` lets Spark count what does not. Both cut time by the same rule (:func:`cut`) and hash keys
with the same hash, so they agree row for row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from weir.columns import can_be_key, canonical_type
from weir.errors import TopologyError, UnknownColumn, WeirError, did_you_mean
from weir.hashing import hash_columns
from weir.locality.counts import count_keys
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
        for name in (name for key in self.operators.values() for name in key):
            if not can_be_key(key_type(schema.field(name).type)):
                raise TopologyError(
                    f"column {name!r} has type {schema.field(name).type}, which can't be a key: cast it to a string or "
                    "an integer in the data"
                )
        kind, t = schema.field(self.time).type if self.time else None, pa.types
        if kind is not None and not (t.is_timestamp(kind) or t.is_date(kind) or t.is_integer(kind)):
            raise TopologyError(
                f"time {self.time!r}: a column of type {kind} doesn't tell the time; name a timestamp, a date or an "
                "integer column, or leave time out"
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


_MEASURED = 5_000  # rows whose average size stands for all


def open_files(path: str) -> ds.Dataset:
    """Open a Parquet file or folder, or a CSV file; empty fields are null, as they are in Spark."""
    if not path.lower().endswith((".csv", ".csv.gz")):
        return ds.dataset(path, format="parquet", partitioning="hive")
    from pyarrow import csv

    convert = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    return ds.dataset(path, format=ds.CsvFileFormat(convert_options=convert))


def count_files(question: Question, dataset: ds.Dataset) -> Counted:
    """Count keys and pairs with pyarrow, on this machine."""
    row_bytes = average_bytes(dataset.head(_MEASURED))
    table = dataset.to_table(columns=question.columns)
    if question.sample and question.sample < len(table):
        drawn = np.random.default_rng(question.seed).random(len(table)) < question.sample / len(table)
        table = table.filter(pa.array(drawn))
    table, nulls = _without_nulls(table, question)
    if not len(table):
        raise nothing_to_count(question, nulls)
    keys = [
        pa.table([_cast(table[c], key_type(table[c].type)) for c in key], names=list(key))
        for key in question.operators.values()
    ]
    hashes = [hash_columns(k.columns) for k in keys]
    number, begins = _slices(table, question)
    if (np.diff(number) < 0).any():
        order = np.argsort(number, kind="stable")
        number, hashes, keys = number[order], [h[order] for h in hashes], [k.take(order) for k in keys]
    return Counted(
        question.operators,
        _count_slices(number, hashes, question),
        begins,
        [_distinct(k, h, question.capacity) for k, h in zip(keys, hashes, strict=True)],
        len(table),
        nulls,
        row_bytes,
        True,
        "pyarrow",
    )


def _without_nulls(table: pa.Table, question: Question) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows without nulls, and the number of rows with one, per operator and for the time."""
    nulls, complete = {}, np.ones(len(table), np.bool_)
    for name, columns in question.required.items():
        missing = np.zeros(len(table), np.bool_)
        for column in columns:
            if table[column].null_count:
                missing |= table[column].is_null().to_numpy()
        nulls[name] = int(missing.sum())
        complete &= ~missing
    return (table if complete.all() else table.filter(pa.array(complete))), nulls


def _slices(table: pa.Table, question: Question) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the slice of each row, and when each slice begins."""
    if question.time is None:
        return np.arange(len(table)) * question.slices // len(table), []
    column = table[question.time]
    kind = column.type
    if not pa.types.is_integer(kind):
        kind = canonical_type(kind) if pa.types.is_timestamp(kind) else pa.date32()
        column = column.cast(kind).cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    clock = column.cast(pa.int64()).to_numpy()
    first = int(clock.min())
    bins = (clock - first) // bin_width(first, int(clock.max()))
    edges = cut(*np.unique(bins, return_counts=True), question.slices)
    number = np.searchsorted(edges, bins, side="right")
    begins = np.full(question.slices, np.iinfo(np.int64).max)
    np.minimum.at(begins, number, clock)
    return number, [time_text(int(begin), kind) for begin in begins[np.unique(number)]]


def _count_slices(
    number: NDArray[np.int64], hashes: list[NDArray[np.uint64]], question: Question
) -> list[BatchStats]:
    """Count keys and pairs per slice, given the slice of each row in ascending order."""
    ends = np.flatnonzero(np.diff(number, prepend=-1, append=number[-1] + 1))
    slices = []
    for begin, end in pairwise(ends.tolist()):
        rows = {o: h[begin:end] for o, h in enumerate(hashes)}
        pairs = {(o, o + 1): (rows[o], rows[o + 1]) for o in range(len(hashes) - 1)}
        slices.append(BatchStats.of(rows, pairs, capacity=question.slice_capacity, seed=question.seed))
    return slices


def _distinct(keys: pa.Table, hashes: NDArray[np.uint64], capacity: int) -> pa.Table:
    """Return the most frequent keys, each once."""
    kept = count_keys(hashes).truncate(capacity).left
    distinct, positions = np.unique(hashes, return_index=True)
    return keys.take(positions[np.searchsorted(distinct, kept)]).combine_chunks()


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return (column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column).cast(kind)


SPARK_ABOVE = 1 << 30  # bytes on disk above which Spark counts

Keys = str | Sequence[str | Sequence[str]]


def count(data: str, question: Callable[[Sequence[str]], Question], master: str | None = None) -> Counted:
    """Count the data: here if it is a file of up to 1 GB and no master is named, on Spark otherwise.

    ``question`` is called with the names of the columns and returns what to count.
    """
    dataset = None
    if not is_remote(data):
        try:
            dataset = open_files(data)
        except (pa.ArrowInvalid, OSError) as error:
            raise WeirError(f"{data} is neither Parquet nor CSV that can be read ({error})") from error
        local_question = question(dataset.schema.names)
        local_question.check(dataset.schema)
        if master is None and _size(Path(data)) <= SPARK_ABOVE:
            return count_files(local_question, dataset)
    # imported here: advice on files needs no Spark
    from weir.spark.counting import count_frame, open_frame, session

    spark, is_new = session(master)
    try:
        frame = open_frame(spark, data, None if dataset is None else dataset.schema)
        return count_frame(question(frame.columns), frame)
    finally:
        if is_new:
            spark.stop()


def is_remote(data: str) -> bool:
    """Return whether only Spark can read the data."""
    return data.startswith(TABLE) or "://" in data


def key_columns(
    keys: Keys, operators: str | Sequence[str] | None = None, columns: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the key columns by operator.

    ``keys`` and ``operators`` are lists, or texts with commas as on the command line. ``a+b`` is a key of two columns,
    unless ``a+b`` is one of the data's ``columns``. Operators are named after their keys by default.

    >>> key_columns("state,user+hashtag", "states,trends")
    {'states': ['state'], 'trends': ['user', 'hashtag']}
    >>> key_columns(["state", ["user", "hashtag"]])
    {'state': ['state'], 'user+hashtag': ['user', 'hashtag']}
    """
    parts = [
        list(key)
        if not isinstance(key, str)
        else [key]
        if key in columns
        else list(map(str.strip, key.split("+")))
        for key in words(keys)
    ]
    if len(parts) < 2 or not all(parts):
        raise TopologyError(
            f"keys {keys!r}: locality is between operators with different keys; name two at least, as in a,b"
        )
    names = ["+".join(part) for part in parts] if operators is None else words(operators)
    if len(names) != len(parts):
        raise TopologyError(
            f"operators {operators!r}: give {len(parts)} names, one for each of the keys {keys!r}"
        )
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise TopologyError(f"{name!r} cannot name an operator: it must be a plain file name, too")
    if len(set(names)) < len(names):
        raise TopologyError(
            f"two operators have the same name in {names}: tell them apart with operators= (--operators)"
        )
    return dict(zip(names, parts, strict=True))


def words(text: Any) -> list[Any]:
    """Return the parts of a text with commas, or the items of a list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else list(text)


def _size(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
