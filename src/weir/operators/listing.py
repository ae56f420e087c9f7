"""Which files there are, and what partition each belongs to: the rows that :class:`~weir.operators.read.Read` gets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from weir.columns import canonical
from weir.errors import SourceError, TopologyError
from weir.operators.file_reader import file_schema, open_path
from weir.operators.read import LISTING


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
    system, name = open_path(path if "://" in path or path.startswith("file:") else os.path.abspath(path))
    info = system.get_file_info(name)
    if info.type == pafs.FileType.File:
        return canonical(file_schema(path, format))
    files = system.get_file_info(pafs.FileSelector(name, recursive=True, allow_not_found=True))
    for one in sorted(files, key=lambda i: i.path):
        hidden = any(p.startswith(("_", ".")) for p in one.path[len(name) :].strip("/").split("/"))
        if one.type == pafs.FileType.File and not hidden:
            prefix = "" if isinstance(system, pafs.LocalFileSystem) else path.split("://")[0] + "://"
            return canonical(file_schema(prefix + one.path, format))
    raise SourceError(f"{path}: there is no file yet to learn the columns from; {remedy}")
