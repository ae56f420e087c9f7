"""Where a checkpoint lives: a folder on any file system that :mod:`pyarrow.fs` reaches.

Every file is written once and never changed. Small files that decide something (plans, commits) appear all at
once or not at all, carry a checksum of themselves, and are refused with their name when damaged.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from weir.errors import CheckpointError

FORMAT = 1
_TWO_WRITERS = "{}: already written by another run. Two queries share this checkpoint; stop one of them."
_kept: set[str] = set()  # folders whose own names this process knows to be on disk
_flushing = True


@contextlib.contextmanager
def without_flushing() -> Iterator[None]:
    """Let this process write files without waiting for the disk, for tests: they outlive a process, not a machine."""
    global _flushing
    before, _flushing = _flushing, False
    try:
        yield
    finally:
        _flushing = before


def _sync(folder: str) -> None:
    """Put the names in a folder on disk, where the file system lets one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # the folder that the checkpoint is in may be closed to us
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some have no such thing for folders
            raise
    finally:
        os.close(handle)


class Storage:
    """Files below one root, by relative name.

    ``location`` is a path or a URI (``s3://…``, ``hdfs://…``, ``file:///…``).

    >>> import tempfile
    >>> storage = Storage(tempfile.mkdtemp())
    >>> storage.write_document("plans/1", "plan", {"batch": 1})
    >>> storage.read_document("plans/1", "plan")
    {'batch': 1}
    >>> storage.names("plans")
    ['1']
    """

    def __init__(self, location: str) -> None:
        self.location = str(location)
        if "://" in self.location:
            self.fs, self.root = pafs.FileSystem.from_uri(self.location)
        else:
            self.fs, self.root = pafs.LocalFileSystem(), os.path.abspath(self.location)
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self.fs.get_file_info(self.path(name)).type != pafs.FileType.NotFound)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.fs.get_file_info(selector))

    def files(self, folder: str) -> list[str]:
        """All files below a folder, as names relative to the root."""
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        cut = len(self.root) + 1
        return sorted(i.path[cut:] for i in self.fs.get_file_info(selector) if i.type == pafs.FileType.File)

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Writes a file that no reader looks for before a document has named it.

        On a local file system it is on disk when this returns: a commit that names it must not outlive it.
        """
        path = self.path(name)
        if self.is_local:
            self._write_through(path, data)
            self._keep_entry(path)
        else:
            with self.fs.open_output_stream(path) as out:
                out.write(data)

    def read(self, name: str) -> pa.Buffer:
        """The bytes of a file; mapped, not copied, where the file system is local."""
        try:
            if self.is_local:
                with pa.memory_map(self.path(name)) as mapped:
                    return mapped.read_buffer()
            with self.fs.open_input_file(self.path(name)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path(name)}: missing. The checkpoint names this file, so part of it was deleted; "
                "restore it from a copy, or start with an empty checkpoint folder."
            ) from None

    def read_checked(self, name: str, size: int, crc: int) -> pa.Buffer:
        """The bytes of a file whose length and checksum are known."""
        data = self.read(name)
        if data.size != size or zlib.crc32(data) != crc:
            raise CheckpointError(
                f"{self.path(name)}: damaged (expected {size} bytes with checksum {crc:08x}, found "
                f"{data.size} bytes with {zlib.crc32(data):08x}). Restore the file from a copy; "
                "nothing was overwritten."
            )
        return data

    def delete(self, name: str) -> None:
        try:
            self.fs.delete_file(self.path(name))
        except FileNotFoundError:
            return

    def delete_folder(self, name: str) -> None:
        try:
            self.fs.delete_dir(self.path(name))
        except FileNotFoundError:
            return

    def write_document(self, name: str, kind: str, body: Any) -> None:
        """Writes a JSON document that appears whole or not at all; refuses to replace an existing one."""
        payload = msgspec.json.encode(body)
        head = json.dumps(
            {"weir": FORMAT, "kind": kind, "bytes": len(payload), "crc32": zlib.crc32(payload)}
        ).encode()
        data = head + b"\n" + payload
        path = self.path(name)
        if self.is_local:
            temporary = f"{path}.{uuid.uuid4().hex}.tmp"
            self._write_through(temporary, data)
            try:
                os.link(temporary, path)  # unlike a rename, fails if another writer was first
            except FileExistsError:
                raise CheckpointError(_TWO_WRITERS.format(path)) from None
            finally:
                os.unlink(temporary)
            self._keep_entry(path)
        else:
            if self.exists(name):
                raise CheckpointError(_TWO_WRITERS.format(path))
            with self.fs.open_output_stream(path) as out:
                out.write(data)

    def keep(self, *patterns: str) -> None:
        """Put files of a local file system on disk that somebody else has written."""
        if not _flushing:
            return
        found = {name for pattern in patterns for name in glob.glob(pattern, root_dir=self.root)}
        for path in map(self.path, sorted(found)):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self._keep_entry(path)

    @staticmethod
    def _write_through(path: str, data: bytes | pa.Buffer) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(data)
            if _flushing:
                out.flush()
                os.fsync(out.fileno())

    def _keep_entry(self, path: str) -> None:
        """Put the name of a file on disk, and those of the folders it is in, if that is still to be done."""
        if not _flushing:
            return
        folder = os.path.dirname(path)
        _sync(folder)
        new = []
        while folder not in _kept and len(folder) >= len(self.root):
            new.append(folder)
            folder = os.path.dirname(folder)
        for one in reversed(new):
            _sync(os.path.dirname(one))
            _kept.add(one)
        if len(_kept) > 10_000:
            _kept.clear()

    def read_document(self, name: str, kind: str) -> Any:
        """The body of a document, verified."""
        path = self.path(name)
        data = self.read(name).to_pybytes()
        head_bytes, newline, payload = data.partition(b"\n")
        try:
            head = json.loads(head_bytes)
            version = head["weir"]
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{path}: not a Weir {kind}, or damaged in its first line.") from None
        if version > FORMAT:
            raise CheckpointError(
                f"{path}: written in format {version} by a newer Weir; this one reads up to format {FORMAT}. "
                "Upgrade Weir to go on from this checkpoint."
            )
        if not newline or len(payload) != head.get("bytes") or zlib.crc32(payload) != head.get("crc32"):
            raise CheckpointError(
                f"{path}: damaged or truncated (checksum does not fit). Restore it from a copy; "
                "nothing was overwritten."
            )
        if head.get("kind") != kind:
            raise CheckpointError(f"{path}: a {head.get('kind')}, where a {kind} was expected.")
        return msgspec.json.decode(payload)
