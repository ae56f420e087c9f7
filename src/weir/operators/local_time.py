"""The time on a clock of a time zone, for whole columns of times.

Where a clock is put back, some readings occur twice. Here the clock stands still instead, until its reading is new
again: *local time* never goes back. So every span of local time is one span of time. Where a clock is put forward,
local times that it skips are those of the moment when it is.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
from numpy.typing import NDArray

from weir.errors import TopologyError

Times = NDArray[np.int64]  # µs since 1970
SECOND = 1_000_000
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1900, 2100))
PROBE = 3 * 86_400  # seconds; no zone has changed its offset twice in so short a time


@dataclass(frozen=True)
class LocalTime:
    """A time zone from 1900 to 2100; before and after that its offset is that of these years.

    ``changes`` are times at which the offset from UTC changes, and ``offsets`` those from then on, after the one
    before all of them. They travel with the application, so all servers have those of the driver.

    >>> zone = local_time("Europe/Berlin")
    >>> spring = np.array(["2024-03-31T00:59:59", "2024-03-31T01:00:00"], "M8[us]").view(np.int64)
    >>> zone.local(spring).view("M8[us]").astype("M8[s]").tolist() == [
    ...     datetime(2024, 3, 31, 1, 59, 59), datetime(2024, 3, 31, 3)]
    True
    >>> bool((zone.instant(zone.local(spring)) == spring).all())
    True
    """

    name: str
    changes: tuple[int, ...]
    offsets: tuple[int, ...]

    @cached_property
    def _table(self) -> tuple[Times, Times, Times]:
        """Return changes, offsets, and the greatest local time before each offset holds."""
        changes, offsets = np.array(self.changes, np.int64), np.array(self.offsets, np.int64)
        floor = np.array([np.iinfo(np.int64).min], np.int64)
        return changes, offsets, np.concatenate([floor, np.maximum.accumulate(changes + offsets[:-1]) - 1])

    def local(self, times: Times) -> Times:
        """Return what the clock reads at each time, or the last reading that was new."""
        changes, offsets, before = self._table
        if not len(times):
            return times
        at = np.searchsorted(changes, (times.min(), times.max()), "right")
        if at[0] != at[1]:  # seldom within one batch
            at = np.searchsorted(changes, times, "right")
            return np.maximum(times + offsets[at], before[at])
        return np.maximum(times + offsets[at[0]], before[at[0]])

    def instant(self, local: Times) -> Times:
        """Return when the clock first reads this or more."""
        changes, offsets, before = self._table
        at = np.searchsorted(before[1:], local, "left")
        earliest = np.concatenate([before[:1], changes])
        return np.maximum(local - offsets[at], earliest[at])


@cache
def local_time(name: str) -> LocalTime:
    """Return a time zone of the IANA database by its name."""
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        known = available_timezones()
        if not known:
            raise TopologyError(
                f"timezone={name!r}: this machine has no time zones; pip install tzdata"
            ) from None
        close = get_close_matches(str(name), known, n=1) or ["Europe/Berlin"]
        raise TopologyError(
            f"timezone={name!r} is no time zone of the IANA database; write it like {close[0]!r}"
        ) from None

    def offset(second: int) -> int:
        there = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).astimezone(zone)
        return (there.utcoffset() or timedelta()) // timedelta(seconds=1)

    changes, offsets = list[int](), [offset(FIRST)]
    for probe in range(FIRST + PROBE, LAST, PROBE):
        if (now := offset(probe)) != offsets[-1]:
            changed = bisect(range(probe - PROBE, probe), False, key=lambda s: offset(s) != offsets[-1])
            changes.append(probe - PROBE + changed)
            offsets.append(now)
    return LocalTime(name, tuple(c * SECOND for c in changes), tuple(o * SECOND for o in offsets))
