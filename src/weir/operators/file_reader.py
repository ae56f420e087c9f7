"""The rows of a file: chosen columns, chunk by chunk, and a clear error if it is not what was announced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from weir.columns import canonical_type
from weir.errors import SourceError

CHUNK_ROWS = 1 << 16
# memory that was just used is at hand; hundreds of fresh megabytes cost more than reading them
CHUNK_BYTES = 4 << 20
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # how writers spell null in a folder's name

_systems: dict[str, tuple[pafs.FileSystem, str]] = {}


def open_path(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path as Hadoop spells it, and the path as that file system spells it.

    >>> open_path("file:/data/part=1/a b.parquet")[1], open_path("/data/x")[1]
    ('/data/part=1/a b.parquet', '/data/x')
    """
    parts = re.match(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?(.*)", path, re.DOTALL)
    if parts is None or parts[1] == "file":
        return pafs.LocalFileSystem(), path if parts is None else parts[3]
    scheme = "s3" if parts[1] in ("s3a", "s3n") else parts[1]
    where = f"{scheme}://{parts[2] or ''}/"
    if where not in _systems:
        _systems[where] = pafs.FileSystem.from_uri(where)
    system, root = _systems[where]
    return system, root.rstrip("/") + parts[3]


def read_file(
    path: str, format: str, schema: pa.Schema, *, size: int | None = None, modified: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file with exactly the columns of a schema, some ten thousand at a time.

    ``size`` and ``modified`` (µs) are what the listing said of the file. One that has changed since is refused: tasks
    that Spark runs again must find what the first run found.

    >>> import tempfile
    >>> name = tempfile.mkdtemp() + "/day=7/posts.arrow"
    >>> import os; os.makedirs(os.path.dirname(name))
    >>> with pa.ipc.new_file(name, pa.schema([("place", pa.string())])) as out:
    ...     out.write(pa.record_batch({"place": ["FR", "US"]}))
    >>> wanted = pa.schema([("place", pa.string()), ("day", pa.int32())])
    >>> [batch.to_pydict() for batch in read_file(name, "arrow", wanted)]
    [{'place': ['FR', 'US'], 'day': [7, 7]}]
    """
    system, name = open_path(path)
    _check_unchanged(system, name, path, size, modified)
    try:
        with system.open_input_file(name) as file:
            if format == "parquet":
                yield from _parquet(system, file, path, schema)
            else:
                yield from _arrow(file, path, schema)
    except FileNotFoundError:
        raise vanished(path) from None
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"{path}: cannot be read as {format}: {_first_line(error)}. Fix or remove the file; "
            "nothing of this batch has been committed."
        ) from error


def file_schema(path: str, format: str) -> pa.Schema:
    """Return the columns of one file."""
    system, name = open_path(path)
    try:
        with system.open_input_file(name) as file:
            return pq.read_schema(file) if format == "parquet" else pa.ipc.open_file(file).schema
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot be read as {format}: {_first_line(error)}") from error


def _check_unchanged(
    system: pafs.FileSystem, name: str, path: str, size: int | None, modified: int | None
) -> None:
    if size is None and modified is None:
        return
    info = system.get_file_info(name)
    if info.type != pafs.FileType.File:
        raise vanished(path)
    # only local files have their time in full; other systems round it to seconds on one side or the other
    unit = 1_000 if isinstance(system, pafs.LocalFileSystem) else 1_000_000
    then = None if modified is None else modified // unit
    now = None if info.mtime is None else info.mtime_ns // 1000 // unit
    if (size is not None and info.size != size) or (then is not None and now is not None and now != then):
        listed = "?" if modified is None else str(datetime.fromtimestamp(modified / 1e6, UTC))
        raise SourceError(
            f"{path}: was changed after it was listed (listed with {size} bytes of {listed}, found with "
            f"{info.size} bytes of {info.mtime}). Write files elsewhere and move them here when they are whole; "
            "never change one that is here. Nothing of this batch has been committed."
        )


def vanished(path: str) -> SourceError:
    """Return what to say of a file that was listed and is no longer there."""
    return SourceError(
        f"{path}: is gone, but the batch was planned to read it. Restore the file, and leave files where they are "
        "until their batch is committed. Nothing of this batch has been committed."
    )


def _parquet(
    system: pafs.FileSystem, file: pa.NativeFile, path: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    # reading ahead pays over a network; from a disk it only fills memory with whole row groups
    near = isinstance(system, pafs.LocalFileSystem)
    source = pq.ParquetFile(file, pre_buffer=not near, buffer_size=CHUNK_BYTES if near else 0)
    names = _present(source.schema_arrow, path, schema)
    if not names:
        for group in range(source.metadata.num_row_groups):
            yield from _shaped(source.metadata.row_group(group).num_rows, {}, path, schema)
        return
    rows = _rows_at_once(source.metadata.num_rows, _parquet_bytes(source.metadata, names))
    for batch in source.iter_batches(batch_size=rows, columns=names, use_threads=False):
        # a name chosen by the caller may be a prefix of a nested column's; take top-level columns only
        yield from _shaped(batch.num_rows, {n: batch.column(n) for n in names}, path, schema)


def _parquet_bytes(metadata: pq.FileMetaData, names: list[str]) -> int:
    """Return what some columns take in memory, about."""
    size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema.split(".")[0] in names:
                size += column.total_uncompressed_size
    return size


def _rows_at_once(rows: int, size: int) -> int:
    """Return how many rows to take at a time, of so many that take so many bytes.

    >>> _rows_at_once(1_000_000, 20_000_000), _rows_at_once(1000, 8_000_000), _rows_at_once(0, 0)
    (65536, 524, 65536)
    """
    each = size / rows if rows else 0.0
    return max(1, int(min(CHUNK_ROWS, CHUNK_BYTES / each if each else CHUNK_ROWS)))


def _arrow(file: pa.NativeFile, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    names = _present(pa.ipc.open_file(file).schema, path, schema)
    wanted = sorted(pa.ipc.open_file(file).schema.get_field_index(n) for n in names)
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    source = pa.ipc.open_file(file, options=options) if wanted else pa.ipc.open_file(file)
    for number in range(source.num_record_batches):
        batch = source.get_batch(number)
        rows = _rows_at_once(batch.num_rows, batch.nbytes)
        for start in range(0, batch.num_rows, rows):
            part = batch[start : start + rows]
            yield from _shaped(part.num_rows, {n: part.column(n) for n in names}, path, schema)


def _present(columns: pa.Schema, path: str, schema: pa.Schema) -> list[str]:
    """Return the wanted columns that the file has; all others must be in its path."""
    for field in schema:
        count = len(columns.get_all_field_indices(field.name))
        if count > 1:
            raise SourceError(f"{path}: has {count} columns named {field.name!r}; rename them")
        if count == 0 and _in_path(path, field.name) is None:
            raise SourceError(
                f"{path}: has no column {field.name!r}, which schema= wants; it has {', '.join(columns.names)}. "
                "Files of one source must have the same columns."
            )
        if count and not fits(columns.field(field.name).type, field.type):
            raise SourceError(
                f"{path}: column {field.name!r} is {columns.field(field.name).type}, where schema= says {field.type}. "
                "Files of one source must have the same types."
            )
    return [f.name for f in schema if f.name in columns.names]


def fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether values of a type can become another without a change of meaning.

    >>> fits(pa.int32(), pa.int64()), fits(pa.int64(), pa.int32())
    (True, False)
    >>> fits(pa.dictionary(pa.int8(), pa.string()), pa.string())
    True
    """
    if pa.types.is_dictionary(have):
        return fits(have.value_type, want)
    have = canonical_type(have)
    if have == want:
        return True
    types = pa.types
    for family in (types.is_signed_integer, types.is_floating):
        if family(have) and family(want):
            return bool(have.bit_width <= want.bit_width)
    if types.is_list(want) and (types.is_list(have) or types.is_large_list(have)):
        return fits(have.value_type, want.value_type)
    if types.is_struct(want) and types.is_struct(have):
        return [f.name for f in have] == [f.name for f in want] and all(
            fits(a.type, b.type) for a, b in zip(have, want, strict=True)
        )
    return bool(types.is_map(want) and types.is_map(have))


def _shaped(
    rows: int, columns: dict[str, pa.Array], path: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    if not rows:
        return
    arrays = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.repeat(_from_path(path, field), rows)
        elif column.type != field.type:
            column = column.cast(field.type)
        arrays.append(column)
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_path(path: str, column: str) -> str | None:
    for part in reversed(path.split("/")[:-1]):
        name, equals, value = part.partition("=")
        if equals and unquote(name) == column:
            return unquote(value)
    return None


def _from_path(path: str, field: pa.Field) -> pa.Scalar:
    value = _in_path(path, field.name)
    if value == NO_VALUE:
        return pa.scalar(None, field.type)
    try:
        return pa.scalar(value).cast(field.type)
    except pa.ArrowException:
        raise SourceError(
            f"{path}: column {field.name!r} comes from the path, but {value!r} is no {field.type}"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
