"""Count Parquet and CSV files with pyarrow, on this machine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from weir.advise.counts import (
    Counted,
    Question,
    average_bytes,
    bin_width,
    cut,
    key_type,
    nothing_to_count,
    time_text,
)
from weir.columns import canonical_type
from weir.hashing import hash_columns
from weir.locality.counts import count_keys
from weir.locality.stats import BatchStats

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
        pa.table([pc.cast(_decoded(table[c]), key_type(table[c].type)) for c in key], names=list(key))
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


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
