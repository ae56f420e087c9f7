"""The clock that time to live is measured by: it never goes back, and does not believe every jump."""

from __future__ import annotations

import time
from collections.abc import Callable

from weir.errors import EngineError

DAY = 86_400_000_000  # µs


class Clock:
    """Microseconds since 1970 for the plans of one run, not earlier than the last commit's.

    A host whose clock is wrong would let every key with a time to live expire, or none for ever. So a clock that is
    further from the last commit's than ``jump`` when a run begins, or that runs away from this process's own steady
    clock while it goes on, is refused before anything is planned by it. A clock of the user's own is believed.
    """

    def __init__(self, own: Callable[[], int] | None, jump: int) -> None:
        self._own, self._jump = own, jump
        self._seen: tuple[int, int] | None = None  # what this clock and the steady clock said last

    def read(self, last: int | None) -> int:
        """Return the time for the next plan; ``last`` is that of the last commit."""
        if self._own is not None:
            return max(self._own(), last or 0)
        now, steady = time.time_ns() // 1000, time.monotonic_ns() // 1000
        expected = last if self._seen is None else self._seen[0] + steady - self._seen[1]
        if expected and abs(now - expected) > self._jump:
            way = "ahead of" if now > expected else "behind"
            raise EngineError(
                f"the clock of this host is {abs(now - expected) / DAY:.1f} days {way} "
                f"{'the last commit' if self._seen is None else 'where it should be'}, and operators with a ttl, "
                "windows or timers live by it. Nothing was changed. Set the clock right; if the query really stood "
                'still for so long, start it with clock_jump="30 days" or more.'
            )
        self._seen = now, steady
        return max(now, last or 0)
