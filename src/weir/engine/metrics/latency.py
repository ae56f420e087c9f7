"""Latency markers: when rows left their source travels with them, and every operator looks at the clock.

A marker is one number per group of rows (a blob on the wire, a batch in memory): the wall clock when the group's
oldest row was taken from its source. Operators and sinks count how old rows are when they are done with them, in a
histogram whose buckets grow by a factor, so that a task reports a few dozen numbers whatever the rows.

Ages compare clocks of different hosts. Within one machine they are exact; between hosts they are as good as the
synchronisation of their clocks (NTP: about a millisecond). An age below zero counts as zero.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

PER_OCTAVE = 8  # buckets per doubling: 9 % wide, so a percentile is off by 4.5 % at most
PERCENTILES = (50, 95, 99)

Ages = dict[int, int]  # bucket → rows
# rows that came together: when they left their source, how many, when they came
Groups = list[tuple[int, int, float]]


class _Counts(Protocol):
    busy: float


def now() -> int:
    """Return the wall clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def count_age(ages: Ages, source_time: int, rows: int, at: int | None = None) -> None:
    """Count rows that are done now (or ``at``); those whose source time nobody knows (0) are left out.

    >>> ages = {}
    >>> count_age(ages, source_time=1_000_000, rows=3, at=1_256_000)
    >>> count_age(ages, source_time=0, rows=5, at=1_256_000)
    >>> sum(ages.values())
    3
    """
    if source_time > 0:
        age = max(1, (now() if at is None else at) - source_time)
        bucket = int(math.log2(age) * PER_OCTAVE)
        ages[bucket] = ages.get(bucket, 0) + rows


def percentiles(ages: Ages) -> dict[str, float] | None:
    """Return percentiles in seconds, None if nothing was counted.

    >>> ages = {}
    >>> for ms in range(1, 101):
    ...     count_age(ages, source_time=1, rows=1, at=1 + 1000 * ms)
    >>> found = percentiles(ages)
    >>> all(abs(found[f"p{q}"] / (q / 1000) - 1) < 0.06 for q in (50, 95, 99))
    True
    """
    total = sum(ages.values())
    if not total:
        return None
    out: dict[str, float] = {}
    reached, buckets = 0, iter(sorted(ages.items()))
    bucket = 0
    for q in PERCENTILES:
        while reached < q / 100 * total:
            bucket, rows = next(buckets)
            reached += rows
        out[f"p{q}"] = round(2 ** ((bucket + 0.5) / PER_OCTAVE) / 1e6, 6)
    return out


class Busy:
    """Adds the time spent inside to a report."""

    def __init__(self, report: _Counts) -> None:
        self.report = report

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.report.busy += time.perf_counter() - self.began
