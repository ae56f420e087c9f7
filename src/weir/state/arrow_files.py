"""Files on whatever else :mod:`pyarrow.fs` reaches, HDFS above all."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from weir.errors import CheckpointError
from weir.state.location import OBJECT_STORES

if TYPE_CHECKING:
    from weir.state.storage import Files


class ArrowFiles:
    """Files below a folder of a file system of pyarrow.

    A file that must be exclusive is written under another name and then moved. Whether two writers at the very same
    moment collide is up to the file system: HDFS refuses to move onto an existing file, others may not. Treat
    exclusivity as best effort here.
    """

    def __init__(self, uri: str) -> None:
        self.root = uri
        try:
            self._fs, self._base = pafs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            scheme = uri.partition(":")[0]
            schemes = ", ".join(f"{s}://" for s in ("hdfs", *OBJECT_STORES))
            raise CheckpointError(
                f"{uri}: {scheme}:// cannot be opened here ({str(error).splitlines()[0]}). "
                f"Locations are paths, file:/, dbfs:/, {schemes}"
            ) from None
        self._base = self._base.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}".rstrip("/")

    def exists(self, name: str) -> bool:
        return bool(self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound)

    def size(self, name: str) -> int:
        info = self._fs.get_file_info(self._path(name))
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(self._path(name))
        return int(info.size or 0)

    def names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True)
        return [info.base_name for info in self._fs.get_file_info(selector)]

    def files(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        infos = self._fs.get_file_info(selector)
        cut = len(self._base) + 1
        return [info.path[cut:] for info in infos if info.type == pafs.FileType.File]

    def read(self, name: str) -> pa.Buffer:
        with self._fs.open_input_file(self._path(name)) as file:
            return file.read_buffer()

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with self._fs.open_input_file(self._path(name)) as file:
            return [pa.py_buffer(file.read_at(end - start, start)) for start, end in ranges]

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        self._fs.create_dir(self._path(name).rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(self._path(name)) as out:
            for chunk in chunks:
                out.write(chunk)

    def create(self, name: str, data: bytes) -> None:
        if self.exists(name):
            raise FileExistsError(self._path(name))
        temporary = f"{name}.{uuid.uuid4().hex}.tmp"
        self.write(temporary, [data])
        try:
            self._fs.move(self._path(temporary), self._path(name))
        except OSError:
            self.delete(temporary)
            if self.exists(name):
                raise FileExistsError(self._path(name)) from None
            raise

    def link(self, others: Files, name: str) -> bool:
        """Return False: HDFS has no hard links."""
        return False

    def delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

    def delete_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._path(name))
