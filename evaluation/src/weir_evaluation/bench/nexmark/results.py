"""What a query has emitted, and whether systems agree on it."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import Any

from weir_evaluation.bench.nexmark.queries import Query

NEAR = 0.25  # by how much two sketches may differ: their standard errors are 2 % (ours) and 4 % (Spark)


class Collector:
    """A sink that takes every batch's rows to the driver as Arrow tables."""

    def __init__(self, query: Query, ends: datetime) -> None:
        self.query, self.ends = query, ends
        self._tables: list[Any] = []

    def __call__(self, frame: Any, batch: int) -> None:
        self._tables.append(frame.toArrow())

    def forget(self) -> None:
        """Begin anew."""
        self._tables.clear()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the result: all rows, or the latest of each key."""
        names, key = list(self.query.columns), list(self.query.key)
        latest: dict[Any, tuple[Any, ...]] = {}
        out: list[tuple[Any, ...]] = []
        for table in self._tables:
            columns = [table[name].to_pylist() for name in names]
            for row in zip(*columns, strict=True):
                if self.query.until and row[names.index(self.query.until)] > self.ends:
                    continue
                if key:
                    latest[tuple(row[names.index(k)] for k in key)] = row
                else:
                    out.append(row)
        if self.query.pooled:
            return self._pooled(list(latest.values()))
        return list(latest.values()) if key else out

    def _pooled(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return rows that differ in nothing but the pooled part of their key as one: values are added up."""
        names = list(self.query.columns)
        at = names.index(self.query.pooled)
        heads = [i for i, name in enumerate(names) if name in self.query.key]
        sums: dict[Any, list[Any]] = {}
        for row in rows:
            key = tuple(None if i == at else row[i] for i in heads)
            values = [value for i, value in enumerate(row) if i not in heads]
            sums[key] = [a + b for a, b in zip(sums[key], values, strict=True)] if key in sums else values
        return [(*key, *values) for key, values in sums.items()]


def agree(query: Query, collectors: list[Collector]) -> bool:
    """Return whether all results are the same, but for what sketches estimate and the last digits of averages."""
    results = [collector.rows() for collector in collectors]
    return all(_same(query, results[0], other) for other in results[1:])


def _same(query: Query, one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    if not query.key:
        return Counter(one) == Counter(other)
    names = list(query.columns)
    at = [names.index(k) for k in query.key]
    first, second = ({tuple(row[i] for i in at): row for row in rows} for rows in (one, other))
    if first.keys() != second.keys():
        return False
    return all(_alike(query, first[key], second[key]) for key in first)


def _alike(query: Query, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    for name, mine, theirs in zip(query.columns, one, other, strict=True):
        if name in query.nearly:
            if not math.isclose(mine, theirs, rel_tol=NEAR, abs_tol=2):
                return False
        elif isinstance(mine, float):
            if not math.isclose(mine, theirs, rel_tol=1e-9):
                return False
        elif mine != theirs:
            return False
    return True
