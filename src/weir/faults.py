"""Places where a test may end the process, to show what survives.

``WEIR_FAULT="commit-written:3"`` kills the process with SIGKILL when it reaches the point ``commit-written`` of
batch 3. In-process tests watch the same points (:func:`watching`) and raise instead. Without either, a fault point is
a dictionary look-up and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

POINTS = (
    "keys-counted",
    "plan-written",
    "job-done",
    "commit-written",
    "commit-replaced",
    "initial-written",
    "delivery-started",
    "parts-written",
    "sink-staged",
    "sink-committed",
    "sink-delivered",
    "rows-held",
    "step-started",
    "part-started",
    "part-staged",
    "part-written",
)
IN_TASKS = POINTS[-5:]
_watchers: list[Callable[[str, int], None]] = []


def reach(point: str, batch: int) -> None:
    """Say that a point is reached; die here if the environment says so.

    The batch of points in tasks is a hundred times the batch's number plus the step (0 in source tasks) or, of
    deliveries, the part.
    """
    if os.environ.get("WEIR_FAULT") == f"{point}:{batch}":
        os.kill(os.getpid(), signal.SIGKILL)
    for watcher in _watchers:
        watcher(point, batch)


@contextlib.contextmanager
def watching(watcher: Callable[[str, int], None]) -> Iterator[None]:
    """Call a function with every point that this process reaches; what it raises is raised there."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
