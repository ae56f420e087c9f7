"""Timers in saved state: entries of a key that come due by a clock.

A timer is an entry beside that of its key's state, or of a window: it has the same first hash, so it moves and scales
with its key, a second hash of its own, and a deadline. What is due is found by deadline, without a scan. Deadlines of
different clocks share one column; which clock a timer goes by is in the timer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.hashing import SECOND_SEED, hash_columns
from weir.state.segment import entries

# the clocks: event time, processing time, early results by processing time
EVENT, PROCESSING, EARLY = 1, 2, 3
TIMER = pa.field("__alarm", pa.struct([("clock", pa.int8()), ("at", pa.int64())]))
Hashes = NDArray[np.uint64]


def second_hash(key_check: Hashes, *others: NDArray[np.int64]) -> Hashes:
    """Return the second hash of an entry that a key has for each of several values, e.g. starts of windows."""
    return hash_columns([pa.array(key_check.view(np.int64)), *map(pa.array, others)], SECOND_SEED)


def timer_hash(key_check: Hashes, clock: NDArray[np.int64], at: NDArray[np.int64]) -> Hashes:
    """Return the second hash of timers, from that of the entries that they belong to."""
    return second_hash(key_check, clock, at)


def timer_entries(
    heads: Sequence[pa.Array],
    key_hash: Hashes,
    key_check: Hashes,
    clock: NDArray[np.int64],
    at: NDArray[np.int64],
    deadline: NDArray[np.int64],
    schema: pa.Schema,
) -> pa.Table:
    """Return timers as state entries; ``heads`` are the first columns of the operator's ``schema``, others are null."""
    about = pa.StructArray.from_arrays([pa.array(clock, pa.int8()), pa.array(at)], ["clock", "at"])
    empty = [pa.nulls(len(key_hash), f.type) for f in list(schema)[len(heads) : -1]]
    data = pa.Table.from_arrays([*heads, *empty, about], schema=schema)
    return entries(data, key_hash, key_check, deadline=deadline)


def states_in(table: pa.Table) -> pa.Table:
    """Return the entries that are no timers."""
    return table.filter(pc.is_null(table[TIMER.name])) if TIMER.name in table.column_names else table


def timers_in(table: pa.Table, *clocks: int) -> pa.Table:
    """Return the entries that are timers by one of some clocks."""
    clock = pc.struct_field(table[TIMER.name], "clock")
    return table.filter(pc.fill_null(pc.is_in(clock, pa.array(clocks, pa.int8())), False))
