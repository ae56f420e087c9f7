"""Merging segments in bounded memory: one range of hashes after the other, each written before the next is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from weir.state.reader import Segment, between, open_segment
from weir.state.segment import SegmentRef, SegmentWriter, cut, merged, stored_schema, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

IN_MEMORY = 64 << 20  # bytes of entries that are merged at a time


def merge_segments(
    storage: Storage, refs: Sequence[SegmentRef], schema: pa.Schema, name: str, keep_dead: bool
) -> SegmentRef | None:
    """Write one segment with the newest entry of each key of several, oldest first; None if no entry remains.

    Tombstones are kept with ``keep_dead``: there may be older entries than these. At most some ``IN_MEMORY`` bytes of
    entries are in memory at a time, more only if a single key's windows are.
    """
    if sum(ref.bytes * ref.share for ref in refs) <= IN_MEMORY:
        table = StateView(storage, refs, schema).everything(keep_dead)
        return write_segment(storage, name, table) if table.num_rows else None
    writer = SegmentWriter(stored_schema(schema))
    tables = living(storage, refs, schema, keep_dead)
    first = next(tables, None)
    if first is None:
        return None

    def chunks() -> Iterator[bytes]:
        table: pa.Table | None = first
        while table is not None:
            for block in cut(table, storage.is_local):
                yield writer.block(block)
            table = next(tables, None)
        yield writer.finish()

    storage.write_chunks(name, chunks())
    return writer.ref(name)


def living(
    storage: Storage, refs: Sequence[SegmentRef], schema: pa.Schema, keep_dead: bool = False
) -> Iterator[pa.Table]:
    """Yield the newest entry of each key of some segments, oldest first, one range of hashes after the other."""
    segments = [open_segment(storage, ref.whole) for ref in refs]
    stored = stored_schema(schema)
    tables = (merged(parts, stored, keep_dead) for parts in _ranges(segments, refs))
    return (table for table in tables if table.num_rows)


def _ranges(segments: Sequence[Segment], refs: Sequence[SegmentRef]) -> Iterator[list[pa.Table]]:
    """Yield the entries of one range of hashes after the other, those of older segments first."""
    bounds = [0, *_cuts(segments), 1 << 64]
    held: dict[tuple[int, int], pa.Table] = {}  # blocks that reach into the next range
    for low, high in pairwise(bounds):
        parts = []
        for number, (segment, ref) in enumerate(zip(segments, refs, strict=True)):
            slices = ((low, high - 1),) if ref.ranges is None else ref.ranges
            own = [(max(low, a), min(high - 1, b)) for a, b in slices if a < high and b >= low]
            blocks = sorted({block for a, b in own for block in segment.between(a, b)})
            tables = {b: held.pop((number, b)) for b in blocks if (number, b) in held}
            tables.update(segment.tables([b for b in blocks if b not in tables], keep=False))
            parts += [between(tables[block], a, b) for a, b in own for block in segment.between(a, b)]
            held |= {(number, b): table for b, table in tables.items() if int(segment.lasts[b]) >= high}
        yield parts


def _cuts(segments: Sequence[Segment]) -> list[int]:
    """Return hashes between which there are some ``IN_MEMORY`` bytes of entries, by samples of what there is."""
    hashes, sizes = [], []
    for segment in segments:
        size_of_row = segment.ref.bytes / max(1, segment.ref.rows)
        for sample, rows in segment.samples(max(1, int(IN_MEMORY / 8 / len(segments) / size_of_row))):
            hashes.append(sample)
            sizes.append(np.full(len(sample), rows * size_of_row))
    if not hashes:
        return []
    sampled = np.concatenate(hashes)
    order = np.argsort(sampled)
    part = (np.cumsum(np.concatenate(sizes)[order]) // IN_MEMORY).astype(np.int64)
    starts = np.flatnonzero(np.diff(part)) + 1
    return sorted({int(h) for h in sampled[order][starts]} - {0})
