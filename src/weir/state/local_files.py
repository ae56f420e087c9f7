"""Files on a local or mounted file system: on disk before they count, and private to their owner.

A checkpoint's folder is created for its owner alone (0700), and files and folders in it follow it (0600, 0700),
whatever the umask. To share a checkpoint, create its folder first with the permissions wanted: everything in it
follows those, e.g. ``mkdir -m 2770`` for a group whose members run the driver and the executors.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

if TYPE_CHECKING:
    from weir.state.storage import Files

PRIVATE = 0o700
TRIES = 100  # to put a file into a folder that others clean away
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP)
_kept: set[str] = set()  # folders whose own names this process knows to be on disk
_flushing = True
_folders = threading.Lock()  # of this process: other processes may still clean a folder away under a writer


class LocalFiles:
    """Files below a folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._mode: int | None = None  # of the root, which all below it follows

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def size(self, name: str) -> int:
        return os.path.getsize(self._path(name))

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str) -> list[str]:
        cut = len(self.root) + 1
        top = self._path(folder).rstrip("/")
        return [f"{at}/{name}"[cut:] for at, _, names in os.walk(top) for name in names]

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a file: mapped, not copied."""
        with pa.memory_map(self._path(name)) as mapped:
            return mapped.read_buffer()

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        data = self.read(name)
        return [data.slice(start, max(0, min(end, data.size) - start)) for start, end in ranges]

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file; its bytes and its name are on disk when this returns."""
        path = self._path(name)
        self._write_through(path, chunks)
        self._keep_entry(path)

    def create(self, name: str, data: bytes) -> None:
        """Write a file under a name that nobody has; exclusive where the file system has hard links.

        Without them (some network mounts), another writer at the very same moment can be missed.
        """
        path = self._path(name)
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        self._write_through(temporary, [data])
        try:
            os.link(temporary, path)  # unlike a rename, fails if another writer was first
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.exists(path):
                raise FileExistsError(path) from None
            os.rename(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self._keep_entry(path)

    def link(self, others: Files, name: str) -> bool:
        """Give a file of another folder a second name here, where both are on one file system that has hard links."""
        if not isinstance(others, LocalFiles):
            return False
        path = self._path(name)
        with _folders:
            self._make_folders(os.path.dirname(path))
        try:
            os.link(others._path(name), path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (*_NO_LINKS, errno.EXDEV, errno.EMLINK):
                raise
            return False
        self._keep_entry(path)
        return True

    def delete(self, *names: str) -> None:
        """Delete files, and the folders that are empty without them, below those directly in the root."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.root}/{name}")
        for parents in dict.fromkeys(name.rpartition("/")[0] for name in names):  # one look at each
            while "/" in parents:
                with _folders:
                    try:
                        os.rmdir(self._path(parents))
                    except OSError:
                        break
                    _kept.discard(self._path(parents))
                parents = parents.rpartition("/")[0]

    def delete_folder(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)
        _kept.clear()

    def keep(self, patterns: Iterable[str]) -> None:
        """Put files on disk that somebody else has written."""
        if not _flushing:
            return
        names = {name for pattern in patterns for name in glob.glob(pattern, root_dir=self.root)}
        for path in map(self._path, sorted(names)):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self._keep_entry(path)

    # ------------------------------------------------------------------ files

    def _write_through(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        with self._open(path) as out:
            try:
                for chunk in chunks:
                    out.write(chunk)
                if _flushing:
                    out.flush()
                    os.fsync(out.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise

    def _open(self, path: str) -> BinaryIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        for attempt in range(TRIES):
            try:
                with _folders:
                    if self._mode is None or attempt:
                        self._make_folders(os.path.dirname(path))
                    mode = (self._mode or PRIVATE) & 0o666
                    handle = os.open(path, flags, mode)
                break
            except FileNotFoundError:
                # also if a folder, being empty, is cleaned away before our file is in it
                if attempt == TRIES - 1:
                    raise
        if mode & 0o077:  # the umask may have taken away what the checkpoint's folder allows
            with contextlib.suppress(OSError):
                os.fchmod(handle, mode)
        return open(handle, "wb")

    def _make_folders(self, folder: str) -> None:
        os.makedirs(os.path.dirname(self.root), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.root, PRIVATE)
        self._mode = mode = stat.S_IMODE(os.stat(self.root).st_mode)
        at = self.root
        for part in folder[len(self.root) :].split("/"):
            at = f"{at}/{part}" if part else at
            try:
                os.mkdir(at, mode & 0o777)
            except FileExistsError:
                continue
            _kept.discard(at)
            if mode & 0o077:
                with contextlib.suppress(OSError):
                    os.chmod(at, mode)

    def _keep_entry(self, path: str) -> None:
        """Put the name of a file on disk, and those of the folders it is in, if that is still to be done."""
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
    if not _flushing:
        return
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
