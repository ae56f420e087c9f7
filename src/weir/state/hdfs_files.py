"""Files on HDFS, by a client that needs neither Java nor libhdfs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from hdfs_native import Client, WriteOptions

from weir.errors import CheckpointError

if TYPE_CHECKING:
    from weir.state.storage import Files


class HdfsFiles:
    """Files below a folder of HDFS.

    The name node is that of the URI, or ``fs.defaultFS``; the rest of its settings (high availability, Kerberos) is
    read from ``HADOOP_CONF_DIR``. A file that must be exclusive is written under another name and then renamed,
    which HDFS refuses if there is one already: of two writers, exactly one succeeds.
    """

    def __init__(self, uri: str) -> None:
        self.root = uri
        scheme, _, place = uri.partition("://")
        authority, _, path = place.partition("/")
        try:
            self._client = Client(f"{scheme}://{authority}" if authority else None)
        except Exception as error:
            raise CheckpointError(
                f"{uri}: cannot be opened here ({str(error).splitlines()[0]}). Name the name node, hdfs://host:8020/…, "
                "or set HADOOP_CONF_DIR where driver and executors run"
            ) from None
        self._base = f"/{path}".rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}".rstrip("/") or "/"

    def exists(self, name: str) -> bool:
        try:
            self._client.get_file_info(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        return self._client.get_file_info(self._path(name)).length

    def names(self, folder: str) -> list[str]:
        try:
            return [one.path.rpartition("/")[2] for one in self._client.list_status(self._path(folder))]
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> list[str]:
        cut = len(self._base) + 1
        try:
            there = self._client.list_status(self._path(folder), recursive=True)
            return [one.path[cut:] for one in there if not one.isdir]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> pa.Buffer:
        with self._client.read(self._path(name)) as file:
            return pa.py_buffer(file.read())

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with self._client.read(self._path(name)) as file:
            size = file.size
            cut = [(min(start, size), min(end, size)) for start, end in ranges]
            return [pa.py_buffer(file.read_range(start, end - start)) for start, end in cut]

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        with self._client.create(self._path(name), WriteOptions(overwrite=True, create_parent=True)) as out:
            for chunk in chunks:
                out.write(chunk)

    def create(self, name: str, data: bytes) -> None:
        temporary = f"{name}.{uuid.uuid4().hex}.tmp"
        self.write(temporary, [data])
        try:
            self._client.rename(self._path(temporary), self._path(name))
        except FileExistsError:
            self.delete(temporary)
            raise FileExistsError(self._path(name)) from None

    def link(self, others: Files, name: str) -> bool:
        """Return False: HDFS has no hard links."""
        return False

    def delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._client.delete(self._path(name))

    def delete_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._client.delete(self._path(name), recursive=True)
