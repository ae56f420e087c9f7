"""Wait for something that is away, say so, and try again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from weir.errors import EngineError, SinkUnavailable, SourceUnavailable

logger = logging.getLogger("weir.engine")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds between two tries


class Retry:
    """Tries again with growing pauses; ``say`` is told what it waits for, and "" when it no longer waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let everybody who waits give up."""
        self._stopped.set()

    def persist(self, what: str, act: Callable[[bool], None]) -> dict[str, Any] | None:
        """Do something, again and again while it is unavailable; return how long that was, None if it never was.

        ``act`` is told whether it was tried before.
        """
        began, tries, why = time.monotonic(), 0, ""
        while True:
            try:
                act(tries > 0)
            except (SinkUnavailable, SourceUnavailable) as error:
                tries, why = tries + 1, str(error)
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
                message = f"waiting for {what}: {why}; tried {tries} times, next in {pause:g} s"
                logger.warning("%s", message)
                self._say(message)
                if self._stopped.wait(pause):
                    raise EngineError(
                        f"stopped while waiting for {what} ({why}). Nothing is lost: it is made up for when the query "
                        "is started again."
                    ) from error
                continue
            if not tries:
                return None
            self._say("")
            logger.warning("%s is back after %d tries", what, tries)
            return {"tries": tries, "seconds": round(time.monotonic() - began, 3), "why": why}
