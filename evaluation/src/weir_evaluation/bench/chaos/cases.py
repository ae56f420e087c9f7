"""What chaos draws applications from: operators with their answers in plain Python, and how rows reach them.

To let chaos loose on another operator, add a :class:`Keyed` or :class:`Step` to ``KEYED`` or ``STEPS``; on another
grouping, a function that makes one to ``WHOLE`` (a key stays on one server) or ``SPLIT``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import weir

SCHEMA = "place string, topic string, n long"
PLACES, TOPICS = 17, 60

Row = tuple[str, str, int]  # place, topic, n
Rows = list[Row]


@dataclass
class Tally:
    rows: int = 0
    total: int = 0


class Tallies(weir.Process):
    """Rows and their sum, in Python; rows go on, and partial states merge."""

    state = Tally
    output = {"place": "string", "topic": "string", "n": "long"}

    def process(self, key: Any, rows: Any, state: Tally) -> Iterable[Any]:
        for row in rows:
            state.rows += 1
            state.total += row.n
            yield row.place, row.topic, row.n

    def merge(self, one: Tally, other: Tally) -> Tally:
        return Tally(one.rows + other.rows, one.total + other.total)


@dataclass
class Run:
    rows: int = 0
    rises: int = 0
    last: int = -1


class Rises(weir.Process):
    """How often a number is greater than the one before it: depends on the order of rows, and on every single one."""

    state = Run
    output = {"place": "string", "topic": "string", "n": "long"}
    order_by = "n"

    def process(self, key: Any, rows: Any, state: Run) -> Iterable[Any]:
        for row in rows:
            state.rows += 1
            state.rises += row.n > state.last
            state.last = row.n
            yield row.place, row.topic, row.n


def _rises(batches: Sequence[Rows]) -> dict[str, int]:
    rises, last = 0, -1
    for n in (n for rows in batches for n in sorted(row[2] for row in rows)):
        rises, last = rises + (n > last), n
    return {"rows": sum(map(len, batches)), "rises": rises, "last": last}


@dataclass(frozen=True)
class Keyed:
    """An operator that keeps state, and what that must be for the rows that a key has had, batch by batch."""

    name: str
    make: Callable[[], Any]
    truth: Callable[[Sequence[Rows]], dict[str, Any]]
    rows: str  # the column of its state that counts rows
    merges: bool = True  # may stand behind groupings that split keys
    defers: bool = True  # may merge partial states later (aggregate_every)
    updates: bool = True  # its sink gets the new values of every key that a batch touched
    options: dict[str, Any] = field(default_factory=dict)


def _sums(batches: Sequence[Rows]) -> dict[str, int]:
    numbers = [row[2] for rows in batches for row in rows]
    return {"rows": len(numbers), "total": sum(numbers), "low": min(numbers), "top": max(numbers)}


KEYED = [
    Keyed("count", weir.Count, lambda batches: {"count": sum(map(len, batches))}, "count"),
    Keyed(
        "aggregate",
        lambda: weir.Aggregate(rows="count(n)", total="sum(n)", low="min(n)", top="max(n)"),
        _sums,
        "rows",
    ),
    Keyed(
        "process",
        Tallies,
        lambda batches: {
            "rows": sum(map(len, batches)),
            "total": sum(row[2] for rows in batches for row in rows),
        },
        "rows",
        defers=False,
        updates=False,
    ),
    Keyed("ordered process", Rises, _rises, "rows", merges=False, defers=False, updates=False),
    Keyed(
        "count with a ttl",  # long enough for nothing to expire, and reason enough to look at the clock
        weir.Count,
        lambda batches: {"count": sum(map(len, batches))},
        "count",
        merges=False,
        defers=False,
        options={"ttl": "1000 days"},
    ),
]


@dataclass(frozen=True)
class Step:
    """An operator without state: how it is added to a stream, and what it does to rows in plain Python."""

    name: str
    add: Callable[[weir.Stream], weir.Stream]
    apply: Callable[[Rows], Rows]


def _twice(row: Any) -> list[Any]:
    return [row, row] if row.n % 5 == 0 else [row]


STEPS = [
    Step(
        "map",
        lambda s: s.map(lambda row: row._replace(n=row.n + 1)),
        lambda rows: [(p, t, n + 1) for p, t, n in rows],
    ),
    Step(
        "filter",
        lambda s: s.filter(lambda row: row.n % 7 != 0),
        lambda rows: [row for row in rows if row[2] % 7 != 0],
    ),
    Step(
        "flat map",
        lambda s: s.flat_map(_twice),
        lambda rows: [row for row in rows for _ in range(2 if row[2] % 5 == 0 else 1)],
    ),
    Step(
        "shuffled",
        lambda s: s.map_batches(lambda batch: batch, routing=weir.Shuffle()),
        lambda rows: rows,
    ),
    Step(
        "weighted",
        lambda s: s.map_batches(lambda batch: batch, routing=weir.Weighted()),
        lambda rows: rows,
    ),
]

KEYS: list[tuple[str, ...]] = [("place",), ("topic",), ("place", "topic")]
AT = {"place": 0, "topic": 1}


def _table() -> Any:
    return weir.Table.of(
        {**{f"place {p}": 0 for p in range(PLACES)}, **{f"topic {t}": 0 for t in range(TOPICS)}}
    )


# name → what makes the grouping; None: the application's own routing
WHOLE: dict[str, Callable[[], Any]] = {"default": lambda: None, "hash": weir.Hash, "table": _table}
SPLIT: dict[str, Callable[[], Any]] = {
    "partial key": weir.PartialKey,
    "consistent": weir.Consistent,
    "d choices": weir.routing.DChoices,
    "w choices": weir.routing.WChoices,
    "two choices": weir.routing.TwoChoices,
    "random choices": weir.routing.RandomChoices,
    "bounded ring": weir.routing.BoundedRing,
    "weighted hash": lambda: weir.Weighted(weir.Hash()),
    "weighted partial key": lambda: weir.Weighted(weir.PartialKey()),
    "shuffle": weir.Shuffle,
}
LEARN: dict[str, Any] = {"period": None, "forecast": None}  # reconfigured by hand, so that a seed replays
ROUTINGS: dict[str, Callable[[], Any]] = {
    "hash": lambda: None,
    "locality": lambda: weir.Locality(**LEARN),
    "locality, first seen": lambda: weir.Locality(**LEARN, new_keys="first_seen"),
    "locality, hot keys split": lambda: weir.Locality(**LEARN, split_hot=True),
}
