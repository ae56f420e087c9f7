"""Arrow files in a checkpoint that carry their own description: tables, and dicts of NumPy arrays."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from weir.engine.documents import FileRef
from weir.state.storage import Storage


def write_table(storage: Storage, name: str, table: pa.Table) -> FileRef:
    """Write a table as one Arrow file that a plan, a report or a commit may name."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, table.schema) as writer:
        writer.write_table(table)
    data = buffer.getvalue()
    storage.write(name, data)
    return FileRef(name, table.num_rows, data.size, zlib.crc32(data))


def table_schema(storage: Storage, ref: FileRef) -> pa.Schema:
    """Return the columns of a file from :func:`write_table`."""
    return pa.ipc.open_file(storage.read_checked(ref.name, ref.bytes, ref.crc)).schema


def save_arrays(storage: Storage, name: str, state: dict[str, Any]) -> FileRef:
    """Write a dict of NumPy arrays and JSON values as one Arrow file."""
    plain, columns, shapes = {}, {}, {}
    for key, value in state.items():
        if isinstance(value, np.ndarray):
            columns[key] = pa.array([value.ravel()])
            shapes[key] = list(value.shape)
        else:
            plain[key] = value
    table = pa.table(columns) if columns else pa.table({"__empty": pa.array([0])})
    about = msgspec.json.encode({"plain": plain, "shapes": shapes})
    return write_table(storage, name, table.replace_schema_metadata({b"weir": about}))


def load_arrays(storage: Storage, ref: FileRef) -> dict[str, Any]:
    """Back from :func:`save_arrays`."""
    table = pa.ipc.open_file(storage.read_checked(ref.name, ref.bytes, ref.crc)).read_all()
    about = msgspec.json.decode(table.schema.metadata[b"weir"])
    out: dict[str, Any] = dict(about["plain"])
    for key, shape in about["shapes"].items():
        out[key] = np.array(table[key][0].values.to_numpy(zero_copy_only=False)).reshape(shape)
    return out
