"""Open segments: small ones, verified when they are opened, and large ones, of which blocks are read and verified."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.state.cache import BYTES, MAPS
from weir.state.index import U64, Search
from weir.state.segment import BY_RANGE, H1, BlockRef, Directory, Index, SegmentRef, index_in, index_of
from weir.state.storage import Storage

AT_ONCE = 32 << 20  # bytes of blocks that are fetched together
LOOK_AFTER = 64  # segments opened before those are unmapped that have been deleted
_opened = 0  # segments since then


EVERYWHERE = ((0, (1 << 64) - 1),)


def between(table: pa.Table, low: int, high: int) -> pa.Table:
    """Return the entries whose hash lies in a range, both ends included, of a table that is sorted by it."""
    if (low, high) == EVERYWHERE[0]:
        return table
    key_hash = table[H1].to_numpy()
    start = int(np.searchsorted(key_hash, np.uint64(low), "left"))
    end = int(np.searchsorted(key_hash, np.uint64(high), "right"))
    return table.slice(start, end - start)


class Segment(Protocol):
    """One open segment: blocks of entries, numbered from 0 in the order of their hashes."""

    ref: SegmentRef
    firsts: U64  # the lowest h1 of each block
    lasts: U64

    def holding(self, search: Search) -> Iterator[tuple[int, Index]]:
        """Yield the blocks that may hold a key that a search still misses."""
        return self.holding_any(search.key_hash[search.missing])

    def holding_any(self, routes: U64) -> Iterator[tuple[int, Index]]:
        """Yield the blocks that may hold an entry with one of these route hashes."""

    def due(self, until: int) -> Iterator[tuple[int, Index]]:
        """Yield the blocks that may have a deadline that is not after ``until``."""

    def tables(self, blocks: Sequence[int], keep: bool = True) -> Iterator[tuple[int, pa.Table]]:
        """Yield the entries of some blocks; without ``keep``, leave what others need in the cache alone."""

    def between(self, low: int, high: int) -> range:
        """Return the blocks that may hold a hash of a range, both ends included."""
        first = int(np.searchsorted(self.lasts, np.uint64(low), "left"))
        return range(first, int(np.searchsorted(self.firsts, np.uint64(high), "right")))

    def samples(self, stride: int) -> Iterator[tuple[U64, int]]:
        """Yield some hashes of each block, and of how many entries each of them is one."""


class WholeSegment(Segment):
    """A segment in memory, most often a small file that is mapped."""

    def __init__(self, storage: Storage, ref: SegmentRef) -> None:
        self.ref = ref
        data = storage.read_checked(ref.name, ref.bytes, ref.crc)
        try:
            file = pa.ipc.open_file(data)
            batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        except pa.ArrowInvalid as error:
            raise CheckpointError(f"{storage.path(ref.name)}: not a readable segment ({error}).") from None
        batches = [batch for batch in batches if batch.num_rows]
        self._tables = [pa.Table.from_batches([batch]) for batch in batches]
        key = (storage.location, ref.name, ref.crc)
        self._indexes = [(n, index_of(batch, (*key, n))) for n, batch in enumerate(batches)]
        self.firsts = np.array([index.key_hash[0] for _, index in self._indexes], np.uint64)
        self.lasts = np.array([index.key_hash[-1] for _, index in self._indexes], np.uint64)

    def holding(self, search: Search) -> Iterator[tuple[int, Index]]:
        return iter(self._indexes)

    def holding_any(self, routes: U64) -> Iterator[tuple[int, Index]]:
        return iter(self._indexes)

    def due(self, until: int) -> Iterator[tuple[int, Index]]:
        return iter(self._indexes if self.ref.min_deadline <= until else ())

    def tables(self, blocks: Sequence[int], keep: bool = True) -> Iterator[tuple[int, pa.Table]]:
        return ((number, self._tables[number]) for number in blocks)

    def samples(self, stride: int) -> Iterator[tuple[U64, int]]:
        return ((index.key_hash[::stride], min(stride, len(index.key_hash))) for _, index in self._indexes)


class RangedSegment(Segment):
    """A segment of which only a directory is in memory; blocks are fetched when they are needed."""

    def __init__(self, storage: Storage, ref: SegmentRef) -> None:
        assert ref.directory is not None
        self.ref, self._storage = ref, storage
        start, length, crc = ref.directory
        (data,) = storage.read_ranges(ref.name, [(start, start + length)])
        self._verify(data, crc, start)
        directory = msgspec.msgpack.decode(data, type=Directory)
        self._blocks: list[BlockRef] = directory.blocks
        self._schema = pa.ipc.read_schema(pa.py_buffer(directory.schema))
        self._key = (storage.location, ref.name, ref.crc)
        self.firsts = np.array([b.first for b in self._blocks], np.uint64)
        self.lasts = np.array([b.last for b in self._blocks], np.uint64)
        self.weight = length + 200 * len(self._blocks)

    def _verify(self, data: pa.Buffer, crc: int, start: int) -> None:
        if zlib.crc32(data) != crc:
            raise CheckpointError(
                f"{self._storage.path(self.ref.name)}: damaged (bytes {start} to {start + data.size}, expected "
                f"checksum {crc:08x}, found {zlib.crc32(data):08x}). Restore the file from a copy; nothing was "
                "overwritten."
            )

    def holding_any(self, routes: U64) -> Iterator[tuple[int, Index]]:
        if len(self._blocks) == 1:
            return self._indexes([0])
        block = np.searchsorted(self.firsts, routes, "right") - 1
        inside = (block >= 0) & (routes <= self.lasts[block])
        return self._indexes(np.flatnonzero(np.bincount(block[inside])).tolist())

    def due(self, until: int) -> Iterator[tuple[int, Index]]:
        return self._indexes([n for n, b in enumerate(self._blocks) if b.min_deadline <= until])

    def _indexes(self, blocks: Sequence[int]) -> Iterator[tuple[int, Index]]:
        for group in self._groups(blocks, [self._blocks[n].middle - self._blocks[n].start for n in blocks]):
            kept = {n: BYTES.get((*self._key, n, "index")) for n in group}
            wanted = [n for n in group if kept[n] is None]
            ranges = [(self._blocks[n].start, self._blocks[n].middle) for n in wanted]
            for n, data in zip(wanted, self._read(ranges), strict=True):
                self._verify(data, self._blocks[n].index_crc, self._blocks[n].start)
                BYTES.put((*self._key, n, "index"), data, data.size)
                kept[n] = data
            for n in group:
                yield n, index_in(kept.pop(n), self._blocks[n].rows, (*self._key, n))

    def tables(self, blocks: Sequence[int], keep: bool = True) -> Iterator[tuple[int, pa.Table]]:
        for group in self._groups(blocks, [self._blocks[n].end - self._blocks[n].start for n in blocks]):
            kept = {n: BYTES.get((*self._key, n, "entries")) for n in group}
            wanted = [n for n in group if kept[n] is None]
            fronts = {n: BYTES.get((*self._key, n, "index")) for n in wanted}
            ranges = [
                (self._blocks[n].start if fronts[n] is None else self._blocks[n].middle, self._blocks[n].end)
                for n in wanted
            ]
            for n, data in zip(wanted, self._read(ranges), strict=True):
                kept[n] = self._table(self._blocks[n], fronts[n], data)
                if keep:
                    BYTES.put(
                        (*self._key, n, "entries"), kept[n], self._blocks[n].end - self._blocks[n].start
                    )
            for n in group:
                yield n, kept.pop(n)

    def samples(self, stride: int) -> Iterator[tuple[U64, int]]:
        return ((np.array([b.first], np.uint64), b.rows) for b in self._blocks)

    def _table(self, block: BlockRef, front: pa.Buffer | None, data: pa.Buffer) -> pa.Table:
        """Return the entries of a block from its bytes, or from its front and the bytes after it."""
        if front is None:
            front, rest = data.slice(0, block.middle - block.start), data.slice(block.middle - block.start)
            self._verify(front, block.index_crc, block.start)
        else:
            rest = data
            data = pa.py_buffer(b"".join([front, rest]))
        self._verify(rest, block.data_crc, block.middle)
        return pa.Table.from_batches([pa.ipc.read_record_batch(data, self._schema)])

    def _read(self, ranges: list[tuple[int, int]]) -> list[pa.Buffer]:
        return self._storage.read_ranges(self.ref.name, ranges) if ranges else []

    @staticmethod
    def _groups(blocks: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        total = 0
        for number, size in zip(blocks, sizes, strict=True):
            if group and total + size > AT_ONCE:
                yield group
                group, total = [], 0
            group.append(number)
            total += size
        if group:
            yield group


class MappedSegment(RangedSegment):
    """A local segment: its blocks are mapped, and verified when they are first needed.

    Who takes over a slice of it need not read the rest.
    """

    def __init__(self, storage: Storage, ref: SegmentRef) -> None:
        super().__init__(storage, ref)
        self._data = storage.read(ref.name)
        self._open: dict[int, tuple[pa.Table, Index]] = {}

    def _opened(self, number: int) -> tuple[pa.Table, Index]:
        if number not in self._open:
            block = self._blocks[number]
            table = self._table(block, None, self._data.slice(block.start, block.end - block.start))
            self._open[number] = table, index_of(table.to_batches()[0], (*self._key, number))
        return self._open[number]

    def _indexes(self, blocks: Sequence[int]) -> Iterator[tuple[int, Index]]:
        return ((number, self._opened(number)[1]) for number in blocks)

    def tables(self, blocks: Sequence[int], keep: bool = True) -> Iterator[tuple[int, pa.Table]]:
        return ((number, self._opened(number)[0]) for number in blocks)

    def samples(self, stride: int) -> Iterator[tuple[U64, int]]:
        every = self._indexes(range(len(self._blocks)))
        return ((index.key_hash[::stride], min(stride, len(index.key_hash))) for _, index in every)


def open_segment(storage: Storage, ref: SegmentRef) -> Segment:
    """Return a segment, kept open in this process: its file never changes."""
    global _opened
    key = (storage.location, ref.name)
    cache = MAPS if storage.is_local else BYTES
    segment: Segment | None = cache.get(key)  # type: ignore[assignment]
    if segment is not None and segment.ref == ref:
        return segment
    by_block = ref.directory is not None and ref.bytes > BY_RANGE
    if storage.is_local:
        segment = MappedSegment(storage, ref) if by_block else WholeSegment(storage, ref)
        cache.put(key, segment, 1)
        _opened += 1
        unmap_deleted(LOOK_AFTER)
    elif by_block:
        segment = RangedSegment(storage, ref)
        cache.put(key, segment, segment.weight)
    else:
        segment = WholeSegment(storage, ref)
        cache.put(key, segment, ref.bytes)
    return segment


def unmap_deleted(after: int = 0) -> None:
    """Let go of mapped files that have been deleted: until then the system keeps their place on disk.

    Nobody tells a worker which segments a driver has deleted, so it looks, every ``LOOK_AFTER`` segments that it opens.
    That takes some milliseconds; who has time may look before, ``after`` fewer.
    """
    global _opened
    if _opened >= after:
        _opened = 0
        MAPS.discard(lambda key: not os.path.exists("/".join(key)))
