"""Aggregates of every type, and windows."""

from __future__ import annotations

import math
import random
from typing import Any

import weir
from weir_evaluation.bench.semantics.places import Place, Row, Tally, cut, same_number, seconds
from weir_evaluation.bench.semantics.values import DAY, NUMBERS, TYPES, maybe

ROWS = 9  # of a group, at most
# Weir's function → Spark's expression; {c} is the column
FUNCTIONS = {
    "count": "count(*)",
    "count({c})": "count({c})",
    "min({c})": "min({c})",
    "max({c})": "max({c})",
    "first({c}, o)": "min_by({c}, struct(o, {c})) filter (where {c} is not null and o is not null)",
    "last({c}, o)": "max_by({c}, struct(o, {c})) filter (where {c} is not null and o is not null)",
    "top_k({c}, 3)": "slice(sort_array(collect_list({c}), false), 1, 3)",
    "approx_distinct({c})": "count(distinct {c})",
    "sum({c})": "sum({c})",
    "avg({c})": "avg(cast({c} as double))",
    "variance({c})": "variance(cast({c} as double))",
    "stddev({c})": "stddev(cast({c} as double))",
}
ONLY_NUMBERS = ("sum({c})", "avg({c})", "variance({c})", "stddev({c})")
# what differs from Spark on purpose; docs/moving.md says the same to users
ON_PURPOSE = {
    "variance(c)": "of infinite values Spark has NaN where Weir has NaN or null",
    "stddev(c)": "as variance",
}


def aggregates(place: Place, rng: random.Random, tally: Tally, kinds: list[str], groups: int) -> None:
    """Compare every function of columns of these types, in one application."""
    columns = {f"c{i}": kind for i, kind in enumerate(kinds)}
    rows = [
        {"g": group, "o": maybe(rng, lambda rng: rng.randint(0, 4), 0.1)}
        | {name: maybe(rng, TYPES[kind]) for name, kind in columns.items()}
        for group in range(groups)
        for _ in range(rng.randint(1, ROWS))
    ]
    asked = [  # column, Weir's function, Spark's
        (name, mine, theirs)
        for name, kind in columns.items()
        for mine, theirs in FUNCTIONS.items()
        if kind in NUMBERS or mine not in ONLY_NUMBERS
    ]
    values: Any = {f"f{i}": mine.format(c=name) for i, (name, mine, _) in enumerate(asked)}
    routing = rng.choice([weir.Hash(), weir.PartialKey(), weir.Consistent()])
    schema = ", ".join(["g long", "o long", *(f"{name} {kind}" for name, kind in columns.items())])
    table = schema, cut(rng, rng.sample(rows, len(rows)), rng.randint(1, place.batches))
    result = place.run(
        rng,
        lambda source: [source.keyed("g", weir.Aggregate(**values), name="groups", routing=routing)],
        {"rows": table},
    )
    ours = {row["g"]: row for row in result.state("groups")}
    parts = [f"{theirs.format(c=name)} as f{i}" for i, (name, _, theirs) in enumerate(asked)]
    theirs = {
        row["g"]: row for row in place.sql(f"select g, {', '.join(parts)} from rows group by g", rows=table)
    }
    for i, (name, function, _) in enumerate(asked):
        _compare_groups(
            tally, place, function.format(c="c"), f"f{i}", ours, theirs, rows, name, columns[name]
        )


def _compare_groups(
    tally: Tally,
    place: Place,
    function: str,
    value: str,
    ours: dict[int, Row],
    theirs: dict[int, Row],
    rows: list[Row],
    column: str,
    kind: str,
) -> None:
    of_group: dict[int, list[Any]] = {}
    for row in rows:
        of_group.setdefault(row["g"], []).append(row[column])
    skipped = {g for g, given in of_group.items() if function in ON_PURPOSE and _unbounded(given)}

    def about(group: int) -> Row:
        return {"type": kind, "rows": repr(of_group[group])}

    def close(mine: int, other: int) -> bool:
        return abs(mine - other) <= max(1, 0.05 * other)

    tally.compare(
        function,
        place,
        {g: row[value] for g, row in ours.items() if g not in skipped},
        {g: row[value] for g, row in theirs.items() if g not in skipped},
        about,
        close if function.startswith("approx") else same_number,
    )


def _unbounded(values: list[Any]) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in values)


def windows(place: Place, rng: random.Random, tally: Tally, count: int = 1500) -> None:
    """Compare windows of each kind."""
    rows = [
        {"g": rng.randint(0, 20), "t": DAY + seconds(rng.randint(0, 7200)), "n": rng.randint(0, 99)}
        for _ in range(count)
    ]
    kinds = {
        "tumbling": (weir.tumbling("t", "10 minutes", lateness="3 hours"), "window(t, '10 minutes')"),
        "sliding": (
            weir.sliding("t", "10 minutes", "4 minutes", lateness="3 hours"),
            "window(t, '10 minutes', '4 minutes')",
        ),
        "session": (weir.session("t", "2 minutes", lateness="3 hours"), "session_window(t, '2 minutes')"),
    }
    table = "g long, t timestamp, n long", cut(rng, rows, rng.randint(1, place.batches))
    sums = weir.Aggregate(n="count", total="sum(n)")
    result = place.run(
        rng,
        lambda source: [
            source.keyed("g", sums, window=window, name=name) for name, (window, _) in kinds.items()
        ],
        {"rows": table},
    )
    for name, (_, expression) in kinds.items():
        theirs = place.sql(
            f"select g, w.start as window_start, w.end as window_end, n, total from (select g, {expression} as w, "
            f"count(*) as n, sum(n) as total from rows group by g, {expression})",
            rows=table,
        )
        columns = "g window_start window_end n total"
        tally.rows(f"{name} window", place, result.output(name), theirs, columns)
