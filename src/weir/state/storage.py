"""The files of a checkpoint, wherever it lives.

Every file is written once and never changed. Small files that decide something (plans, commits) appear all at
once or not at all, carry a checksum of themselves, and are refused with their name when damaged.
"""

from __future__ import annotations

import functools
import io
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa

from weir.errors import CheckpointError, ParameterError
from weir.extras import install
from weir.state.local_files import LocalFiles
from weir.state.location import Place, resolve

Option = str | int | float | bool


class Files(Protocol):
    """Files below one root, by relative name with slashes.

    A missing file is a FileNotFoundError, what else goes wrong an OSError or a CheckpointError that names the file.
    """

    root: str  # as messages name it

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of this name."""

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in any order; none if there is no such folder."""

    def files(self, folder: str) -> list[str]:
        """Return the names, relative to the root, of all files below a folder."""

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a file."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of a file from each start to its end; fewer where the file is shorter."""

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file, piece by piece; when this returns, it is kept."""

    def create(self, name: str, data: bytes) -> None:
        """Write a file that appears whole or not at all; FileExistsError if there is one."""

    def link(self, others: Files, name: str) -> bool:
        """Have a file of other files under the same name, without reading it; return False if that can't be."""

    def delete(self, *names: str) -> None:
        """Delete files, those that there are."""

    def delete_folder(self, name: str) -> None:
        """Delete a folder with all that is in it, if there is one."""


def open_files(place: Place, options: dict[str, Option]) -> Files:
    """Return the files at a place; the same ones, with their connections, for one place in a process."""
    if options and place.kind != "object":
        raise ParameterError(
            f"{place.uri}: storage options are for object stores (s3://, gs://, az://); leave them out."
        )
    return _open(place, tuple(sorted(options.items())), os.getpid())


@functools.lru_cache(maxsize=16)
def _open(place: Place, options: tuple[tuple[str, Option], ...], process: int) -> Files:
    if place.kind == "local":
        from weir.state.local_files import LocalFiles

        return LocalFiles(place.uri)
    client, extra = ("obstore", "object-stores") if place.kind == "object" else ("hdfs-native", "hdfs")
    try:
        if place.kind == "object":
            from weir.state.object_files import ObjectFiles

            return ObjectFiles(place.uri, dict(options))
        from weir.state.hdfs_files import HdfsFiles

        return HdfsFiles(place.uri)
    except ImportError:
        raise CheckpointError(
            f"{place.uri}: needs {client}. Install it where the driver and the executors run: {install(extra)}"
        ) from None


FORMAT = 2  # 1: written before keys had a hash with a secret
T = TypeVar("T")


class Storage:
    """Files below one root, by relative name.

    Parameters
    ----------
    location
        A path, or a URI: ``file:/``, ``dbfs:/``, ``hdfs://``, ``s3://`` (``s3a://``, ``s3n://``), ``gs://``,
        ``az://``, ``abfs(s)://``. A relative path is made absolute here; ``storage.location`` is what others are told.
    options
        Settings of an object store, see :class:`~weir.state.object_files.ObjectFiles`. They travel with the storage
        when it is pickled, secrets included; what is in the environment does not.

    Documents are exclusive, of two writers one fails: on local file systems with hard links and in object stores.
    Elsewhere (HDFS and others that pyarrow reaches) that is best effort.

    >>> import tempfile
    >>> storage = Storage(tempfile.mkdtemp())
    >>> storage.write_document("plans/1", "plan", {"batch": 1})
    >>> storage.read_document("plans/1", "plan")
    {'batch': 1}
    >>> storage.names("plans")
    ['1']
    """

    def __init__(self, location: str | os.PathLike[str], options: Mapping[str, Option] | None = None) -> None:
        place = resolve(location)
        self.location = place.uri
        self.options = _checked(options)
        self._files: Files = open_files(place, self.options)
        self.is_local = isinstance(self._files, LocalFiles)

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.location, self.options)

    @property
    def root(self) -> str:
        return self.location

    def path(self, name: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.location}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self._asking(name, lambda: self._files.exists(name)))

    def size(self, name: str) -> int:
        """Return the length of a file in bytes, 0 if there is none."""
        try:
            return int(self._asking(name, lambda: self._files.size(name)))
        except FileNotFoundError:
            return 0

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        return sorted(self._asking(folder, lambda: self._files.names(folder)))

    def files(self, folder: str) -> list[str]:
        """Return all files below a folder, as names relative to the root, sorted."""
        return sorted(self._asking(folder, lambda: self._files.files(folder)))

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file that no reader looks for before a document has named it.

        On a local file system it is on disk when this returns: a commit that names it must not outlive it.
        """
        self.write_chunks(name, [data])

    def write_chunks(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file from pieces, as they come: never all of them in memory."""
        try:
            self._files.write(name, chunks)
        except OSError as error:
            raise self._unwritable(name, error) from error

    def take(self, other: Storage, name: str) -> None:
        """Have a file of another storage under the same name: linked where both allow it, else copied.

        It stays when the other one is deleted.
        """
        if not self._asking(name, lambda: self._files.link(other._files, name), "linked"):
            self.write(name, other.read(name))

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a file; mapped, not copied, where the file system is local."""
        return self._reading(name, lambda: self._files.read(name))

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of a file from each start to its end, in few requests."""
        pieces: list[pa.Buffer] = self._reading(name, lambda: self._files.read_ranges(name, ranges))
        for piece, (start, end) in zip(pieces, ranges, strict=True):
            if piece.size != end - start:
                raise CheckpointError(
                    f"{self.path(name)}: damaged (its bytes {start} to {end} are missing). "
                    "Restore the file from a copy; nothing was overwritten."
                )
        return pieces

    def _reading(self, name: str, read: Callable[[], T]) -> T:
        try:
            return self._asking(name, read)
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path(name)}: missing. The checkpoint names this file, so part of it was deleted; "
                "restore it from a copy, or start with an empty checkpoint folder."
            ) from None

    def _asking(self, name: str, ask: Callable[[], T], what: str = "read") -> T:
        try:
            return ask()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(
                f"{self.path(name)}: cannot be {what} ({error}).{_sharing(error)}"
            ) from error

    def read_checked(self, name: str, size: int, crc: int) -> pa.Buffer:
        """Return the bytes of a file whose length and checksum are known."""
        data = self.read(name)
        if data.size != size or zlib.crc32(data) != crc:
            raise CheckpointError(
                f"{self.path(name)}: damaged (expected {size} bytes with checksum {crc:08x}, found "
                f"{data.size} bytes with {zlib.crc32(data):08x}). Restore the file from a copy; "
                "nothing was overwritten."
            )
        return data

    def delete(self, *names: str) -> None:
        """Delete files that are there, and local folders of batches that they leave empty."""
        self._asking(names[0] if names else "", lambda: self._files.delete(*names), "deleted")

    def delete_folder(self, name: str) -> None:
        self._asking(name, lambda: self._files.delete_folder(name), "deleted")

    def keep(self, *patterns: str) -> None:
        """Put files of a local file system on disk that somebody else has written."""
        if isinstance(self._files, LocalFiles):
            self._files.keep(patterns)

    # ------------------------------------------------------------------ documents

    def write_document(self, name: str, kind: str, body: Any) -> None:
        """Write a JSON document that appears whole or not at all; refuse to replace an existing one."""
        payload = msgspec.json.encode(body)
        head = {"weir": FORMAT, "kind": kind, "bytes": len(payload), "crc32": zlib.crc32(payload)}
        head["by"] = uuid.uuid4().hex  # no two writers write the same bytes, so one can tell its own
        try:
            self._files.create(name, json.dumps(head).encode() + b"\n" + payload)
        except FileExistsError:
            raise CheckpointError(
                f"{self.path(name)}: already written by another run. Two queries share this checkpoint; "
                "stop one of them."
            ) from None
        except OSError as error:
            raise self._unwritable(name, error) from error

    def read_document(self, name: str, kind: str) -> Any:
        """Return the body of a document, verified."""
        path = self.path(name)
        data = self.read(name).to_pybytes()
        head_bytes, newline, payload = data.partition(b"\n")
        try:
            head = json.loads(head_bytes)
            version = int(head["weir"])
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

    def _unwritable(self, name: str, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path(name)}: cannot be written ({error}).{_sharing(error)}")


def _sharing(error: OSError) -> str:
    if not isinstance(error, PermissionError):
        return ""
    return (
        " Checkpoints are private to who creates them. If driver and executors run as different users, create "
        "the checkpoint's folder first, with the permissions that both need: all files in it follow those."
    )


def _checked(options: Mapping[str, Option] | None) -> dict[str, Option]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ParameterError(f"storage options {options!r}: expected a dict, e.g. {{'region': 'eu-west-1'}}")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
            raise ParameterError(
                f"storage option {key!r}: expected a name with a text or a number, not a {type(value).__name__}"
            )
    return dict(options)


THREADS = 8  # of this process: waiting for a disk or a network, not working
MOST_BYTES = 64 << 20  # that wait to be written; a task with more waits for them


class Pieces(io.RawIOBase):
    """A file in memory that keeps what is written to it as it comes: Arrow hands its buffers over without a copy."""

    def __init__(self) -> None:
        self.chunks: list[bytes | pa.Buffer] = []
        self.size = self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        self.chunks.append(chunk)
        self.size, self.crc = self.size + len(memoryview(chunk)), zlib.crc32(chunk, self.crc)
        return len(memoryview(chunk))

    def tell(self) -> int:
        return self.size

    def take(self) -> bytes:
        """Return what was written since this was last called."""
        data = b"".join(self.chunks)
        self.chunks.clear()
        return data


class WriteBehind(Storage):
    """The files of another storage, which are written while :meth:`write` has returned already.

    Nobody may read such a file before :meth:`settle` has returned, which raises what has failed. Pieces that are only
    being made, one after the other, are written at once: not all of them may fit memory.

    >>> import tempfile
    >>> storage = Storage(tempfile.mkdtemp())
    >>> behind = WriteBehind(storage)
    >>> behind.write("state/one", b"1")
    >>> behind.settle()
    >>> storage.read("state/one").to_pybytes()
    b'1'
    """

    def __init__(self, storage: Storage) -> None:
        vars(self).update(vars(storage))
        self._storage = storage
        self._pending: list[Future[None]] = []
        self._bytes = 0

    def write_chunks(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        if not isinstance(chunks, list):
            self._storage.write_chunks(name, chunks)
            return
        size = sum(map(len, chunks))
        if self._bytes + size > MOST_BYTES:
            self.settle()
        self._bytes += size
        self._pending.append(_threads().submit(self._storage.write_chunks, name, chunks))

    def behind(self, work: Callable[[Storage], None]) -> None:
        """Do something with the files of the other storage, while the task goes on; :meth:`settle` waits for it."""
        self._pending.append(_threads().submit(work, self._storage))

    def settle(self) -> None:
        """Wait until all files are written, or raise a CheckpointError."""
        pending, self._pending, self._bytes = self._pending, [], 0
        wait(pending)
        for writing in pending:
            writing.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="weir-writer")
