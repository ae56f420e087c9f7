"""Long blobs between servers of one host: left in a file, so that only their address passes through the exchange.

What goes through Spark's exchange is copied some nine times between two Python processes. A server that knows its
receiver to live on the same host writes a blob into a file instead, and the receiver maps that file. An address travels
exactly as the blob would have: if the task that left it dies before it is done, its rows are sent anew, with
other addresses.

A receiver that wakes on another host than expected finds no file. It raises :class:`~weir.errors.HandoffLost`, and the
batch runs again with everything in the exchange: nothing has been committed, and a batch that runs again does exactly
the same. Files of a batch are deleted when tasks of a later one come by, or with Spark's local folder.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from weir.errors import HandoffLost

AT_LEAST = int(os.environ.get("WEIR_HANDOFF_BYTES", 64 << 10))  # what is shorter goes through the exchange
AT_MOST = 8 << 20
_ALIGNED = 64  # Arrow reads in place from addresses that are multiples of this


class Address(msgspec.Struct, array_like=True, frozen=True):
    """Where a blob lies."""

    path: str
    start: int
    size: int


class HostHandoff:
    """The file in which one task leaves blobs for other servers on its host.

    ``folder`` lives as long as this host's executor; what earlier batches of the query have left there is removed.
    ``near`` says for each server whether it is expected on this host.

    >>> import tempfile
    >>> handoff = HostHandoff(tempfile.mkdtemp(), "q", 7, [True, False])
    >>> handoff.takes(0, AT_LEAST), handoff.takes(0, 10), handoff.takes(1, AT_LEAST)
    (True, False, False)
    >>> HandoffReader().fetch(handoff.leave(b"rows")).to_pybytes()
    b'rows'
    """

    def __init__(self, folder: str, query: str, batch: int, near: Sequence[bool]) -> None:
        self._folder = Path(folder, f"weir-{query}", str(batch))
        self._near = near
        _tidy(self._folder)
        self._file: int | None = None
        self._path, self._end = "", 0
        self.bytes = 0  # left so far

    def takes(self, server: int, size: int) -> bool:
        """Return whether a blob of ``size`` bytes for ``server`` is better left here."""
        return self._near[server] and size >= AT_LEAST

    def longest(self, server: int, otherwise: int) -> int:
        """Return how long blobs for a server may be."""
        return AT_MOST if self._near[server] else otherwise

    def leave(self, blob: pa.Buffer | bytes) -> bytes:
        """Write a blob down; return its address, to be sent instead. The receiver may read it at once."""
        if self._file is None:
            self._open()
        assert self._file is not None
        start = -(-self._end // _ALIGNED) * _ALIGNED
        left, at = memoryview(blob), start
        while left:
            written = os.pwrite(self._file, left, at)
            left, at = left[written:], at + written
        self._end = at
        self.bytes += at - start
        return msgspec.msgpack.encode(Address(self._path, start, at - start))

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = str(self._folder / uuid.uuid4().hex)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class HandoffReader:
    """What one task has fetched; files are mapped once."""

    def __init__(self) -> None:
        self._mapped: dict[str, pa.MemoryMappedFile] = {}

    def fetch(self, address: pa.Buffer | bytes) -> pa.Buffer:
        """Return the blob at an address, not copied. It outlives the deletion of its file."""
        where = msgspec.msgpack.decode(memoryview(address), type=Address)
        mapped = self._mapped.get(where.path)
        if mapped is None:
            try:
                mapped = self._mapped[where.path] = pa.memory_map(where.path)
            except OSError as error:
                raise HandoffLost(f"rows that were left for this server can't be read: {error}") from None
        mapped.seek(where.start)
        blob = mapped.read_buffer(where.size)
        if blob.size != where.size:
            raise HandoffLost(f"rows that were left for this server in {where.path} are cut off")
        return blob


_tidied: dict[Path, int] = {}  # a query's folder → the batch for which this process has looked there


def _tidy(folder: Path) -> None:
    """Remove what earlier batches left beside a batch's folder."""
    home, batch = folder.parent, int(folder.name)
    if _tidied.get(home) == batch:
        return
    _tidied[home] = batch
    for other in home.iterdir() if home.exists() else ():
        if other.name.isdigit() and int(other.name) < batch:
            shutil.rmtree(other, ignore_errors=True)
