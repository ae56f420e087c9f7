"""Sources of files: which there are, how a round of them is cut into batches, and the operator that reads them.

Servers read what is assigned to them: what travels to them are paths.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from weir.columns import canonical, canonical_type
from weir.errors import SourceError, TopologyError, did_you_mean
from weir.extras import require
from weir.operators.base import Operator
from weir.operators.instance import Context, Instance
from weir.rows import Rows, one_batch
from weir.state.location import HDFS

PATH, PARTITION, BYTES, MODIFIED = "path", "partition", "bytes", "modified"
LISTING = pa.schema(
    [
        (PATH, pa.string()),
        (PARTITION, pa.string()),
        (BYTES, pa.int64()),
        (MODIFIED, pa.timestamp("us", "UTC")),
    ]
)
SENT_BYTES = 16 << 20
FORMATS = ("parquet", "arrow")


class SourceReader(Operator):
    """Base of operators that get a listing, a few small rows, and emit the rows of what it names.

    It keeps no state, so a partition may be read elsewhere from one batch to the next at no cost.
    """

    reads_source = True
    recurs = True
    listing: ClassVar[pa.Schema]
    schema: pa.Schema

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return set(self.listing.names)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return self.schema


@dataclass(frozen=True)
class Read(SourceReader):
    """Turns paths of files into their rows, on the server that the file's partition is assigned to.

    What reaches it is one row per file (:data:`LISTING`). Use :func:`weir.files`, which makes the listing.

    A column of the schema that a file lacks is taken from its path (``…/day=7/…``). The format ``"arrow"`` is
    Arrow's file format, also called Feather 2. ``base`` is the folder that files are looked for in, to tell a
    partition's folder from it ("" if unknown); ``recurs`` says whether partitions come back with new files, so that
    something can be learnt about them. A batch reads ``max_bytes`` of files at most, or a single file.
    """

    schema: pa.Schema
    format: str = "parquet"
    base: str = ""
    recurs: bool = True
    max_bytes: int | None = None

    listing: ClassVar[pa.Schema] = LISTING

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise TopologyError(f"format={self.format!r}: {did_you_mean(self.format, FORMATS)}")
        if not len(self.schema):
            raise TopologyError("files need at least one column to be read")

    def instance(self, context: Context) -> Instance:
        return _ReadInstance(context)


class _ReadInstance(Instance):
    """Read the files that are assigned to its server; rows come from the partition of their file."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        operator, schema = self.operator, self.node.rows_out
        listed = [rows.column(c).to_pylist() for c in (PATH, PARTITION, BYTES)]
        listed.append(rows.column(MODIFIED).cast(pa.int64()).to_pylist())
        hashes = rows.hash(self.node.key)
        kept: list[pa.RecordBatch] = []
        origins: list[NDArray[np.uint64]] = []
        count = size = 0
        # small files are put together: what one of them sends to one server would be a message of few rows
        for at in np.argsort(np.array(listed[0], object)):
            path, partition, length, modified = (column[at] for column in listed)
            self._check(operator, path, partition)
            for batch in read_file(path, operator.format, schema, size=length, modified=modified):
                kept.append(batch)
                origins.append(np.full(batch.num_rows, hashes[at]))
                count, size = count + batch.num_rows, size + batch.nbytes
                if count >= CHUNK_ROWS or size >= SENT_BYTES:
                    yield self._together(kept, origins)
                    kept, origins, count, size = [], [], 0, 0
        if kept:
            yield self._together(kept, origins)

    def _check(self, operator: Read, path: str, partition: str | None) -> None:
        if not partition:
            raise SourceError(
                f"{path}: the pattern by= finds no partition in this path; fix it, or move the file"
            )
        if operator.base and path.rpartition("/")[0] == operator.base:
            raise SourceError(
                f'{path}: lies in no folder of its own, which by="folder" takes for its partition; put files into '
                'folders by partition, or say by="file" or by=r"a pattern with a (group)"'
            )

    def _together(self, batches: list[pa.RecordBatch], origins: list[NDArray[np.uint64]]) -> Rows:
        batch = one_batch(batches)
        self.report.rows_in += batch.num_rows
        self.report.rows_out += batch.num_rows
        return Rows(batch, origin=(self.node.name, np.concatenate(origins)))


CHUNK_ROWS = 1 << 16
# memory that was just used is at hand; hundreds of fresh megabytes cost more than reading them
CHUNK_BYTES = 4 << 20
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # how writers spell null in a folder's name

_systems: dict[str, tuple[pafs.FileSystem, str]] = {}


def hdfs(where: str) -> pafs.FileSystem:
    """Return HDFS as a file system of Arrow's, with the client that checkpoints are written by."""
    client = require("hdfs_native.fsspec", "hdfs").HdfsFileSystem

    class Hdfs(client):  # type: ignore[misc,valid-type]
        def info(self, path: str, **options: Any) -> dict[str, Any]:
            found = super().info(path, **options)
            return {**found, "mtime": found["modification_time"] / 1e3}

    address = urlsplit(where)
    return pafs.PyFileSystem(pafs.FSSpecHandler(Hdfs(address.hostname, address.port)))


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
        _systems[where] = (hdfs(where), "") if scheme in HDFS else pafs.FileSystem.from_uri(where)
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
    if size is None or modified is None:
        return
    info = system.get_file_info(name)
    if info.type != pafs.FileType.File:
        raise vanished(path)
    # only local files have their time in full; other systems round it to seconds on one side or the other
    unit = 1_000 if isinstance(system, pafs.LocalFileSystem) else 1_000_000
    then = modified // unit
    now = then if info.mtime is None else info.mtime_ns // 1000 // unit
    if info.size != size or now != then:
        listed = datetime.fromtimestamp(modified / 1e6, UTC)
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
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in names)


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


def check_partition(by: str) -> None:
    """Raise a TopologyError unless ``by`` is ``"folder"``, ``"file"`` or a pattern with one group."""
    if by in ("folder", "file"):
        return
    try:
        groups = re.compile(by).groups
    except re.error as error:
        raise TopologyError(f"by={by!r} is no pattern: {error}") from None
    if groups != 1:
        raise TopologyError(
            f'by={by!r} is "folder", "file", or a pattern with one (group) that finds the partition in a path, '
            r'e.g. by=r"-(\d+)\.parquet"'
        )


def partition_of(path: str, by: str) -> str:
    """Return the partition that a file belongs to; "" if the pattern finds none.

    >>> path = "file:/data/part=3/x-07.parquet"
    >>> partition_of(path, "folder"), partition_of(path, "file"), partition_of(path, r"-(\\d+)\\.parquet")
    ('part=3', 'x-07.parquet', '07')
    """
    if by in ("folder", "file"):
        return path.split("/")[-2 if by == "folder" else -1]
    match = re.search(by, path)
    return "" if match is None else match[1] or ""


def list_files(paths: Iterable[Any], by: str) -> pa.Table:
    """Return one row per local file: its path, partition, size and time of change, as Spark's listing has them."""
    rows = []
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise SourceError(f"{path!r} is no path of a file")
        local = os.path.abspath(open_path(os.fspath(path))[1])
        try:
            info = os.stat(local)
        except OSError as error:
            raise SourceError(f"{path}: cannot be listed: {error.strerror}") from None
        listed = f"file:{local}"
        milliseconds = info.st_mtime_ns // 1_000_000  # Hadoop knows no finer time
        rows.append((listed, partition_of(listed, by), info.st_size, milliseconds * 1000))
    columns = zip(*rows, strict=True) if rows else [()] * len(LISTING)
    return pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns, LISTING, strict=True)], schema=LISTING
    )


def base_of(path: str) -> str:
    """Return a folder as it appears in the paths of its files; "" for a pattern of folders.

    >>> base_of("/data/posts/"), base_of("file:///data/posts"), base_of("/data/*/posts")
    ('file:/data/posts', 'file:/data/posts', '')
    """
    if re.search(r"[*?\[{]", path):
        return ""
    if path.startswith("file:"):
        path = open_path(path)[1]
    if "://" in path:
        return path.rstrip("/")
    return f"file:{os.path.abspath(path)}"


def columns_of(path: str, format: str) -> pa.Schema:
    """Return the columns of some file below a folder."""
    remedy = 'pass schema=, e.g. schema="place string, n long"'
    if not base_of(path):
        raise TopologyError(
            f"{path}: the columns of files found by a pattern of folders are not known; {remedy}"
        )
    path = path if "://" in path or path.startswith("file:") else os.path.abspath(path)
    system, name = open_path(path)
    info = system.get_file_info(name)
    if info.type == pafs.FileType.File:
        return canonical(file_schema(path, format))
    files = system.get_file_info(pafs.FileSelector(name, recursive=True, allow_not_found=True))
    for one in sorted(files, key=lambda i: i.path):
        hidden = any(p.startswith(("_", ".")) for p in one.path[len(name) :].strip("/").split("/"))
        if one.type == pafs.FileType.File and not hidden:
            return canonical(file_schema(path[: path.find(name)] + one.path, format))
    raise SourceError(f"{path}: there is no file yet to learn the columns from; {remedy}")


TICK, DONE, FILES, READ = "tick", "done", "files", "read"
MOST_FILES = 10_000  # of a batch: a plan names them all, and every server gets it


class FileFeed:
    """Takes the files that Spark lists in a round in the order of their times, as many as fit into a batch.

    A position is a round, the number of its files, and of those that have been read, with a checksum of them. In a
    round that comes again these must be the same, or a :class:`~weir.errors.SourceError` stops the query; others may
    have been repaired or removed.
    """

    first, smallest, grows = 16 << 20, 1, False  # bytes

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._files = LISTING.empty_table()
        self._ends: NDArray[np.int64] = np.zeros(1, np.int64)

    def begin(
        self, position: dict[str, int] | None, tick: int, listing: pa.Table | None, again: bool = False
    ) -> dict[str, int]:
        files = LISTING.empty_table() if listing is None else listing
        self._files = files.sort_by([(MODIFIED, "ascending"), (PATH, "ascending")])
        self._ends = np.concatenate([[0], np.cumsum(self._files[BYTES].to_numpy())])
        count = self._files.num_rows
        start = {TICK: tick, DONE: 0, FILES: count, READ: 0}
        if position is None or position[TICK] != tick:
            # a round that was handed over before files were cut up has been read as a whole
            return self._behind(start, count) if again else start
        start = self._behind(start, min(count, position[DONE]))
        if start[DONE] < position[DONE] or position.get(READ, start[READ]) != start[READ]:
            raise SourceError(
                f"{position[DONE]} files of a batch of the source have been read, and one of them was changed, "
                "replaced or deleted since, or an older one has come. Put the files back as they were, or start "
                "with an empty checkpoint folder."
            )
        return start

    def _behind(self, position: dict[str, int], end: int) -> dict[str, int]:
        """Return the position behind the next files, up to the one with this number."""
        part = self._files.slice(position[DONE], end - position[DONE])
        columns = zip(*(part[c].to_pylist() for c in (PATH, BYTES, MODIFIED)), strict=True)
        read = zlib.crc32("".join(f"{file}\n" for file in columns).encode(), position[READ])
        return {**position, DONE: end, READ: read}

    def read(self, position: dict[str, int]) -> pa.Table:
        """Return the files before a position of this round, which must have been listed here."""
        if self._files.num_rows < position[DONE]:
            raise SourceError(
                "the files of the run have not been listed since it was started again; feed it once more"
            )
        return self._files.slice(0, position[DONE]).select([PATH, MODIFIED])

    def cut(
        self, position: dict[str, int], most: float | None
    ) -> tuple[dict[str, list[Any]], dict[str, int]]:
        done, count = position[DONE], self._files.num_rows
        limit = self._ends[-1] if most is None else self._ends[done] + most
        fits = int(np.searchsorted(self._ends, limit, "right")) - 1
        end = min(count, max(done + 1, fits), done + MOST_FILES)
        part = self._files.slice(done, end - done)
        part = part.set_column(part.column_names.index(MODIFIED), MODIFIED, part[MODIFIED].cast(pa.int64()))
        return part.to_pydict(), self._behind(position, end)

    def size(self, position: dict[str, int]) -> int:
        left = self._files.num_rows - position[DONE]
        return int(self._ends[-1] - self._ends[position[DONE]]) or left  # empty files are read, too

    def about(self, position: dict[str, int]) -> dict[str, Any]:
        return {"lag": self._files.num_rows - position[DONE]}

    def committed(self, position: dict[str, int]) -> None:
        """Do nothing: only commits say which files have been read."""


def not_read(files: pa.Table, read: pa.Table) -> pa.Table:
    """Return the files of a listing that are not among those that were read, or have changed since.

    >>> listed = pa.table({PATH: ["a", "b"], MODIFIED: [1, 2]})
    >>> not_read(listed, pa.table({PATH: ["b", "a"], MODIFIED: [2, 0]})).to_pydict()
    {'path': ['a'], 'modified': [1]}
    """
    before = dict(zip(read[PATH].to_pylist(), read[MODIFIED].to_pylist(), strict=True))
    pairs = zip(files[PATH].to_pylist(), files[MODIFIED].to_pylist(), strict=True)
    return files.filter(pa.array([path not in before or at > before[path] for path, at in pairs], pa.bool_()))


def is_half_read(position: dict[str, int]) -> bool:
    """Return whether a position is one of files, some of which are still to be read; positions of topics are not."""
    return position.get(DONE, 0) < position.get(FILES, 0)
