"""A storage for one task that goes on with its work while its files are being written.

To put a file and its name on a disk takes milliseconds, to upload it tens of them, and a server writes several per
batch. None of them counts before the task reports, so the task only has to wait then, for all of them at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa

from weir.state.storage import Storage

THREADS = 8  # of this process: waiting for a disk or a network, not working
MOST_BYTES = 64 << 20  # that wait to be written; a task with more waits for them


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
