"""Joins, lookups and duplicates, with rows that carry nested values."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from typing import Any

from weir_evaluation.bench.semantics.places import Place, Row, Tally, cut, seconds
from weir_evaluation.bench.semantics.values import DAY, KEYS, TEXTS, TYPES, maybe, nested


def joins(place: Place, rng: random.Random, tally: Tally, count: int = 120) -> None:
    """Compare joins within a bound of time."""
    parts = rng.randint(1, place.batches)

    def side(number: str, value: str) -> tuple[str, list[list[Row]]]:
        kind, draw = nested(rng)
        rows = [
            {
                "k": rng.choice([None, *TEXTS]),
                "t": DAY + seconds(rng.randint(0, 600)),
                number: i,
                value: maybe(rng, draw),
            }
            for i in range(count)
        ]
        return f"k string, t timestamp, {number} long, {value} {kind}", cut(rng, rows, parts)

    left, right = side("a", "v"), side("b", "w")
    hows = ("inner", "left", "full")
    result = place.run(
        rng,
        lambda one, other: [
            one.join(other, "k", how=how, within="1 minute", time="t", lateness="1 hour", name=how)
            for how in hows
        ],
        {"one": left, "other": right},
    )
    for how in hows:
        theirs = place.sql(
            f"select coalesce(l.k, r.k) as k, a, v, b, w from l {how} join r on l.k = r.k "
            "and r.t between l.t - interval 1 minute and l.t + interval 1 minute",
            l=left,
            r=right,
        )
        tally.rows(f"{how} join", place, result.output(how), theirs, "k a v b w")


def lookups(place: Place, rng: random.Random, tally: Tally, count: int = 200) -> None:
    """Compare lookups, by a version and with removed keys, with the last row that a join finds.

    ``b`` is the batch: a row sees the changes of its own batch and of those before. A key changes once in a batch.
    """
    batches = rng.randint(1, place.batches)
    (kind, draw), (table_kind, table_draw) = nested(rng), nested(rng)
    rows = [
        [
            {"k": rng.choice([None, *TEXTS]), "b": b, "i": i * batches + b, "v": maybe(rng, draw)}
            for i in range(count // batches)
        ]
        for b in range(batches)
    ]
    changes = [
        [
            {
                "k": k,
                "b": b,
                "n": maybe(rng, lambda rng: rng.randint(0, 3)),
                "gone": maybe(rng, lambda rng: rng.random() < 0.5),
                "w": maybe(rng, table_draw),
            }
            for k in rng.sample(TEXTS, len(TEXTS) // 2)
        ]
        for b in range(batches)
    ]
    stream = f"k string, b long, i long, v {kind}", rows
    table = f"k string, b long, n long, gone boolean, w {table_kind}", changes
    options: dict[str, dict[str, str]] = {"latest": {"latest": "n"}, "deleted": {"deleted": "gone"}}
    result = place.run(
        rng,
        lambda one, other: [
            one.lookup(other, "k", how=how, name=f"{how}_{option}", **given)  # type: ignore[arg-type]
            for option, given in options.items()
            for how in ("left", "inner")
        ],
        {"stream": stream, "table": table},
    )
    for option, order, gone in (
        ("latest", "r.n desc nulls last, r.b desc", "false"),
        ("deleted", "r.b desc", "ifnull(r.gone, false)"),
    ):
        last = place.sql(
            f"select k, i, v, if(gone, null, n) as n, if(gone, null, w) as w, found and not gone as found from "
            f"(select l.k, l.i, l.v, r.n, r.w, {gone} as gone, r.k is not null as found, row_number() over "
            f"(partition by l.i order by {order}) as place from l left join r on l.k = r.k and r.b <= l.b) "
            "where place = 1",
            l=stream,
            r=table,
        )
        for how, expected in (("left", last), ("inner", [row for row in last if row["found"]])):
            ours = result.output(f"{how}_{option}")
            tally.rows(f"{how} lookup, {option}", place, ours, expected, "k i v n w")


def duplicates(place: Place, rng: random.Random, tally: Tally, count: int = 400) -> None:
    """Compare deduplicate with dropDuplicates, and within a bound of event time with a few lines of Python.

    What a row carries follows from its key, so there is one right answer.
    """
    kinds = [rng.choice(KEYS) for _ in range(rng.randint(1, 2))]
    names = [f"k{i}" for i in range(len(kinds))]
    kind, draw = nested(rng)
    pool: list[Row] = [
        {name: maybe(rng, TYPES[k], 0.05) for name, k in zip(names, kinds, strict=True)} for _ in range(40)
    ]
    carried: dict[str, Any] = {repr(key): maybe(rng, draw) for key in pool}
    rows = []
    for _ in range(count):
        key = rng.choice(pool)
        time = maybe(rng, lambda rng: DAY + seconds(rng.randint(0, 600)), 0.05)
        rows.append({**key, "t": time, "v": carried[repr(key)]})
    schema = ", ".join(f"{name} {k}" for name, k in zip(names, kinds, strict=True))
    table = f"{schema}, t timestamp, v {kind}", cut(rng, rows, rng.randint(1, place.batches))
    result = place.run(
        rng,
        lambda source: [
            source.deduplicate(names, name="ever"),
            source.deduplicate(names, within="1 day", name="by_clock"),
            source.deduplicate(names, within="1 minute", time="t", lateness="2 minutes", name="within"),
        ],
        {"rows": table},
    )
    columns = " ".join([*names, "v"])
    present = " and ".join(f"{name} is not null" for name in names)
    distinct = (
        f"select {', '.join(names)}, any_value(v) as v from rows where {present} group by {', '.join(names)}"
    )
    once = place.sql(distinct, rows=table)
    tally.rows("deduplicate", place, result.output("ever"), once, columns)
    tally.rows("deduplicate by the clock", place, result.output("by_clock"), once, columns)
    passed = place.sql("select * from passed", passed=(table[0], [_passing(table[1], names)]))
    tally.rows("deduplicate within", place, result.output("within"), passed, f"{columns} t")


def _passing(batches: list[list[Row]], names: list[str]) -> list[Row]:
    """Return the rows that pass within a minute of each other, of those that are at most two minutes late."""
    passed: dict[str, list[dt.datetime]] = defaultdict(list)
    out: list[Row] = []
    watermark = dt.datetime.min.replace(tzinfo=dt.UTC)
    for batch in batches:
        timed = sorted((row for row in batch if row["t"] is not None), key=lambda row: row["t"])
        for row in timed:
            times = passed[repr([row[name] for name in names])]
            late = row["t"] < watermark or any(row[name] is None for name in names)
            if not late and all(abs(row["t"] - time) >= seconds(60) for time in times):
                times.append(row["t"])
                out.append(row)
        if timed:
            watermark = max(watermark, timed[-1]["t"] - seconds(120))
    return out
