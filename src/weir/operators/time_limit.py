"""A limit on how long one call of a user's function may take."""

from __future__ import annotations

import ctypes
import threading
import time

POLL_SECONDS = 1.0
_watched: dict[int, TimeLimit] = {}
_watcher: threading.Thread | None = None


class TimeLimit:
    """Ends a call that does not return: within ``with``, a TimeoutError is raised in this thread.

    ``calls`` is to be increased with every call; if it stays the same for so many microseconds, the call is stuck.
    Python code is interrupted between two bytecodes, so a call that blocks in native code is not.
    """

    def __init__(self, micros: int) -> None:
        self.seconds = micros / 1e6
        self.calls = 0
        self._seen = (0, 0.0)  # calls, when that number was first seen
        self._thread = 0

    def __enter__(self) -> TimeLimit:
        global _watcher
        self._thread, self._seen = threading.get_ident(), (self.calls, time.monotonic())
        _watched[id(self)] = self
        if _watcher is None or not _watcher.is_alive():  # threads do not survive a fork
            _watcher = threading.Thread(target=_watch, name="weir-time-limit", daemon=True)
            _watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        _watched.pop(id(self), None)

    def check(self, at: float) -> None:
        """Interrupt the call if it has lasted too long at a time."""
        if self.calls != self._seen[0]:
            self._seen = (self.calls, at)
        elif at - self._seen[1] > self.seconds:
            self._seen = (self.calls, at)  # one that ignores it is interrupted again
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(TimeoutError)
            )


def _watch() -> None:
    while True:
        limits = list(_watched.values())
        for limit in limits:
            limit.check(time.monotonic())
        time.sleep(min([POLL_SECONDS, *(limit.seconds / 4 for limit in limits)]))
