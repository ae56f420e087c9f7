"""What has reached a server and waits for its turn, within a bound of memory.

Reader threads put, the server's own thread takes. Readers of other servers never stop: who sends to us never waits for
us to take, so that servers that fill each other's inboxes go on. What does not fit the bound is received into mapped
files. Readers of source tasks do stop when the bound is reached; nobody waits for these, so the source waits for its
servers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from weir.engine.exchange import wire
from weir.engine.live.transport import Frame
from weir.errors import LiveFailed

NOTHING = Frame(0)
LIMIT = int(os.environ.get("WEIR_INBOX_MB", 256)) << 20


class Inbox:
    """Frames of one batch by step, those of the last step first; and the jobs that the driver sends."""

    def __init__(self, servers: int, folder: str | None = None, limit: int = LIMIT) -> None:
        self.servers, self.folder, self.limit = servers, folder, limit
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._jobs: deque[Frame | None] = deque()
        self.batch = -1  # the last one that the driver has announced
        self.cluster_load: Frame | None = None  # the last report on all servers
        self.reset()

    def reset(self) -> None:
        """Get ready for the next batch; all frames of this one have been taken."""
        with self._changed:
            self._frames: dict[int, deque[Frame]] = defaultdict(deque)
            self._ended: Counter[int] = Counter()  # step → servers that will send no more for it
            self._sources: int | None = None  # how many source tasks there were, once that is known
            self._begun: set[int] = set()
            self._done: set[int] = set()
            self._queued: Counter[tuple[int, int]] = Counter()
            self.longest: Counter[tuple[int, int]] = Counter()  # kind, edge → most rows that waited at once
            self.bytes = self.spilled = 0

    # ------------------------------------------------------------------ readers

    def room(self, size: int) -> Any:
        """Return memory to receive into: in a file once the bound is reached. Raises if the disk is full."""
        if self.bytes + size <= self.limit:
            return pa.allocate_buffer(size)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            # writing to a mapped file on a full disk would kill us
            os.posix_fallocate(file.fileno(), 0, size)
            with self._changed:
                self.spilled += size
            return mmap.mmap(file.fileno(), size)

    def put(self, frame: Frame) -> None:
        """Add rows."""
        with self._changed:
            self._frames[frame.step].append(frame)
            self.bytes += frame.size
            about = (frame.kind, frame.edge)
            self._queued[about] += frame.rows
            self.longest[about] = max(self.longest[about], self._queued[about])
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until there is room in memory again; for readers of source tasks alone."""
        with self._changed:
            while self.bytes > self.limit and self._error is None:
                self._changed.wait()

    def end(self, step: int) -> None:
        """Another server will send no more rows for a step."""
        with self._changed:
            self._ended[step] += 1
            self._changed.notify_all()

    def begin_source(self, task: int, batch: int, seconds: float) -> None:
        """Let a source task of a batch push rows, each task once; the batch itself may be announced a little later."""
        with self._changed:
            self._changed.wait_for(lambda: self.batch >= batch or self._error is not None, seconds)
            if self.batch != batch:
                raise LiveFailed(f"a source task of batch {batch} came in batch {self.batch}")
            if task in self._begun:
                error = LiveFailed(f"source task {task} of batch {batch} ran twice")
                self._error = self._error or error
                self._changed.notify_all()
                raise error
            self._begun.add(task)

    def end_source(self, task: int) -> None:
        """A source task has pushed all of its rows."""
        with self._changed:
            self._done.add(task)
            self._changed.notify_all()

    def all_sources(self, tasks: int) -> None:
        """The driver knows how many source tasks there were."""
        with self._changed:
            self._sources = tasks
            self._changed.notify_all()

    def announce(self, job: Frame | None) -> None:
        """Add a job; None: there will be no more."""
        with self._changed:
            self._jobs.append(job)
            if job is not None:
                self.batch = job.source_time
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Let everybody who waits raise this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # ------------------------------------------------------------------ the server

    def next_job(self) -> Frame | None:
        """Return the next job, None after the last."""
        with self._changed:
            while not self._jobs:
                self._raise()
                self._changed.wait()
            return self._jobs.popleft()

    def waiting(self, edges: Iterable[int]) -> int:
        """Return how many rows wait that came over one of these edges."""
        with self._changed:
            return sum(self._queued[wire.DATA, edge] for edge in edges)

    @property
    def feeding(self) -> int:
        """How many source tasks are sending rows."""
        return len(self._begun) - len(self._done)

    def take(self, step: int, wait: bool = True) -> Frame | None:
        """Return the next frame, of whatever step; None when none can come for ``step`` or those before.

        Without ``wait`` it returns :data:`NOTHING` where it would have to wait.
        """
        with self._changed:
            while True:
                self._raise()
                for number in sorted(self._frames, reverse=True):
                    if self._frames[number]:
                        frame = self._frames[number].popleft()
                        self.bytes -= frame.size
                        self._queued[frame.kind, frame.edge] -= frame.rows
                        self._changed.notify_all()  # a source may be waiting for room
                        return frame
                if self._complete(step):
                    return None
                if not wait:
                    return NOTHING
                self._changed.wait()

    def _complete(self, step: int) -> bool:
        if step != 1:
            return self._ended[step] == self.servers - 1
        if self._sources is None or len(self._begun) < self._sources:
            return False
        if len(self._begun) > self._sources:
            raise LiveFailed(
                f"{len(self._begun)} source tasks pushed rows, but only {self._sources} have reported"
            )
        return len(self._done) == self._sources

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
