"""Operators with two sides, and what they must emit in plain Python: joins, and a table that changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import weir

Emitted = Counter[tuple[Any, ...]]
Seen = Mapping[tuple[str, ...], Sequence[list[tuple[str, str, int, datetime]]]]
LATENESS, REACH = 20, 3  # seconds; batches are ten apart, so no row is late


def join(stream: weir.Stream, key: list[str], options: dict[str, Any]) -> weir.Stream:
    """Join some rows with themselves, without a bound."""
    few = stream.filter(lambda row: row.n % 20 == 0)
    return few.join(few, key, **options)


def pairs(seen: Seen) -> Emitted:
    """Return what :func:`join` must emit."""
    out: Emitted = Counter()
    for key, batches in seen.items():
        few = [row[2] for rows in batches for row in rows if row[2] % 20 == 0]
        out.update((*key, one, other) for one in few for other in few)
    return out


def bounded_join(stream: weir.Stream, key: list[str], options: dict[str, Any]) -> weir.Stream:
    """Join some rows with others that are near in time; those without a partner go on alone."""
    left, right = (stream.filter(lambda row, rest=rest: row.n % 8 == rest) for rest in (0, 4))
    within, lateness = f"{REACH} s", f"{LATENESS} s"
    return left.join(right, key, how="full", within=within, time="at", lateness=lateness, **options)


def near_pairs(seen: Seen) -> Emitted:
    """Return what :func:`bounded_join` must emit."""
    out: Emitted = Counter()
    for key, batches in seen.items():
        left, right = ([row for rows in batches for row in rows if row[2] % 8 == rest] for rest in (0, 4))
        near = [(a, b) for a in left for b in right if abs(a[3] - b[3]) <= timedelta(seconds=REACH)]
        out.update((*key, a[2], b[2]) for a, b in near)
        ones, others = {id(a) for a, _ in near}, {id(b) for _, b in near}
        out.update((*key, a[2], None) for a in left if id(a) not in ones)
        out.update((*key, None, b[2]) for b in right if id(b) not in others)
    return out


def lookup(stream: weir.Stream, key: list[str], options: dict[str, Any]) -> weir.Stream:
    """Look rows up among some of them, of which the greatest counts."""
    table = stream.filter(lambda row: row.n % 5 == 0)
    return stream.lookup(table, key, latest="n", **options)


def looked_up(seen: Seen) -> Emitted:
    """Return what :func:`lookup` must emit: a batch's changes of the table come before its rows."""
    out: Emitted = Counter()
    for key, batches in seen.items():
        best = None
        for rows in batches:
            best = max(
                [row[2] for row in rows if row[2] % 5 == 0] + ([] if best is None else [best]), default=None
            )
            out.update((*key, row[2], best) for row in rows)
    return out
