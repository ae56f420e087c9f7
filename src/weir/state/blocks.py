"""Segments in blocks, so that a reader fetches and verifies what it needs and not the rest.

A block is one record batch of the segment's Arrow file. Its system columns come first, so the bytes of a block up to
some middle are all that a search needs. Blocks are in the order of the hashes and no hash is in two of them. Before
the footer of the Arrow file, where readers of Arrow files do not look, stands a directory: of each block its place,
lowest and highest hash, earliest deadline, and the checksums of both of its halves. The commit names the directory
with its checksum, so that every byte that is read by range is verified like a file that is read whole.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.state.cache import BYTES
from weir.state.columns import DEAD, DEADLINE, H1, H2, NEVER
from weir.state.index import I64, U64, bits_at
from weir.state.refs import BlockRef, Directory, SegmentRef

ROWS = 1 << 16
BYTES_OF_BLOCK = 8 << 20
BYTES_OF_LOCAL_BLOCK = 16 << 20  # that only have to be verified: the fewer, the faster a search


class Index(NamedTuple):
    """The system columns of a block, where they are in memory."""

    key: tuple[object, ...]  # by which decoded columns are kept
    key_hash: U64
    key_check: U64
    deadline: I64
    bits: NDArray[np.uint8]  # which entries are tombstones
    bit: int  # where in ``bits`` the first entry's is

    def dead(self, rows: I64) -> NDArray[np.bool_]:
        """Return which of some rows are tombstones."""
        return bits_at(self.bits, self.bit, rows)

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
        np.frombuffer(bits, np.uint8) if bits is not None else np.empty(0, np.uint8),
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
        np.frombuffer(data, np.uint8, (rows + 7) // 8, at),
        0,
    )


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


class _Pieces(io.RawIOBase):
    """Gathers what is written to it until somebody takes it."""

    def __init__(self) -> None:
        self.position = 0
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._pieces.append(data)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


class SegmentWriter:
    """Turns sorted tables into the bytes of a segment, one block after the other.

    The bytes are those that :meth:`block` returns, in the order of the calls, and then those of :meth:`finish`.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = _Pieces()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), schema)
        self._blocks: list[BlockRef] | None = []  # None: laid out in a way that can't be read by range
        self._rows, self._bytes, self._crc, self._min_deadline = 0, 0, 0, int(NEVER)
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
        self._crc = zlib.crc32(data, self._crc)
        return data

    def ref(self, name: str) -> SegmentRef:
        """Return what names the segment, after its last byte."""
        return SegmentRef(name, self._rows, self._bytes, self._crc, self._min_deadline, self._directory)
