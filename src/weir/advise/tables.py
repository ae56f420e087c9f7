"""Write the routing tables to start a query with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from weir.advise.counts import Counted
from weir.errors import WeirError
from weir.hashing import hash_columns
from weir.routing.table import Table
from weir.routing.table_file import HASH, SERVER


def save(counted: Counted, tables: Sequence[Table], folder: str) -> dict[str, str]:
    """Write one readable table per operator, for ``weir.Locality(start=folder)``; return the files by operator."""
    files = {}
    for keys, table in zip(counted.keys, tables, strict=True):
        servers = table.find(hash_columns(keys.columns))
        listed = servers >= 0
        # columns of these names would collide with the table's own; only their types matter to the engine
        names = [f"key_{name}" if name in (HASH, SERVER) else name for name in keys.column_names]
        readable = keys.filter(pa.array(listed)).rename_columns(names)
        file = f"{folder.rstrip('/')}/{table.operator}.arrow"
        Table.from_keys(
            readable, servers[listed].astype(np.int32), n=table.n, operator=table.operator, version=1
        ).save(file)
        files[table.operator] = file
    return files


def check_folder(folder: str) -> None:
    """Create a folder, on any file system that pyarrow reaches, and refuse one that cannot be written to."""
    try:
        uri = folder if "://" in folder else str(Path(folder).resolve())
        files, path = pafs.FileSystem.from_uri(uri)
        files.create_dir(path, recursive=True)
        probe = f"{path}/.weir-probe"
        files.open_output_stream(probe).close()
        files.delete_file(probe)
    except (OSError, pa.ArrowInvalid) as error:
        raise WeirError(
            f"out {folder}: can't write there ({error}); name a folder you may write to"
        ) from error
