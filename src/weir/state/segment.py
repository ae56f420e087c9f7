"""Keyed state as immutable sorted segments.

The state of one operator on one server is a short list of segments, oldest first; the newest entry of a key
counts. A batch adds one segment with the keys that it touched. Nothing is ever changed in place, so a task
that runs twice, or a zombie, can do no harm: only segments named in a commit exist.

A segment is an Arrow file sorted by the key's hash. Looking up the keys of a batch is a binary search per
segment over memory-mapped columns: no store to open, nothing to rebuild when a server wakes up on another
host, no work per stored key. Merging runs of segments keeps their number logarithmic. Large segments that are not on a
local disk are read block by block, see :mod:`weir.state.blocks`.

This replaces a local key-value store with committed base versions: there is no base that could be behind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.state.blocks import SegmentWriter, cut
from weir.state.columns import DEAD, DEADLINE, H1, H2, NEVER, SYSTEM, completed, stored_schema
from weir.state.index import hash_order
from weir.state.refs import SegmentRef
from weir.state.storage import Storage

__all__ = [
    "DEAD",
    "DEADLINE",
    "H1",
    "H2",
    "NEVER",
    "SYSTEM",
    "SegmentRef",
    "entries",
    "newest",
    "run_to_merge",
]
__all__ += ["stored_schema", "tombstones", "write_segment"]
MERGE_AT = 8  # segments of one size class before they are merged
BY_RANGE = 8 << 20  # bytes from which on a segment is read, and verified, by block


def entries(
    data: pa.Table,
    key_hash: NDArray[np.uint64],
    key_check: NDArray[np.uint64],
    dead: NDArray[np.bool_] | None = None,
    deadline: NDArray[np.int64] | None = None,
) -> pa.Table:
    """Put the system columns before the data of state entries."""
    n = len(key_hash)
    return pa.Table.from_arrays(
        [
            pa.array(key_hash),
            pa.array(key_check),
            pa.array(np.zeros(n, np.bool_) if dead is None else dead),
            pa.array(np.full(n, NEVER) if deadline is None else deadline),
            *data.columns,
        ],
        schema=stored_schema(data.schema),
    )


def tombstones(key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64], schema: pa.Schema) -> pa.Table:
    """Return entries that say: this key is no more."""
    data = pa.table({f.name: pa.nulls(len(key_hash), f.type) for f in schema})
    return entries(data, key_hash, key_check, dead=np.ones(len(key_hash), np.bool_))


def newest(table: pa.Table) -> pa.Table:
    """Of several entries of a key, in order of age, keep the last; the result is sorted by hash."""
    key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
    up = key_hash[1:] > key_hash[:-1]
    if (up | ((key_hash[1:] == key_hash[:-1]) & (key_check[1:] > key_check[:-1]))).all():
        return table.combine_chunks()
    order = hash_order(key_hash, key_check)  # stable, so the newest of equal keys comes last
    s1, s2 = key_hash[order], key_check[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (s1[1:] != s1[:-1]) | (s2[1:] != s2[:-1])
    return table.take(pa.array(order[last])).combine_chunks()


def merged(parts: Iterable[pa.Table], stored: pa.Schema, keep_dead: bool) -> pa.Table:
    """Return the newest entry of each key of some tables, oldest first; tombstones only with ``keep_dead``."""
    table = newest(pa.concat_tables([stored.empty_table(), *(completed(part, stored) for part in parts)]))
    return table if keep_dead else table.filter(pa.compute.invert(table[DEAD]))


def write_segment(storage: Storage, name: str, table: pa.Table) -> SegmentRef:
    """Write entries (one per key, any order) as a segment; a large one is cut into blocks."""
    key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
    if not _in_order(key_hash, key_check):
        table = table.take(pa.array(np.lexsort((key_check, key_hash))))
    if table.nbytes > BY_RANGE:
        return _write_blocks(storage, name, table)
    table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    storage.write(name, data)
    deadlines = table[DEADLINE].to_numpy()
    lowest = int(deadlines.min()) if len(deadlines) else int(NEVER)
    return SegmentRef(name, table.num_rows, data.size, zlib.crc32(data), lowest)


def _write_blocks(storage: Storage, name: str, table: pa.Table) -> SegmentRef:
    writer = SegmentWriter(table.schema)
    chunks = [writer.block(part) for part in cut(table, storage.is_local)]
    storage.write(name, b"".join([*chunks, writer.finish()]))
    return writer.ref(name)


def _in_order(key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64]) -> bool:
    up, same = key_hash[1:] > key_hash[:-1], key_hash[1:] == key_hash[:-1]
    return bool((up | (same & (key_check[1:] >= key_check[:-1]))).all())


def run_to_merge(refs: Sequence[SegmentRef]) -> tuple[int, int] | None:
    """Return the run of neighbouring segments that should become one, as (start, end), or None.

    Segments fall into size classes of factor ``MERGE_AT``. Where that many are of one class, and none between them is
    of a larger one, they are merged, so every entry is rewritten once per class: the cost per batch stays proportional
    to the keys touched, and the number of segments logarithmic in the size of the state.

    >>> run_to_merge([SegmentRef("big", 10**6, 0, 0)] + [SegmentRef("s", 10, 0, 0)] * 8)
    (1, 9)
    >>> run_to_merge([SegmentRef("s", 10, 0, 0)] * 3) is None
    True
    """
    sizes = [_size_class(ref.entries) for ref in refs] if len(refs) >= MERGE_AT else []
    for largest in sorted(set(sizes), reverse=True):
        end, same = len(sizes), 0
        for start in range(len(sizes) - 1, -2, -1):
            if start >= 0 and sizes[start] <= largest:
                same += sizes[start] == largest
            elif same >= MERGE_AT:
                return start + 1, end
            else:
                end, same = start, 0
    return None


def _size_class(rows: int) -> int:
    size = 0
    while rows >= 64:
        rows //= MERGE_AT
        size += 1
    return size
