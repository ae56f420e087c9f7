"""Differential testing of meaning: random rows of every type, through every kind of operator, by Weir and by Spark.

A case is one group, window or row, of one operator over one type. Rows hold nulls, NaN, extremes and Unicode, and
structs, arrays and maps of each other. In process, Weir gets them in random batches, on a random number of servers,
with keys split or not; a share of the cases runs on Spark, many of them in one application. Spark SQL in ANSI mode
gets all rows at once.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from rich.console import Console

from weir.cli.drawing import table as drawn_table
from weir_evaluation.bench.semantics.grouped import ON_PURPOSE, aggregates, windows
from weir_evaluation.bench.semantics.joined import duplicates, joins, lookups
from weir_evaluation.bench.semantics.payloads import payloads
from weir_evaluation.bench.semantics.places import IN_PROCESS, ON_SPARK, Place, Tally
from weir_evaluation.bench.semantics.values import TYPES

HELP = "aggregates, windows, joins, lookups and duplicates over every type, compared with Spark SQL"
GROUPS = 250  # of a round of aggregates
DRAWS = 5  # in process, of nested types in a round: they cost milliseconds there, and seconds on Spark


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", type=int, default=20_000, help="cases to compare at least (default 20,000)"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    spark = embedded("local[2]", "weir-semantics", **{"spark.sql.ansi.enabled": "true"})
    rng, began, tally = random.Random(args.seed), time.perf_counter(), Tally()
    try:
        while tally.cases.total() < args.cases:
            in_process(Place(spark, IN_PROCESS), rng, tally)
            on_spark(Place(spark, ON_SPARK), rng, tally)
            console.print(
                f"{tally.cases.total():,} cases, {len(tally.differences)} differences", highlight=False
            )
    finally:
        spark.stop()
    return {
        "cases": tally.cases.total(),
        "by_kind": tally.by(0),
        "by_place": tally.by(1),
        "by_kind_and_place": {
            place: {kind: count for (kind, where), count in sorted(tally.cases.items()) if where == place}
            for place in (IN_PROCESS, ON_SPARK)
        },
        "differences": tally.differences[:100],
        "unexplained": len(tally.differences),
        "on_purpose": ON_PURPOSE,
        "seconds": round(time.perf_counter() - began, 1),
    }


def in_process(
    place: Place, rng: random.Random, tally: Tally, groups: int = GROUPS, draws: int = DRAWS
) -> None:
    """Run one round: an application for each type, and several with nested values."""
    for kind in TYPES:
        aggregates(place, rng, tally, [kind], groups)
    windows(place, rng, tally)
    for _ in range(draws):
        for check in (joins, lookups, duplicates, payloads):
            check(place, rng, tally)


def on_spark(place: Place, rng: random.Random, tally: Tally, groups: int = GROUPS) -> None:
    """Run one round: few applications, of which each carries many cases."""
    aggregates(place, rng, tally, list(TYPES), groups)
    for check in (windows, joins, lookups, duplicates, payloads):
        check(place, rng, tally)


def show(result: dict[str, Any], console: Console) -> None:
    places = result["by_kind_and_place"]
    title = f"{result['cases']:,} cases in {result['seconds']:.0f} s"
    counted = drawn_table(title, "what", *(f">{place}" for place in places))
    for kind in result["by_kind"]:
        counted.add_row(kind, *(f"{places[place].get(kind, 0):,}" for place in places))
    console.print(counted)
    for one in result["differences"][:20]:
        console.print(one)
    console.print(f"{result['unexplained']} unexplained differences", highlight=False)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if a difference is not explained."""
    return 1 if result["unexplained"] else 0
