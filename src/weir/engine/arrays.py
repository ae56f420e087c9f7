"""Arrow files in a checkpoint that carry their own description: tables, and dicts of NumPy arrays."""

from __future__ import annotations

import io
import zlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from weir.engine.documents import FileRef
from weir.state.storage import Storage


def write_table(storage: Storage, name: str, table: pa.Table) -> FileRef:
    """Write a table as one Arrow file that a plan, a report or a commit may name."""
    pieces = _Pieces()
    with pa.ipc.new_file(pa.PythonFile(pieces, "w"), table.schema) as writer:
        writer.write_table(table)
    # what the table holds is not copied; object stores get it in one, and try that again
    storage.write_chunks(name, pieces.chunks if storage.is_local else [b"".join(pieces.chunks)])
    return FileRef(name, table.num_rows, pieces.size, pieces.crc)


class _Pieces(io.BytesIO):
    """A file that keeps what is written to it as it comes: Arrow hands its buffers over without copying them."""

    def __init__(self) -> None:
        self.chunks: list[bytes | pa.Buffer] = []
        self.size = self.crc = 0

    def write(self, chunk: Any) -> int:
        self.chunks.append(chunk)
        self.size, self.crc = self.size + len(memoryview(chunk)), zlib.crc32(chunk, self.crc)
        return len(memoryview(chunk))


def read_table(storage: Storage, ref: FileRef, schema: pa.Schema | None = None) -> pa.Table:
    """Return what :func:`write_table` wrote, in columns of other types if a schema says so."""
    table = pa.ipc.open_file(storage.read_checked(ref.name, ref.bytes, ref.crc)).read_all()
    return table if schema is None else table.cast(schema)


def table_schema(storage: Storage, ref: FileRef) -> pa.Schema:
    """Return the columns of a file from :func:`write_table`."""
    return pa.ipc.open_file(storage.read_checked(ref.name, ref.bytes, ref.crc)).schema


def save_arrays(storage: Storage, name: str, state: dict[str, Any]) -> FileRef:
    """Write a dict of NumPy arrays and JSON values as one Arrow file."""
    plain, columns, shapes = {}, {}, {}
    for key, value in state.items():
        if isinstance(value, np.ndarray):
            numbers = pa.array(value.ravel())
            columns[key] = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)
            shapes[key] = list(value.shape)
        else:
            plain[key] = value
    table = pa.table(columns) if columns else pa.table({"__empty": pa.array([0])})
    about = msgspec.json.encode({"plain": plain, "shapes": shapes})
    return write_table(storage, name, table.replace_schema_metadata({b"weir": about}))


def load_arrays(storage: Storage, ref: FileRef) -> dict[str, Any]:
    """Back from :func:`save_arrays`."""
    table = read_table(storage, ref)
    about = msgspec.json.decode(table.schema.metadata[b"weir"])
    out: dict[str, Any] = dict(about["plain"])
    for key, shape in about["shapes"].items():
        out[key] = np.array(table[key][0].values.to_numpy(zero_copy_only=False)).reshape(shape)
    return out
