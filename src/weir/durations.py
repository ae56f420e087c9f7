"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from weir.errors import TopologyError

Duration = str | int | float | timedelta

LONGEST = 100_000 * 365 * 86_400_000_000  # µs; with any time of today, still a number of 64 bits
_NAMES = {
    1: "us microsecond",
    1_000: "ms millisecond",
    1_000_000: "s sec second",
    60_000_000: "m min minute",
    3_600_000_000: "h hour",
    86_400_000_000: "d day",
    604_800_000_000: "w week",
}
_UNITS = {name: size for size, names in _NAMES.items() for name in names.split()}


def microseconds(duration: Duration) -> int:
    """A duration in microseconds, from text, a number of seconds or a timedelta.

    >>> microseconds("10 minutes"), microseconds("1h"), microseconds("200 ms"), microseconds(2)
    (600000000, 3600000000, 200000, 2000000)
    """
    if isinstance(duration, timedelta):
        return int(duration / timedelta(microseconds=1))
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        return _whole(duration * 1_000_000, duration)
    text = duration.lower() if isinstance(duration, str) else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text)
    unit = match and (_UNITS.get(match[2]) or _UNITS.get(match[2].removesuffix("s")))
    if not match or not unit:
        raise TopologyError(
            f'cannot read the duration {duration!r}; write it like "10 minutes", "1h" or "7d"'
        )
    return _whole(float(match[1]) * unit, duration)


def _whole(micros: float, duration: Duration) -> int:
    if not abs(micros) < LONGEST:  # nor if it is no number
        raise TopologyError(f"{duration!r} is no duration: expected less than 100,000 years")
    return int(micros)
