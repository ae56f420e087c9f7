"""Rows on their way through a server: a batch, and optionally which of its rows are meant.

Passing rows on to an operator on the same server copies nothing: the next operator takes the columns that it
reads, and only those, out of the batch it shares with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import EngineError
from weir.hashing import SECOND_SEED, SPARK_SEED, hash_columns

Index = NDArray[np.int64]


class Rows:
    """A view of some rows of a batch; columns are taken when asked for."""

    __slots__ = ("_taken", "batch", "came", "index", "key_hash", "origin", "source_time")

    def __init__(
        self,
        batch: pa.RecordBatch,
        index: Index | None = None,
        key_hash: NDArray[np.uint64] | None = None,
        origin: tuple[str, NDArray[np.uint64]] | None = None,
        source_time: int = 0,
        came: float = 0.0,
    ) -> None:
        self.batch = batch
        self.index = index
        self.key_hash = key_hash  # hash of the receiving operator's key, if known already
        self.origin = origin  # the last keyed operator they passed, and their keys' hashes there
        self.source_time = source_time  # when the oldest of them left its source, in µs; 0 if not known
        self.came = came  # when they came to their server, by its performance counter; 0: with its task
        self._taken: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return self.batch.num_rows if self.index is None else len(self.index)

    def column(self, name: str) -> pa.Array:
        if self.index is None:
            return self.batch.column(name)
        taken = self._taken.get(name)
        if taken is None:
            taken = self._taken[name] = self.batch.column(name).take(pa.array(self.index))
        return taken

    def hash(self, key: tuple[str, ...]) -> NDArray[np.uint64]:
        """Return the hash of each row's key; 0 for all without a key."""
        if self.key_hash is None:
            self.key_hash = (
                hash_columns([self.column(k) for k in key]) if key else np.zeros(len(self), np.uint64)
            )
        return self.key_hash

    def select(self, chosen: NDArray[np.bool_] | Index) -> Rows:
        """Some of the rows, by mask or by position."""
        positions: Any = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return self._part(self.batch, positions if self.index is None else self.index[positions], positions)

    def slice(self, start: int, end: int) -> Rows:
        """Rows from one position to another; nothing is copied."""
        if self.index is None:
            return self._part(self.batch[start:end], None, slice(start, end))
        return self._part(self.batch, self.index[start:end], slice(start, end))

    def _part(self, batch: pa.RecordBatch, index: Index | None, positions: Any) -> Rows:
        key_hash = None if self.key_hash is None else self.key_hash[positions]
        origin = None if self.origin is None else (self.origin[0], self.origin[1][positions])
        return Rows(batch, index, key_hash, origin, self.source_time, self.came)

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows themselves, with the columns of a schema."""
        return pa.RecordBatch.from_arrays([self.column(n) for n in schema.names], schema=schema)

    def nulls(self, key: tuple[str, ...]) -> NDArray[np.bool_] | None:
        """Return which rows lack a part of their key; None if none does."""
        missing: NDArray[np.bool_] | None = None
        for name in key:
            column = self.column(name)
            if column.null_count:
                here = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
                missing = here if missing is None else missing | here
        return missing


LARGE = 1 << 30  # bytes from which on columns get 64-bit offsets when several batches are put together
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of one schema as one batch, with all their rows.

    Text and binary columns of more than 2 GiB do not fit 32-bit offsets: Arrow would leave them in pieces. Then their
    type is the one with 64-bit offsets.

    >>> parts = [pa.record_batch({"x": ["a"]}), pa.record_batch({"x": ["b"]})]
    >>> one_batch(parts).to_pydict()
    {'x': ['a', 'b']}
    """
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    if table.nbytes >= LARGE:
        table = table.cast(pa.schema([f.with_type(_WIDE.get(f.type, f.type)) for f in table.schema]))
    pieces = table.combine_chunks().to_batches()
    if len(pieces) != 1:
        raise EngineError(
            f"{table.num_rows} rows of {table.nbytes} bytes do not fit one batch ({table.schema}); make micro-batches "
            "smaller, e.g. with maxFilesPerTrigger"
        )
    return pieces[0]


def row_hashes(batch: pa.RecordBatch, words: int = 2) -> tuple[NDArray[np.uint64], ...]:
    """128 bits over all columns of each row, or only the first 64."""
    columns = [_plain(c) for c in batch.columns]
    # a null must not hash like an absent column, so its position takes part
    columns += [c.is_null() for c in batch.columns if c.null_count]
    return tuple(hash_columns(columns, seed) for seed in (SPARK_SEED, SECOND_SEED)[:words])


def _plain(column: pa.Array) -> pa.Array:
    """A column of a type that the hash knows, different where the original differs."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return pa.array(np.ascontiguousarray(values).view(np.int64))
    if pa.types.is_nested(kind) or pa.types.is_map(kind):
        return pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.int32())
    if pa.types.is_decimal(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return column.cast(pa.string())
    if pa.types.is_unsigned_integer(kind):
        return column.cast(pa.int64(), safe=False)
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column
