"""Follow a checkpoint: read each commit once, as it comes, and the history that older ones have left."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec

from weir.engine.batch.fence import began
from weir.engine.batch.history import (
    Chunk,
    ChunkName,
    Point,
    chunk_names,
    marks,
    point,
    read_chunk,
    seconds_of,
)
from weir.engine.checkpoint import COMMITS, ENDED, PREPARING, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.inspect.inspection import open_checkpoint
from weir.engine.task.batch_context import host_name
from weir.errors import CheckpointError
from weir.state.storage import Storage

RUNS = ("running", "presumed running")
RECENT = 1000  # points of commits that are held before those that the history has are dropped
LOCAL_POLL, REMOTE_POLL = 0.5, 2.0  # seconds between two looks at the checkpoint

logger = logging.getLogger("weir.watch")


class QueryStatus(msgspec.Struct, frozen=True):
    """Whether a query runs: its ``state``, since when and, where there is more to say, ``text``."""

    state: str
    since: int | None = None
    text: str = ""
    preparing: str | None = None  # what keeps it from its first batch


class Readiness(msgspec.Struct, frozen=True):
    """Whether a query is ``ready``, for supervisors and load balancers; if not, ``why``."""

    ready: bool
    state: str
    batch: int | None
    lag: float | None
    why: str


class CheckpointReader:
    """What commits and history say of a query, up to the last :meth:`refresh`.

    It reads, and never writes. ``on_commit`` is called with every commit that comes after the first look.
    """

    def __init__(self, checkpoint: str | Storage, on_commit: Callable[[Commit], None] | None = None) -> None:
        self.storage = open_checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
        self.layout = CheckpointLayout(self.storage)
        self.head = self.layout.head()
        self.latest: Commit | None = None
        self.poll = LOCAL_POLL if self.storage.is_local else REMOTE_POLL
        self._on_commit = on_commit
        self._seen = ""  # name of the last commit that was read
        self._chunks: dict[ChunkName, Chunk] = {}
        self._points: dict[int, Point] = {}  # of batches that no chunk has
        self._marks: dict[int, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new; return whether anything is."""
        with self._lock:
            new = [name for name in self.layout.documents(COMMITS) if name > self._seen]
            if not new:
                return False
            if not self._seen or self.layout.batch_of(new[0]) > self.last + 1 or len(self._points) > RECENT:
                self._read_history()
            first = not self._seen
            for name in new:
                self._read(name, first)
            self._seen = new[-1]
            return True

    @property
    def last(self) -> int:
        """The number of the last batch, −1 before the first."""
        return -1 if self.latest is None else self.latest.batch

    @property
    def points(self) -> list[Point]:
        """What time lines show, oldest first."""
        with self._lock:
            return [*chain.from_iterable(c.points for c in self._chunks.values()), *self._points.values()]

    @property
    def marks(self) -> list[dict[str, Any]]:
        """What happened beside rows, oldest first."""
        with self._lock:
            return [
                *chain.from_iterable(c.marks for c in self._chunks.values()),
                *chain.from_iterable(self._marks.values()),
            ]

    def readiness(self, lag: float) -> Readiness:
        """Return whether a driver takes batches, the last of which was no more than ``lag`` seconds behind."""
        status, commit = self.status(), self.latest
        behind = None if commit is None or commit.progress is None else commit.progress.load.lag
        why = ""
        if status.state not in RUNS:
            why = f"the query is {status.state}"
        elif status.preparing:
            why = "the query is being prepared"
        elif behind is not None and behind > lag:
            why = f"the last batch was {behind:.1f} s behind, more than {lag:g} s"
        return Readiness(not why, status.state, None if commit is None else commit.batch, behind, why)

    def status(self) -> QueryStatus:
        """Return whether the query runs.

        A driver on this machine is looked for by its process. Of one elsewhere it is only known that it has not
        said that it ended.
        """
        turn = max(self.layout.turns(), default=0)
        if not turn:
            return QueryStatus("stopped", text="nobody has driven it yet")
        try:
            driver = self.storage.read_document(self.layout.driver(turn), "driver")
            ended = self.layout.driver(turn, ENDED)
            if self.storage.exists(ended):
                end = self.storage.read_document(ended, "end")
                if end["batch"] >= self.last:  # otherwise a batch has succeeded since
                    state = "finished" if end.get("finished") else "stopped"
                    state = state if end["error"] is None else "failed"
                    return QueryStatus(state, end["time"], end["error"] or "")
        except CheckpointError as error:  # another driver has just taken over, or the document is damaged
            return QueryStatus("presumed running", text=str(error))
        who, waits = f"process {driver['process']} on {driver['host']}", None
        with contextlib.suppress(CheckpointError):
            name = self.layout.driver(turn, PREPARING)
            if self.storage.exists(name):
                preparing = self.storage.read_document(name, "preparing")
                waits = preparing["what"]
                who += f", {waits}"
        if driver["host"] == host_name() and driver.get("began"):
            if began(driver["process"]) != driver["began"]:
                return QueryStatus("gone", text=f"{who} is gone without having stopped")
            return QueryStatus("running", driver["time"], who, waits)
        return QueryStatus("presumed running", driver["time"], f"{who}, out of sight from here", waits)

    def _read(self, name: str, first: bool) -> None:
        try:
            commit = self.layout.read_commit(name)
        except CheckpointError as error:
            if self.storage.exists(name):
                logger.warning("passed over: %s", error)
            return  # cleaned away meanwhile: the history has it
        if commit.progress and commit.batch > self.last:
            if self.latest is not None and self.latest.batch in self._points:
                took = seconds_of(self.latest, commit)
                if took is not None:
                    self._points[self.latest.batch] = point(self.latest, took)
            if commit.batch > max((n.last for n in self._chunks), default=-1):
                self._points[commit.batch] = point(commit)
                self._marks[commit.batch] = marks(commit)
            if self._on_commit is not None and not first:
                self._on_commit(commit)
        self.latest = commit

    def _read_history(self) -> None:
        """Read the chunks that are new, and drop what they replace."""
        for _ in range(3):  # chunks may become part of larger ones meanwhile
            chunks, gone = {}, False
            for name in chunk_names(self.storage):
                try:
                    chunks[name] = self._chunks.get(name) or read_chunk(self.storage, name)
                except CheckpointError as error:
                    gone = not self.storage.exists(self.layout.history(name))
                    if not gone:
                        logger.warning("passed over: %s", error)
            if not gone:
                break
        self._chunks = chunks
        last = max((name.last for name in chunks), default=-1)
        self._points = {batch: p for batch, p in self._points.items() if batch > last}
        self._marks = {batch: m for batch, m in self._marks.items() if batch > last}
