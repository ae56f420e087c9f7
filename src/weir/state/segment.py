"""Keyed state as immutable sorted segments.

The state of one operator on one server is a short list of segments, oldest first; the newest entry of a key
counts. A batch adds one segment with the keys that it touched. Nothing is ever changed in place, so a task
that runs twice, or a zombie, can do no harm: only segments named in a commit exist.

A segment is an Arrow file sorted by the key's hash. Looking up the keys of a batch is a binary search per
segment over memory-mapped columns: no store to open, nothing to rebuild when a server wakes up on another
host, no work per stored key. Merging runs of segments keeps their number logarithmic.

This replaces a local key-value store with committed base versions: there is no base that could be behind.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import CheckpointError
from weir.state.storage import Storage

H1, H2, DEAD, DEADLINE = "__h1", "__h2", "__dead", "__deadline"
SYSTEM = (
    pa.field(H1, pa.uint64(), nullable=False),
    pa.field(H2, pa.uint64(), nullable=False),
    pa.field(DEAD, pa.bool_(), nullable=False),
    pa.field(DEADLINE, pa.int64(), nullable=False),
)
NEVER = np.iinfo(np.int64).max
MERGE_AT = 8  # segments of one size class before they are merged


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """Names a segment in a commit: all that is needed to find and verify it."""

    name: str
    rows: int
    bytes: int
    crc: int
    min_deadline: int = NEVER


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a segment that stores ``schema``."""
    return pa.schema([*SYSTEM, *schema])


def entries(
    data: pa.Table,
    h1: NDArray[np.uint64],
    h2: NDArray[np.uint64],
    dead: NDArray[np.bool_] | None = None,
    deadline: NDArray[np.int64] | None = None,
) -> pa.Table:
    """Put the system columns before the data of state entries."""
    n = len(h1)
    return pa.Table.from_arrays(
        [
            pa.array(h1),
            pa.array(h2),
            pa.array(np.zeros(n, np.bool_) if dead is None else dead),
            pa.array(np.full(n, NEVER) if deadline is None else deadline),
            *data.columns,
        ],
        schema=stored_schema(data.schema),
    )


def tombstones(h1: NDArray[np.uint64], h2: NDArray[np.uint64], schema: pa.Schema) -> pa.Table:
    """Entries that say: this key is no more."""
    data = pa.table({f.name: pa.nulls(len(h1), f.type) for f in schema})
    return entries(data, h1, h2, dead=np.ones(len(h1), np.bool_))


def newest(table: pa.Table) -> pa.Table:
    """Of several entries of a key, in order of age, keeps the last; the result is sorted by hash."""
    h1, h2 = table[H1].to_numpy(), table[H2].to_numpy()
    order = np.lexsort((h2, h1))  # stable, so the newest of equal keys comes last
    s1, s2 = h1[order], h2[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (s1[1:] != s1[:-1]) | (s2[1:] != s2[:-1])
    return table.take(pa.array(order[last])).combine_chunks()


def write_segment(storage: Storage, name: str, table: pa.Table) -> SegmentRef:
    """Write entries (one per key, any order) as a segment."""
    h1, h2 = table[H1].to_numpy(), table[H2].to_numpy()
    order = np.lexsort((h2, h1))
    if not np.array_equal(order, np.arange(len(order))):
        table = table.take(pa.array(order))
    table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    storage.write(name, data)
    deadlines = table[DEADLINE].to_numpy()
    lowest = int(deadlines.min()) if len(deadlines) else int(NEVER)
    return SegmentRef(name, table.num_rows, data.size, zlib.crc32(data), lowest)


class Segment:
    """One open segment: verified once, then read in place."""

    def __init__(self, storage: Storage, ref: SegmentRef) -> None:
        self.ref = ref
        buffer = storage.read_checked(ref.name, ref.bytes, ref.crc)
        try:
            self.table = pa.ipc.open_file(buffer).read_all()
        except pa.ArrowInvalid as error:
            raise CheckpointError(f"{storage.path(ref.name)}: not a readable segment ({error}).") from None
        self.h1 = _column(self.table, H1)
        self.h2 = _column(self.table, H2)

    @cached_property
    def dead(self) -> NDArray[np.bool_]:
        return np.asarray(self.table[DEAD].to_numpy())

    @cached_property
    def deadline(self) -> NDArray[np.int64]:
        return _column(self.table, DEADLINE)

    @cached_property
    def by_deadline(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Deadlines in order, and the rows they belong to."""
        order = np.argsort(self.deadline, kind="stable")
        return self.deadline[order], order


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    column = table[name]
    if column.num_chunks == 1:
        return column.chunk(0).to_numpy(zero_copy_only=True)
    return column.to_numpy()


_open: OrderedDict[tuple[str, str], Segment] = OrderedDict()
_OPEN_AT_MOST = 4096  # more than all servers' segments: a key's new owner looks into those of the old one


def open_segment(storage: Storage, ref: SegmentRef) -> Segment:
    """A segment, kept open in this process: its file never changes."""
    key = (storage.location, ref.name)
    segment = _open.get(key)
    if segment is None or segment.ref != ref:
        segment = Segment(storage, ref)
        _open[key] = segment
        while len(_open) > _OPEN_AT_MOST:
            _open.popitem(last=False)
    else:
        _open.move_to_end(key)
    return segment


def run_to_merge(refs: Sequence[SegmentRef]) -> tuple[int, int] | None:
    """Return the run of neighbouring segments that should become one, as (start, end), or None.

    Segments fall into size classes of factor ``MERGE_AT``. When that many of the newest are of one class or
    below, they are merged, so every entry is rewritten once per class: the cost per batch stays proportional
    to the keys touched, and the number of segments logarithmic in the size of the state.

    >>> run_to_merge([SegmentRef("big", 10**6, 0, 0)] + [SegmentRef("s", 10, 0, 0)] * 8)
    (1, 9)
    >>> run_to_merge([SegmentRef("s", 10, 0, 0)] * 3) is None
    True
    """
    end = len(refs)
    start = end
    largest = 0
    best: tuple[int, int] | None = None
    while start > 0:
        start -= 1
        largest = max(largest, _size_class(refs[start].rows))
        same = sum(_size_class(r.rows) == largest for r in refs[start:end])
        if same >= MERGE_AT:
            best = (start, end)
    return best


def _size_class(rows: int) -> int:
    size = 0
    while rows >= 64:
        rows //= MERGE_AT
        size += 1
    return size
