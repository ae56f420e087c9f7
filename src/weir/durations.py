"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from weir.errors import TopologyError

Duration = str | int | float | timedelta

_UNITS = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
    "w": 604_800_000_000,
    "week": 604_800_000_000,
}


def microseconds(duration: Duration) -> int:
    """A duration in microseconds, from text, a number of seconds or a timedelta.

    >>> microseconds("10 minutes"), microseconds("1h"), microseconds(2)
    (600000000, 3600000000, 2000000)
    """
    if isinstance(duration, timedelta):
        return int(duration / timedelta(microseconds=1))
    if isinstance(duration, (int, float)):
        return int(duration * 1_000_000)
    text = duration.lower() if isinstance(duration, str) else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", text)
    unit = match and (_UNITS.get(match[2]) or _UNITS.get(match[2] + "s"))
    if not match or not unit:
        raise TopologyError(
            f'cannot read the duration {duration!r}; write it like "10 minutes", "1h" or "7d"'
        )
    return int(float(match[1]) * unit)
