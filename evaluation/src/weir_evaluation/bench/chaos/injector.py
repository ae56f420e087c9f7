"""Faults at any moment of a run in this process: at the engine's own fault points, and in every operation on files.

A driver that dies in the middle of a write leaves what it has written so far; a task that dies leaves its files
behind; a full disk and a failing one say so to whoever writes or reads.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest import mock

import pyarrow as pa

from weir.engine.local.in_process import InProcessRunner, TaskFailed
from weir.faults import POINTS, watching
from weir.state.cache import BYTES, MAPS
from weir.state.local_files import LocalFiles
from weir.state.location import Place
from weir.testing import Crash

KILLS = ("driver at a point", "driver in storage", "task", "task in storage")
FAULTS = ("disk full", "storage fails", "storage is slow", "clock jumps")
MOMENTS = ("before", "torn", "after")
READING = ("read", "read_ranges", "names", "files", "exists", "size")
WRITING = ("write", "create", "delete")


@dataclass
class Scheduled:
    """A fault that has not happened yet."""

    kind: str
    point: str = ""
    after: int = 0  # operations on files, or visits of the point, until it happens
    moment: str = "before"
    lasts: int = 1  # operations for which it goes on


class Injector:
    """Lets scheduled faults happen, one at a time, and counts them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.scheduled: Scheduled | None = None
        self.happened: Counter[str] = Counter()
        self.unhealed: list[float] = []  # when kills happened from which the query has not recovered yet
        self.excuses = 0  # errors that faults may have caused since the last batch
        self.clock_offset = 0
        self._in_task = 0
        self._slow = 0

    # ------------------------------------------------------------------ the schedule

    def schedule(self, kind: str, steps: int) -> None:
        """Let a fault of a kind happen soon; an application has so many steps."""
        rng = self._rng
        fault = Scheduled(kind, after=rng.randrange(rng.choice([4, 20, 90])))
        if kind == "driver at a point":
            fault.point, fault.after = (
                rng.choice([p for p in POINTS if p not in ("step-started", "rows-held", "keys-counted")]),
                0,
            )
        elif kind == "task":
            fault.point, fault.after = "step-started", rng.randrange(4 * max(1, steps))
        elif kind in ("driver in storage", "task in storage"):
            fault.moment = rng.choice(MOMENTS)
        elif kind in ("disk full", "storage fails"):
            fault.lasts = rng.choice([1, 1, 5, 30])
        elif kind == "storage is slow":
            self._slow, self.scheduled = 40, None
            self.happened[kind] += 1
            return
        elif kind == "clock jumps":
            self.clock_offset = rng.choice([-1, 1]) * rng.choice([8, 400, 40_000]) * 86_400 * 10**9
            self.excuses += 1
            self.happened[kind] += 1
            return
        self.scheduled = fault

    def recovered(self) -> list[float]:
        """Return how long ago each kill was that the query has recovered from by now."""
        now = time.perf_counter()
        took, self.unhealed = [now - at for at in self.unhealed], []
        return took

    def calm(self) -> None:
        """Let nothing more happen."""
        self.scheduled, self.clock_offset, self._slow, self.excuses = None, 0, 0, 0

    def _kill(self, fault: Scheduled, error: BaseException) -> NoReturn:
        self.scheduled = None
        self.happened[fault.kind] += 1
        self.unhealed.append(time.perf_counter())
        if isinstance(error, Crash):  # a new process has nothing in memory
            for cache in (MAPS, BYTES):
                cache.discard(lambda key: True)
        raise error

    # ------------------------------------------------------------------ where faults happen

    def visit(self, point: str, batch: int) -> None:
        """Hear that the engine has reached a fault point."""
        fault = self.scheduled
        if fault is None or fault.point != point:
            return
        if fault.after:
            fault.after -= 1
            return
        self._kill(fault, TaskFailed(point) if fault.kind == "task" else Crash(point))

    def touch(self, operation: str, work: Callable[[], Any], tear: Callable[[], None] = lambda: None) -> Any:
        """Do an operation on files, unless a fault comes in between; ``tear`` does half of it."""
        if threading.current_thread() is not threading.main_thread():
            return work()
        if self._slow:
            self._slow -= 1
            time.sleep(0.001)
        fault = self.scheduled
        if fault is None or not self._concerns(fault, operation):
            return work()
        if fault.after:
            fault.after -= 1
            return work()
        if fault.kind in ("disk full", "storage fails"):
            if fault.lasts:
                fault.lasts -= 1
                self.excuses += 1
                self.happened[fault.kind] += 1
                raise OSError(*_SAYS[fault.kind])
            self.scheduled = None
            return work()
        death = Crash(operation) if fault.kind == "driver in storage" else TaskFailed(operation)
        if fault.moment == "torn":
            tear()
        elif fault.moment == "after":
            work()
        return self._kill(fault, death)

    def _concerns(self, fault: Scheduled, operation: str) -> bool:
        if fault.kind == "disk full":
            return operation in ("write", "create")
        if fault.kind == "task in storage":
            return self._in_task > 0
        return fault.kind in ("driver in storage", "storage fails")

    # ------------------------------------------------------------------ in force

    @contextlib.contextmanager
    def loose(self) -> Iterator[None]:
        """Let files, tasks and the clock of this process be subject to faults."""
        attempt = InProcessRunner._attempt

        def attempted(runner: InProcessRunner, task: Any, *about: Any) -> list[pa.RecordBatch]:
            self._in_task += 1
            try:
                return attempt(runner, task, *about)
            finally:
                self._in_task -= 1

        def opened(place: Place, options: Any) -> FaultyFiles:
            return FaultyFiles(place.uri, self)

        with (
            watching(self.visit),
            mock.patch("weir.state.storage.open_files", opened),
            mock.patch.object(InProcessRunner, "_attempt", attempted),
            mock.patch("weir.engine.batch.ledger.time", _ShiftedTime(self)),
            # who waits for a sink tries again up to once a minute; here, thirty tries may fail in a row
            mock.patch("weir.engine.batch.delivery.LONGEST_PAUSE", 0.02),
        ):
            yield


_SAYS = {
    "disk full": (errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "storage fails": (errno.EIO, os.strerror(errno.EIO)),
}


class _ShiftedTime:
    """The module ``time`` as the engine's clock sees it, with a wall clock that may be wrong."""

    def __init__(self, injector: Injector) -> None:
        self._injector = injector

    def time_ns(self) -> int:
        return time.time_ns() + self._injector.clock_offset

    def time(self) -> float:
        return self.time_ns() / 1e9

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class FaultyFiles(LocalFiles):
    """Files on a local disk that fail when they are told to."""

    def __init__(self, root: str, injector: Injector) -> None:
        super().__init__(root)
        self._injector = injector

    def exists(self, name: str) -> bool:
        return bool(self._injector.touch("exists", lambda: LocalFiles.exists(self, name)))

    def size(self, name: str) -> int:
        return int(self._injector.touch("size", lambda: LocalFiles.size(self, name)))

    def names(self, folder: str) -> list[str]:
        return list(self._injector.touch("names", lambda: LocalFiles.names(self, folder)))

    def files(self, folder: str) -> list[str]:
        return list(self._injector.touch("files", lambda: LocalFiles.files(self, folder)))

    def read(self, name: str) -> pa.Buffer:
        return self._injector.touch("read", lambda: LocalFiles.read(self, name))

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return list(self._injector.touch("read_ranges", lambda: LocalFiles.read_ranges(self, name, ranges)))

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        data = b"".join(bytes(memoryview(chunk)) for chunk in chunks)
        work = lambda: LocalFiles.write(self, name, [data])  # noqa: E731
        self._injector.touch("write", work, lambda: self._half(name, data))

    def create(self, name: str, data: bytes) -> None:
        work = lambda: LocalFiles.create(self, name, data)  # noqa: E731
        self._injector.touch("create", work, lambda: self._half(f"{name}.{uuid.uuid4().hex}.tmp", data))

    def delete(self, *names: str) -> None:
        for name in names:
            self._injector.touch("delete", functools.partial(LocalFiles.delete, self, name))

    def _half(self, name: str, data: bytes) -> None:
        LocalFiles.write(self, name, [data[: len(data) // 2]])
