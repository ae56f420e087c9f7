"""What chaos draws applications from: operators with their answers in plain Python, and how rows reach them.

To let chaos loose on another operator, add a :class:`Keyed` or :class:`Step` to ``KEYED`` or ``STEPS``; on another
grouping, a function that makes one to ``WHOLE`` (a key stays on one server) or ``SPLIT``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

import weir
from weir_evaluation import routing as rivals
from weir_evaluation.bench.chaos import two_sides
from weir_evaluation.bench.chaos.two_sides import LATENESS

SCHEMA = "place string, topic string, n long, at timestamp"
COLUMNS = ("place", "topic", "n", "at")
PLACES, TOPICS = 17, 60

Row = tuple[str, str, int, datetime]  # place, topic, n, at
Rows = list[Row]
Key = tuple[str, ...]
KEPT = 120  # numbers of a key that are remembered: few with the rest of its state, many one by one


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


@dataclass
class Visit:
    rows: int = 0
    path: weir.ListState[str] = field(default_factory=weir.ListState)
    kinds: weir.MapState[str, int] = field(default_factory=weir.MapState)


class Visits(weir.Process):
    """The last numbers of a key and how many there were of each kind, element by element."""

    state = Visit
    output = {"place": "string", "topic": "string", "n": "long"}
    order_by = "n"

    def process(self, key: Any, rows: Any, state: Visit) -> Iterable[Any]:
        for row in rows:
            state.rows += 1
            state.path.append(f"number {row.n}")
            if len(state.path) > KEPT:
                state.path.popleft()
            kind = f"kind {row.n % 3}"
            state.kinds[kind] = state.kinds.get(kind, 0) + 1
            yield row.place, row.topic, row.n


def _visits(batches: Sequence[Rows]) -> dict[str, Any]:
    path = [n for rows in batches for n in sorted(row[2] for row in rows)]
    kinds = Counter(f"kind {n % 3}" for n in path)
    return {"rows": len(path), "path": [f"number {n}" for n in path[-KEPT:]], "kinds": dict(kinds)}


def add_columns(batch: Any) -> Any:
    """Rows and their sum, on columns; rows go on."""
    rows = batch.state("rows", 0) + np.diff(batch.offsets)
    total = batch.state("total", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])
    passed = {name: batch.rows.column(name) for name in ("place", "topic", "n")}
    return {"rows": rows, "total": total}, passed, batch.numbers


def _merge_columns(one: Any, other: Any) -> Any:
    return {name: pc.add(one[name], other[name]) for name in ("rows", "total")}


def _columns(stream: weir.Stream, key: list[str], options: dict[str, Any]) -> weir.Stream:
    kept, output = {"rows": "long", "total": "long"}, {"place": "string", "topic": "string", "n": "long"}
    return stream.process_batch(key, add_columns, state=kept, output=output, merge=_merge_columns, **options)


def _tally(batches: Sequence[Rows]) -> dict[str, int]:
    return {"rows": sum(map(len, batches)), "total": sum(row[2] for rows in batches for row in rows)}


Seen = Mapping[Key, Sequence[Rows]]  # the rows that each key has had, batch by batch
Attach = Callable[[weir.Stream, list[str], dict[str, Any]], weir.Stream]


@dataclass(frozen=True)
class Keyed:
    """An operator that keeps state, and what that must be for the rows that a key has had, batch by batch."""

    name: str
    attach: Attach  # puts it behind a stream, by a key, with options
    truth: (
        Callable[[Sequence[Rows]], dict[str, Any]] | None
    )  # the state of a key; None: it can't be read by key
    rows: str | None = "rows"  # the column of its state that counts rows, if one does
    merges: bool = True  # may stand behind groupings that split keys
    updates: bool = True  # its sink gets the new values of every key that a batch touched
    ends: bool = False  # nothing stands behind it: what it emits is not what came in
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict  # makes a state comparable
    first: bool = False  # stands behind the source, since it needs a column that not all operators pass on
    # what its sink gets in the whole run: the key and these columns of each row
    emitted: Callable[[Seen], Counter[tuple[Any, ...]]] | None = None
    counted: tuple[str, ...] = ()
    at_end: bool = False  # some of it only when the input ends
    options: dict[str, Any] = field(default_factory=dict)


def keyed(make: Callable[[], Any]) -> Attach:
    """Return how an operator is put behind a stream."""
    return lambda stream, key, options: stream.keyed(key, make(), **options)


WINDOW, SLIDE, GAP = 15, 4, 2  # seconds


def windowed(window: weir.operators.Window) -> Attach:
    """Return how counts in windows are put behind a stream."""
    return lambda stream, key, options: stream.keyed(key, weir.Count(), window=window, **options)


def _windows(slide: int, seen: Seen) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for key, batches in seen.items():
        for row in (row for mine in batches for row in mine):
            time = int(row[3].timestamp())
            for start in range(time - time % slide, time - WINDOW, -slide):
                rows[*key, datetime.fromtimestamp(start, UTC)] += 1
    return Counter((*window, count) for window, count in rows.items())


def _sessions(seen: Seen) -> Counter[tuple[Any, ...]]:
    sessions: list[list[Any]] = []  # key, start, rows
    for key, batches in seen.items():
        last = None
        for time in sorted(row[3] for mine in batches for row in mine):
            if last is None or time - last > timedelta(seconds=GAP):
                sessions.append([*key, time, 0])
            sessions[-1][-1] += 1
            last = time
    return Counter(map(tuple, sessions))


def _alarms(stream: weir.Stream, key: list[str], options: dict[str, Any]) -> weir.Stream:
    """Set a timer for every row, and take back those of even numbers."""

    def process(label: Any, rows: Any, state: Any, timers: Any) -> None:
        for row in rows:
            (timers.set if row.n % 2 else timers.delete)(row.at + timedelta(seconds=GAP))

    def on_timer(label: Any, timer: Any, state: Any, timers: Any) -> Iterable[Any]:
        return [(*(label if len(key) > 1 else [label]), timer.time)]

    output = {**dict.fromkeys(key, "string"), "due": "timestamp"}
    timed = stream.event_time("at", lateness=f"{LATENESS} s")
    return timed.process(key, process, output=output, timers="event", on_timer=on_timer, **options)


def _rung(seen: Seen) -> Counter[tuple[Any, ...]]:
    return Counter(
        (*key, row[3] + timedelta(seconds=GAP))
        for key, batches in seen.items()
        for mine in batches
        for row in mine
        if row[2] % 2
    )


def _top(numbers: list[int]) -> dict[str, Any]:
    return {"rows": len(numbers), "top": sorted(numbers, reverse=True)[:3], "first": min(numbers)}


def _sums(batches: Sequence[Rows]) -> dict[str, int]:
    numbers = [row[2] for rows in batches for row in rows]
    return {"rows": len(numbers), "total": sum(numbers), "low": min(numbers), "top": max(numbers)}


TWO_SIDES: dict[str, Any] = {
    "truth": None,
    "rows": None,
    "merges": False,
    "updates": False,
    "ends": True,
    "counted": ("n", "n_right"),
}
BY_EVENT_TIME: dict[str, Any] = {
    "truth": None,
    "rows": None,
    "merges": False,
    "updates": False,
    "ends": True,
    "first": True,
    "at_end": True,
}

KEYED = [
    Keyed(
        "count",
        keyed(partial(weir.Count, emit="rows")),
        lambda batches: {"count": sum(map(len, batches))},
        "count",
    ),
    Keyed(
        "aggregate",
        keyed(
            lambda: weir.Aggregate(rows="count(n)", total="sum(n)", low="min(n)", top="max(n)", emit="rows")
        ),
        _sums,
    ),
    Keyed(
        "top values",
        keyed(lambda: weir.Aggregate(rows="count(n)", top="top_k(n, 3)", first="first(n, n)", emit="rows")),
        lambda batches: _top([row[2] for rows in batches for row in rows]),
    ),
    Keyed(
        "process",
        keyed(Tallies),
        _tally,
        updates=False,
    ),
    Keyed("process batch", _columns, _tally, updates=False),
    Keyed("ordered process", keyed(Rises), _rises, merges=False, updates=False),
    Keyed(
        "process with lists",
        keyed(Visits),
        _visits,
        merges=False,
        updates=False,
        read=lambda state: {**state, **{c: json.loads(state[c]) for c in ("path", "kinds")}},
    ),
    Keyed(
        "deduplicate",
        lambda stream, key, options: stream.deduplicate(key, **options),
        lambda batches: {},
        None,
        merges=False,
        updates=False,
        ends=True,
        emitted=lambda seen: Counter(seen.keys()),
    ),
    Keyed("join", two_sides.join, emitted=two_sides.pairs, **TWO_SIDES),
    Keyed("lookup", two_sides.lookup, emitted=two_sides.looked_up, **TWO_SIDES),
    Keyed(
        "bounded join",
        two_sides.bounded_join,
        emitted=two_sides.near_pairs,
        **{**TWO_SIDES, "first": True, "at_end": True},
    ),
    Keyed(
        "windows",
        windowed(weir.tumbling("at", WINDOW, lateness=LATENESS)),
        emitted=partial(_windows, WINDOW),
        counted=("window_start", "count"),
        **BY_EVENT_TIME,
    ),
    Keyed(
        "sliding windows",
        windowed(weir.sliding("at", WINDOW, SLIDE, lateness=LATENESS)),
        emitted=partial(_windows, SLIDE),
        counted=("window_start", "count"),
        **BY_EVENT_TIME,
    ),
    Keyed(
        "sessions",
        windowed(weir.session("at", GAP, lateness=LATENESS)),
        emitted=_sessions,
        counted=("window_start", "count"),
        **BY_EVENT_TIME,
    ),
    Keyed("timers", _alarms, emitted=_rung, counted=("due",), **BY_EVENT_TIME),
    Keyed(
        "count with a ttl",  # long enough for nothing to expire, and reason enough to look at the clock
        keyed(partial(weir.Count, emit="rows")),
        lambda batches: {"count": sum(map(len, batches))},
        "count",
        merges=False,
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


class Offset:
    """A side input that says something else in every batch; whoever feeds batches keeps ``batch`` up to date."""

    batch = 0

    @classmethod
    def rows(cls) -> list[dict[str, int]]:
        return [{"add": cls.batch % 7}]


STEPS = [
    Step(
        "side input",
        lambda s: s.map(
            lambda row, table: row._replace(n=row.n + table["add"][0].as_py()),
            side=weir.SideInput(Offset.rows),
        ),
        lambda rows: [(place, topic, n + Offset.batch % 7, at) for place, topic, n, at in rows],
    ),
    Step(
        "map",
        lambda s: s.map(lambda row: row._replace(n=row.n + 1)),
        lambda rows: [(place, topic, n + 1, at) for place, topic, n, at in rows],
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
    "d choices": rivals.DChoices,
    "w choices": rivals.WChoices,
    "two choices": rivals.TwoChoices,
    "random choices": rivals.RandomChoices,
    "bounded ring": rivals.BoundedRing,
    "weighted hash": lambda: weir.Weighted(weir.Hash()),
    "weighted partial key": lambda: weir.Weighted(weir.PartialKey()),
    "shuffle": weir.Shuffle,
}
LEARN: dict[str, Any] = {"period": None, "forecast": None}  # reconfigured by hand, so that a seed replays
GROUPINGS: dict[str, Callable[[], Any]] = {
    "hash": lambda: None,
    "locality": lambda: weir.Locality(**LEARN),
    "locality, first seen": lambda: weir.Locality(**LEARN, new_keys="first_seen"),
    "auto": lambda: weir.Auto(**LEARN, balance="rows"),
    "locality, hot keys split": lambda: weir.Locality(**LEARN, split_hot=True),
}
