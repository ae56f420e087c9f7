"""Routing tables in files: one Arrow file each, checksummed, written whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from weir.errors import CheckpointError, CheckpointMismatch
from weir.hashing import hash_columns

FORMAT = 1
HASH, SERVER = "hash", "server"
_META = b"weir.table"
_RESERVED = {HASH, SERVER}


def write_table(
    table: pa.Table, about: dict[str, Any], path: str | Path, filesystem: pafs.FileSystem | None = None
) -> None:
    """Write the columns of a table, with ``about`` in the metadata; a local file is renamed into place."""
    about = {"format": FORMAT, **about}
    about["checksum"] = _checksum(table, about)
    table = table.replace_schema_metadata({_META: msgspec.json.encode(about)})
    files, place = _open(path, filesystem)
    part = place + ".part"
    with files.open_output_stream(part) as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    files.move(part, place)


def read_table(
    path: str | Path,
    *,
    n: int | None = None,
    filesystem: pafs.FileSystem | None = None,
) -> tuple[pa.Table, pa.Table | None, dict[str, Any]]:
    """Return the hashes and homes of a table, its readable keys if it has any, and its metadata.

    Raises :class:`~weir.errors.CheckpointError` for a file that is missing, damaged or too new, and
    :class:`~weir.errors.CheckpointMismatch` for one of another number of servers.
    """
    files, place = _open(path, filesystem)
    try:
        with files.open_input_file(place) as source:
            table = pa.ipc.open_file(source).read_all()
        about = msgspec.json.decode(table.schema.metadata[_META])
        newer = int(about["format"]) > FORMAT
        sound = newer or about["checksum"] == _checksum(table, about)
    except FileNotFoundError:
        raise CheckpointError(f"no routing table at {path}: check the path") from None
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a routing table or is damaged ({error}): restore the file or make it again"
        ) from error
    if newer:
        raise CheckpointError(
            f"{path} has table format {about['format']}, this version of Weir reads up to {FORMAT}: "
            "upgrade Weir"
        )
    if not sound:
        raise CheckpointError(f"{path} is damaged, its checksum doesn't match: restore or make it again")
    if n is not None and about["n"] not in (None, n):
        raise CheckpointMismatch(
            f"{path} is for {about['n']} servers, not for {n}: "
            f"start with servers={about['n']} or make it again"
        )
    readable = [c for c in table.column_names if c not in _RESERVED]
    return table.select([HASH, SERVER]), table.select(readable) if readable else None, about


def _open(path: str | Path, filesystem: pafs.FileSystem | None) -> tuple[pafs.FileSystem, str]:
    if filesystem is not None:
        return filesystem, str(path)
    return pafs.FileSystem.from_uri(str(path) if "://" in str(path) else str(Path(path).resolve()))


def _checksum(table: pa.Table, about: dict[str, Any]) -> str:
    # over values, not over file bytes: how Arrow lays a file out may change between its versions
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode({k: v for k, v in sorted(about.items()) if k != "checksum"}))
    for name in table.column_names:
        column = table.column(name)
        values = column.to_numpy() if name in _RESERVED else hash_columns([column])
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
