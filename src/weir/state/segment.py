"""Keyed state as immutable sorted segments.

The state of one operator on one server is a short list of segments, oldest first; the newest entry of a key
counts. A batch adds one segment with the keys that it touched. Nothing is ever changed in place, so a task
that runs twice, or a zombie, can do no harm: only segments named in a commit exist.

A segment is an Arrow file sorted by the key's hash. Looking up the keys of a batch is a binary search per
segment over memory-mapped columns: no store to open, nothing to rebuild when a server wakes up on another
host, no work per stored key. Merging runs of segments keeps their number logarithmic. Large segments are written
in blocks, so that a reader fetches and verifies what it needs and not the rest.

A block is one record batch of the segment's Arrow file. Its system columns come first, so the bytes of a block up to
some middle are all that a search needs. Blocks are in the order of the hashes and no hash is in two of them. Before
the footer of the Arrow file, where readers of Arrow files do not look, stands a directory: of each block its place,
lowest and highest hash, earliest deadline, and the checksums of both of its halves. The commit names the directory
with its checksum, so that every byte that is read by range is verified like a file that is read whole.

This replaces a local key-value store with committed base versions: there is no base that could be behind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.state.cache import BYTES
from weir.state.index import I64, U64, bits_at, hash_order
from weir.state.storage import Pieces, Storage

H1, H2, DEAD, DEADLINE = "__h1", "__h2", "__dead", "__deadline"
SYSTEM = (
    pa.field(H1, pa.uint64(), nullable=False),
    pa.field(H2, pa.uint64(), nullable=False),
    pa.field(DEAD, pa.bool_(), nullable=False),
    pa.field(DEADLINE, pa.int64(), nullable=False),
)
NEVER = np.iinfo(np.int64).max


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return entries with the columns of a schema that may have gained some since they were written: null there.

    >>> completed(pa.table({"n": [1]}), pa.schema([("n", pa.int64()), ("more", pa.string())])).to_pydict()
    {'n': [1], 'more': [None]}
    """
    if table.schema.names == schema.names:
        return table
    held = set(table.column_names)
    columns = [table[f.name] if f.name in held else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a segment that stores ``schema``."""
    return pa.schema([*SYSTEM, *schema])


# a driver of a thousand servers holds a million of them: the garbage collector need not look at what refers to nothing
class SegmentRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names a segment in a commit: all that is needed to find and verify it."""

    name: str
    rows: int
    bytes: int
    crc: int
    min_deadline: int = NEVER
    directory: tuple[int, int, int] | None = None  # start, length and checksum of the list of its blocks
    # first and last hash of the slices that count; None: all of it
    ranges: tuple[tuple[int, int], ...] | None = None
    share: float = 1.0  # the part of its entries that these hold, about

    @property
    def whole(self) -> SegmentRef:
        """The segment without its limits."""
        return self if self.ranges is None else msgspec.structs.replace(self, ranges=None, share=1.0)

    def sliced(self, ranges: Sequence[tuple[int, int]], share: float) -> SegmentRef | None:
        """Return the part of it within some ranges, which is about this share of it; None if there is none.

        >>> ref = SegmentRef("s", 100, 0, 0).sliced([(0, 9), (20, 29)], 0.5)
        >>> ref.ranges, ref.sliced([(5, 24)], 0.4).ranges, ref.sliced([(12, 15)], 0.1)
        (((0, 9), (20, 29)), ((5, 9), (20, 24)), None)
        """
        own = ((0, (1 << 64) - 1),) if self.ranges is None else self.ranges
        both = [(max(a, c), min(b, d)) for a, b in own for c, d in ranges if max(a, c) <= min(b, d)]
        return msgspec.structs.replace(self, ranges=tuple(both), share=self.share * share) if both else None

    @property
    def entries(self) -> int:
        """How many entries it counts for, about."""
        return self.rows if self.ranges is None else max(1, round(self.rows * self.share))

    def holds(self, key_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which hashes lie in its slices."""
        if self.ranges is None:
            return np.ones(len(key_hash), np.bool_)
        bounds = np.array(self.ranges, np.uint64)
        at = np.searchsorted(bounds[:, 0], key_hash, "right") - 1
        return (at >= 0) & (key_hash <= bounds[at, 1])


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """One block of a segment: a record batch, the system columns at its front."""

    rows: int
    first: int  # the lowest h1
    last: int  # the highest
    min_deadline: int
    start: int  # where it begins in the file
    middle: int  # where its system columns end
    end: int
    index_crc: int  # of the bytes up to the middle
    data_crc: int  # of those after it


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of a segment, in the order of their hashes."""

    schema: bytes
    blocks: list[BlockRef]


ROWS = 1 << 16
BYTES_OF_BLOCK = 8 << 20
BYTES_OF_LOCAL_BLOCK = 16 << 20  # that only have to be verified: the fewer, the faster a search


class Index(NamedTuple):
    """The system columns of a block, where they are in memory."""

    key: tuple[object, ...]  # by which decoded columns are kept
    key_hash: U64
    key_check: U64
    deadline: I64
    bits: NDArray[np.uint8]  # which entries are tombstones; empty: none is
    bit: int  # where in ``bits`` the first entry's is

    def dead(self, rows: I64) -> NDArray[np.bool_]:
        """Return which of some rows are tombstones."""
        return bits_at(self.bits, self.bit, rows) if len(self.bits) else np.zeros(len(rows), np.bool_)

    def by_deadline(self) -> tuple[I64, I64]:
        """Return the deadlines in order, and the rows that they belong to."""
        return BYTES.get_or_make(
            (*self.key, "by deadline"), self._sort, lambda columns: sum(c.nbytes for c in columns)
        )

    def _sort(self) -> tuple[I64, I64]:
        order = np.argsort(self.deadline, kind="stable")
        return self.deadline[order], order


def index_of(batch: pa.RecordBatch, key: tuple[object, ...]) -> Index:
    """Return the system columns of a record batch, without a copy."""
    dead = batch.column(DEAD)
    bits = dead.buffers()[1]
    return Index(
        key,
        batch.column(H1).to_numpy(),
        batch.column(H2).to_numpy(),
        batch.column(DEADLINE).to_numpy(),
        _some(np.frombuffer(bits, np.uint8) if bits is not None else np.empty(0, np.uint8)),
        dead.offset,
    )


def index_in(data: pa.Buffer, rows: int, key: tuple[object, ...]) -> Index:
    """Return the system columns from the bytes of a block up to its middle."""
    body = _body(data)
    at = body + 16 * rows
    return Index(
        key,
        np.frombuffer(data, np.uint64, rows, body),
        np.frombuffer(data, np.uint64, rows, body + 8 * rows),
        np.frombuffer(data, np.int64, rows, at + _padded_bits(rows)),
        _some(np.frombuffer(data, np.uint8, (rows + 7) // 8, at)),
        0,
    )


def _some(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return bits if bits.any() else bits[:0]


def _body(block: pa.Buffer) -> int:
    """Return where in the bytes of a record batch its columns begin: after a marker, a length, and its metadata."""
    return 8 + int.from_bytes(block[4:8].to_pybytes(), "little")


def _padded_bits(rows: int) -> int:
    return (rows + 63) // 64 * 8


def cut(table: pa.Table, local: bool = False) -> Iterator[pa.Table]:
    """Yield a sorted table in pieces of the size of a block; entries with one ``h1`` stay together."""
    total = table.num_rows
    most, limit = (total, BYTES_OF_LOCAL_BLOCK) if local else (ROWS, BYTES_OF_BLOCK)
    size = int(max(1, min(most, limit * total // max(1, table.nbytes))))
    key_hash = table[H1].to_numpy()
    start = 0
    while start < total:
        end = min(start + size, total)
        if end < total:
            end = int(np.searchsorted(key_hash, key_hash[end - 1], "right"))
        yield table.slice(start, end - start)
        start = end


class SegmentWriter:
    """Turns sorted tables into the bytes of a segment, one block after the other.

    The bytes are those that :meth:`block` returns, in the order of the calls, and then those of :meth:`finish`.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = Pieces()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), schema)
        self._blocks: list[BlockRef] | None = []  # None: laid out in a way that can't be read by range
        self._rows, self._bytes, self._min_deadline = 0, 0, int(NEVER)
        self._directory: tuple[int, int, int] | None = None

    def block(self, table: pa.Table) -> bytes:
        """Return the bytes of the next block: entries in order, their hashes above those of the block before."""
        batches = table.combine_chunks().to_batches()
        for batch in batches:
            self._writer.write_batch(batch)
        before = self._bytes
        data = self._take()
        self._rows += table.num_rows
        if table.num_rows:
            self._min_deadline = min(self._min_deadline, pc.min(table[DEADLINE]).as_py())
        if len(batches) == 1 and self._blocks is not None:
            start = self._bytes - pa.ipc.get_record_batch_size(batches[0])
            self._list(batches[0], pa.py_buffer(data).slice(start - before), start)
        elif batches:
            self._blocks = None
        return data

    def _list(self, batch: pa.RecordBatch, data: pa.Buffer, start: int) -> None:
        rows, own = batch.num_rows, index_of(batch, ())
        middle = _body(data) + 24 * rows + _padded_bits(rows)
        written = index_in(data, rows, ())
        every = np.arange(rows)
        if not (
            np.array_equal(own.key_hash, written.key_hash)
            and np.array_equal(own.key_check, written.key_check)
            and np.array_equal(own.deadline, written.deadline)
            and np.array_equal(own.dead(every), written.dead(every))
        ):  # a pyarrow that lays columns out otherwise
            self._blocks = None
            return
        block = BlockRef(
            rows,
            int(own.key_hash[0]),
            int(own.key_hash[-1]),
            int(own.deadline.min()),
            start,
            start + middle,
            start + data.size,
            zlib.crc32(data.slice(0, middle)),
            zlib.crc32(data.slice(middle)),
        )
        assert self._blocks is not None
        self._blocks.append(block)

    def finish(self) -> bytes:
        """Return the last bytes of the segment."""
        if self._blocks:
            directory = msgspec.msgpack.encode(Directory(self._schema.serialize().to_pybytes(), self._blocks))
            self._directory = (self._bytes, len(directory), zlib.crc32(directory))
            self._sink.write(directory + bytes(-len(directory) % 8))
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        data = self._sink.take()
        self._bytes += len(data)
        return data

    def ref(self, name: str) -> SegmentRef:
        """Return what names the segment, after its last byte."""
        return SegmentRef(name, self._rows, self._bytes, self._sink.crc, self._min_deadline, self._directory)


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
    found = hash_order(key_hash, key_check)  # stable, so the newest of equal keys comes last
    if found is not None:
        order, first = found
        return table.take(pa.array(order[np.append(first[1:], len(order)) - 1])).combine_chunks()
    order = np.lexsort((key_check, key_hash))
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
