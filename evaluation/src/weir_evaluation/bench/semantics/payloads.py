"""Nested values on their way through functions of rows, keyed operators and windows."""

from __future__ import annotations

import random
from typing import Any

import weir
from weir.flow import parts_of
from weir_evaluation.bench.semantics.places import IN_PROCESS, Place, Tally, cut, seconds
from weir_evaluation.bench.semantics.values import (
    DAY,
    TEXTS,
    TYPES,
    array_of,
    map_of,
    maybe,
    nested,
    part,
    struct_of,
)


def payloads(place: Place, rng: random.Random, tally: Tally, count: int = 200) -> None:
    """Compare nested values that pass, and parts that functions take out of them, with Spark SQL."""
    field, element, value = (part(rng, 2) for _ in range(3))
    drawn = {
        "s": struct_of(field, part(rng, 2)),
        "l": array_of(element),
        "m": map_of(("string", TYPES["string"]), value),
        "x": nested(rng),
        "y": nested(rng, 4),
    }
    rows = [
        {"i": i, "k": rng.choice(TEXTS), "t": DAY + seconds(rng.randint(0, 600))}
        | {name: maybe(rng, draw) for name, (_, draw) in drawn.items()}
        for i in range(count)
    ]
    schema = ", ".join(
        ["i long", "k string", "t timestamp", *(f"{name} {kind}" for name, (kind, _) in drawn.items())]
    )
    parts = f"i long, a {field[0]}, e {element[0]}, g {value[0]}"
    table = schema, cut(rng, rows, rng.randint(1, place.batches))

    def build(source: weir.Stream) -> list[weir.Stream]:
        counts: Any = {f"n{name}": f"count({name})" for name in drawn}
        window = weir.tumbling("t", "1 minute", lateness="1 hour")
        return [
            source.map(lambda row: row, name="map"),
            source.map(_parts, parts, name="parts"),
            source.flat_map(_elements, f"i long, p int, e {element[0]}", name="flat_map"),
            source.process("k", lambda key, rows, state: rows, output=schema, name="process"),
            source.keyed("k", weir.Count(emit="rows"), name="count").filter(lambda row: True, name="filter"),
            source.keyed("k", weir.Aggregate(**counts), window=window, name="window"),
        ]

    result = place.run(rng, build, {"rows": table})
    asked = dict.fromkeys(("map", "process", "filter"), ("select * from rows", "i k t s l m x y"))
    asked["parts"] = "select i, s.a as a, get(l, 0) as e, try_element_at(m, 'a') as g from rows", "i a e g"
    asked["flat_map"] = "select i, posexplode(l) as (p, e) from rows", "i p e"
    counts = ", ".join(f"count({name}) as n{name}" for name in drawn)
    asked["window"] = (
        f"select k, window(t, '1 minute').start as window_start, {counts} from rows "
        "group by k, window(t, '1 minute')",
        "k window_start ns nl nm nx ny",
    )
    for name, (query, columns) in asked.items():
        theirs = place.sql(query, rows=table)
        tally.rows(f"nested values through {name}", place, result.output(name), theirs, columns)
    if place.name == IN_PROCESS:
        _refused_keys(place, tally, schema, drawn.keys())


def _parts(row: Any) -> tuple[Any, ...]:
    return (
        row.i,
        row.s["a"] if row.s else None,
        row.l[0] if row.l else None,
        dict(row.m).get("a") if row.m else None,
    )


def _elements(row: Any) -> list[tuple[Any, ...]]:
    return [(row.i, place, element) for place, element in enumerate(row.l or [])]


def _refused_keys(place: Place, tally: Tally, schema: str, columns: Any) -> None:
    """Weir takes no nested keys, and says so before anything runs."""
    for column in columns:
        try:
            parts_of(weir.source(schema).count(column)).topology(1)
            answer = "taken"
        except weir.errors.TopologyError as error:
            answer = "refused" if "cannot be a key" in str(error) else str(error)
        tally.compare("nested key refused", place, {column: answer}, {column: "refused"})
