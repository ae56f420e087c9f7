"""Differential testing of meaning: random rows of every type, aggregated, windowed and joined by Weir and by Spark.

A case is one group, window or row of a join, with one function over one type. Rows hold nulls, NaN, extremes and
Unicode. Weir gets them in random batches, on a random number of servers, with keys split or not; Spark SQL in ANSI mode
gets them at once.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.console import Console

import weir
from weir.cli.drawing import table as drawn_table
from weir.columns import to_type
from weir.testing import run as run_in_process

HELP = "every aggregate, window and join over every type, compared with Spark SQL in ANSI mode"
GROUPS, ROWS = 250, 9  # per round
DAY = dt.datetime(2024, 3, 30, tzinfo=dt.UTC)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", type=int, default=20_000, help="cases to compare at least (default 20,000)"
    )
    parser.add_argument("--seed", type=int, default=0)


def _decimal(rng: random.Random, digits: int, scale: int) -> Decimal:
    return Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)


def _floats(rng: random.Random) -> float:
    special = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-300, 1.5, -2.25]
    return rng.choice(special) if rng.random() < 0.3 else rng.uniform(-1e6, 1e6)


def _whole(bits: int) -> Callable[[random.Random], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    # of the extremes as many as a sum of 64 bits can take
    return lambda rng: (
        rng.choice([low, high]) if bits < 64 and rng.random() < 0.2 else rng.randint(low >> 8, high >> 8)
    )


TEXTS = ["", "a", "A", "ä", "ß", "ſ", "日本", "\U0001f600", "z" * 20, "a\u0301", "\u00e1", "0", " "]
TYPES: dict[str, Callable[[random.Random], Any]] = {
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": lambda rng: float(pa.scalar(_floats(rng), pa.float32()).as_py()),
    "double": _floats,
    "decimal(10,2)": lambda rng: _decimal(rng, 10, 2),
    "decimal(28,5)": lambda rng: _decimal(rng, 28, 5),
    "string": lambda rng: rng.choice(TEXTS),
    "binary": lambda rng: rng.randbytes(rng.randint(0, 4)),
    "boolean": lambda rng: rng.random() < 0.5,
    "date": lambda rng: dt.date(1, 1, 1) + dt.timedelta(days=rng.randint(0, 3_000_000)),
    "timestamp": lambda rng: DAY + dt.timedelta(microseconds=rng.randint(-(10**16), 10**16)),
    "timestamp_ntz": lambda rng: (DAY + dt.timedelta(microseconds=rng.randint(-(10**16), 10**16))).replace(
        tzinfo=None
    ),
}
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(28,5)")
# Weir's function → Spark's expression; {c} is the column
FUNCTIONS = {
    "count": "count(*)",
    "count(c)": "count(c)",
    "min(c)": "min(c)",
    "max(c)": "max(c)",
    "first(c, o)": "min_by(c, struct(o, c)) filter (where c is not null and o is not null)",
    "last(c, o)": "max_by(c, struct(o, c)) filter (where c is not null and o is not null)",
    "top_k(c, 3)": "slice(sort_array(collect_list(c), false), 1, 3)",
    "approx_distinct(c)": "count(distinct c)",
    "sum(c)": "sum(c)",
    "avg(c)": "avg(cast(c as double))",
    "variance(c)": "variance(cast(c as double))",
    "stddev(c)": "stddev(cast(c as double))",
}
ONLY_NUMBERS = ("sum(c)", "avg(c)", "variance(c)", "stddev(c)")
# what differs from Spark on purpose; docs/moving.md says the same to users
ON_PURPOSE = {
    "variance(c)": "of infinite values Spark has NaN where Weir has NaN or null",
    "stddev(c)": "as variance",
}


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    spark = embedded("local[2]", "weir-semantics", **{"spark.sql.ansi.enabled": "true"})
    rng, began = random.Random(args.seed), time.perf_counter()
    cases: dict[str, int] = defaultdict(int)
    differences: list[dict[str, Any]] = []
    try:
        while sum(cases.values()) < args.cases:
            for kind in TYPES:
                _aggregates(spark, rng, kind, cases, differences)
            _windows(spark, rng, cases, differences)
            _joins(spark, rng, cases, differences)
            console.print(f"{sum(cases.values()):,} cases, {len(differences)} differences", highlight=False)
    finally:
        spark.stop()
    return {
        "cases": sum(cases.values()),
        "by_function": dict(cases),
        "differences": differences[:100],
        "unexplained": len(differences),
        "on_purpose": ON_PURPOSE,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _aggregates(
    spark: Any, rng: random.Random, kind: str, cases: dict[str, int], differences: list[dict[str, Any]]
) -> None:
    rows = [
        {
            "g": group,
            "c": None if rng.random() < 0.2 else TYPES[kind](rng),
            "o": None if rng.random() < 0.1 else rng.randint(0, 4),
        }
        for group in range(GROUPS)
        for _ in range(rng.randint(1, ROWS))
    ]
    functions = [f for f in FUNCTIONS if kind in NUMBERS or f not in ONLY_NUMBERS]
    schema = f"g long, c {kind}, o long"
    values: Any = {f"f{i}": f for i, f in enumerate(functions)}
    source = weir.source(schema)
    routing = rng.choice([weir.Hash(), weir.PartialKey(), weir.Consistent()])
    app = source.keyed("g", weir.Aggregate(**values), name="groups", routing=routing)
    shuffled = rng.sample(rows, len(rows))
    result = run_in_process(app, _batches(rng, shuffled), servers=rng.randint(1, 4)).state("groups")
    ours = {row["g"]: row for row in result.to_pylist()}
    expressions = [f"{FUNCTIONS[f]} as f{i}" for i, f in enumerate(functions)]
    frame = _frame(spark, rows, schema).groupBy("g").agg(*(_expression(e) for e in expressions))
    for row in frame.collect():
        for i, function in enumerate(functions):
            cases[function] += 1
            mine, theirs = ours[row["g"]][f"f{i}"], row[f"f{i}"]
            if not _same(mine, theirs, function) and not (
                function in ON_PURPOSE and _unbounded(rows, row["g"])
            ):
                given = [r["c"] for r in rows if r["g"] == row["g"]]
                differences.append(
                    {
                        "function": function,
                        "type": kind,
                        "rows": repr(given),
                        "weir": repr(mine),
                        "spark": repr(theirs),
                    }
                )


def _unbounded(rows: list[dict[str, Any]], group: int) -> bool:
    return any(isinstance(r["c"], float) and not math.isfinite(r["c"]) for r in rows if r["g"] == group)


def _windows(
    spark: Any, rng: random.Random, cases: dict[str, int], differences: list[dict[str, Any]]
) -> None:
    rows = [
        {
            "g": rng.randint(0, 20),
            "t": DAY + dt.timedelta(seconds=rng.randint(0, 7200)),
            "n": rng.randint(0, 99),
        }
        for _ in range(1500)
    ]
    schema = "g long, t timestamp, n long"
    kinds = {
        "tumbling": (weir.tumbling("t", "10 minutes", lateness="3 hours"), "window(t, '10 minutes')"),
        "sliding": (
            weir.sliding("t", "10 minutes", "4 minutes", lateness="3 hours"),
            "window(t, '10 minutes', '4 minutes')",
        ),
        "session": (weir.session("t", "2 minutes", lateness="3 hours"), "session_window(t, '2 minutes')"),
    }
    for name, (window, expression) in kinds.items():
        app = weir.source(schema).keyed(
            "g", weir.Aggregate(n="count", total="sum(n)"), window=window, name="w"
        )
        query = run_in_process(app, _batches(rng, rng.sample(rows, len(rows))), servers=rng.randint(1, 4))
        ours = {
            (r["g"], r["window_start"], r["window_end"]): (r["n"], r["total"])
            for r in query.output("w").to_pylist()
        }
        _frame(spark, rows, schema).createOrReplaceTempView("rows")
        asked = (
            f"select g, {expression} as w, count(*) as n, sum(n) as total from rows group by g, {expression}"
        )
        theirs = {
            (r["g"], _utc(r["w"]["start"]), _utc(r["w"]["end"])): (r["n"], r["total"])
            for r in spark.sql(asked).collect()
        }
        for window_of in ours.keys() | theirs.keys():
            cases[f"{name} window"] += 1
            if ours.get(window_of) != theirs.get(window_of):
                mine, spark_has = repr(ours.get(window_of)), repr(theirs.get(window_of))
                differences.append(
                    {"function": f"{name} window", "rows": repr(window_of), "weir": mine, "spark": spark_has}
                )


def _joins(spark: Any, rng: random.Random, cases: dict[str, int], differences: list[dict[str, Any]]) -> None:
    def side(name: str) -> list[dict[str, Any]]:
        return [
            {
                "k": rng.choice([None, *TEXTS]),
                "t": DAY + dt.timedelta(seconds=rng.randint(0, 600)),
                name: number,
            }
            for number in range(120)
        ]

    left, right = side("a"), side("b")
    schemas = "k string, t timestamp, a long", "k string, t timestamp, b long"
    for name, rows, schema in (("l", left, schemas[0]), ("r", right, schemas[1])):
        _frame(spark, rows, schema).createOrReplaceTempView(name)
    for how in ("inner", "left", "full"):
        one, other = weir.source(schemas[0], "one"), weir.source(schemas[1], "other")
        app = one.join(other, "k", how=how, within="1 minute", time="t", lateness="1 hour", name="j")
        batches = [
            {"one": a, "other": b}
            for a, b in zip(_batches(rng, left, 3), _batches(rng, right, 3), strict=True)
        ]
        rows_out = run_in_process(app, batches, servers=rng.randint(1, 4)).output("j").to_pylist()
        ours = sorted(
            (_none(r["k"]), r["a"] if r["a"] is not None else -1, r["b"] if r["b"] is not None else -1)
            for r in rows_out
        )
        asked = (
            f"select coalesce(l.k, r.k) as k, a, b from l {how} join r on l.k = r.k "
            "and r.t between l.t - interval 1 minute and l.t + interval 1 minute"
        )
        theirs = sorted(
            (_none(r["k"]), r["a"] if r["a"] is not None else -1, r["b"] if r["b"] is not None else -1)
            for r in spark.sql(asked).collect()
        )
        cases[f"{how} join"] += max(len(ours), len(theirs))
        for row in set(ours) ^ set(theirs):
            differences.append(
                {"function": f"{how} join", "rows": repr(row), "weir": row in ours, "spark": row in theirs}
            )


def _none(text: str | None) -> str:
    return "\x00none" if text is None else text


def _batches(
    rng: random.Random, rows: list[dict[str, Any]], count: int | None = None
) -> list[list[dict[str, Any]]]:
    cuts = sorted(rng.randint(0, len(rows)) for _ in range((count or rng.randint(1, 4)) - 1))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def _frame(spark: Any, rows: list[dict[str, Any]], schema: str) -> Any:
    fields = [part.strip().split(" ", 1) for part in schema.replace(", ", "\n").split("\n")]
    columns = {name: pa.array([r[name] for r in rows], to_type(kind)) for name, kind in fields}
    return spark.createDataFrame(pa.table(columns))


def _expression(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC)


def _same(mine: Any, theirs: Any, function: str) -> bool:
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(
            _same(a, b, function) for a, b in zip(mine, theirs, strict=True)
        )
    if isinstance(theirs, bytearray):
        theirs = bytes(theirs)
    if isinstance(mine, dt.datetime) and isinstance(theirs, dt.datetime) and mine.tzinfo is not None:
        return mine == _utc(theirs)
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        # sums and moments depend on the order of their terms, in both systems
        return mine == theirs or math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-6)
    if function.startswith("approx"):
        return abs(mine - theirs) <= max(1, 0.05 * theirs)
    if mine is None or theirs is None:
        return mine is None and theirs is None
    return bool(mine == theirs)


def show(result: dict[str, Any], console: Console) -> None:
    counted = drawn_table(f"{result['cases']:,} cases in {result['seconds']:.0f} s", "what", ">cases")
    for name, count in sorted(result["by_function"].items()):
        counted.add_row(name, f"{count:,}")
    console.print(counted)
    for one in result["differences"][:20]:
        console.print(one)
    console.print(f"{result['unexplained']} unexplained differences", highlight=False)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if a difference is not explained."""
    return 1 if result["unexplained"] else 0
