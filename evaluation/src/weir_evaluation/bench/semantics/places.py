"""Where Weir runs, in this process or on Spark, and what keeps count of the cases and of what differs."""

from __future__ import annotations

import datetime as dt
import math
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import weir
from weir.columns import to_schema
from weir.flow import parts_of
from weir.testing import run as run_in_process

IN_PROCESS, ON_SPARK = "in process", "on Spark"
Row = dict[str, Any]
Tables = Mapping[str, tuple[str, list[list[Row]]]]  # of a source: its columns, and its rows batch by batch
Build = Callable[..., list[weir.Stream]]  # of the sources, in order, to the ends of the application


class Results:
    """The outputs and states of an application as rows."""

    def __init__(self, outputs: Mapping[str, Any], state: Callable[[str], pa.Table]) -> None:
        self._outputs, self._state = outputs, state

    def output(self, name: str) -> list[Row]:
        return [row for table in self._outputs.get(name, ()) for row in table.to_pylist()]

    def state(self, name: str) -> list[Row]:
        return list(self._state(name).to_pylist())


@dataclass
class Place:
    """Where Weir runs. Spark SQL is asked in both places.

    In process, rows come in several batches; on Spark, as DataFrames in one bounded run.
    """

    spark: Any
    name: str = IN_PROCESS

    @property
    def batches(self) -> int:
        """How many batches rows may come in."""
        return 1 if self.name == ON_SPARK else 4

    def run(self, rng: random.Random, build: Build, tables: Tables) -> Results:
        """Run the application that ``build`` makes of one source per table, to the end of the input."""
        servers = rng.randint(1, 4)
        if self.name == ON_SPARK:
            return self._on_spark(min(servers, 3), build, tables)
        app = weir.Application(*build(*(weir.source(schema, name) for name, (schema, _) in tables.items())))
        count = max(len(batches) for _, batches in tables.values())
        fed = [{name: batches[b] for name, (_, batches) in tables.items()} for b in range(count)]
        query = run_in_process(app, fed, servers=servers)
        return Results({name: [table] for name, table in query.outputs.items()}, query.state)

    def _on_spark(self, servers: int, build: Build, tables: Tables) -> Results:
        sources = [
            weir.source(self.frame([row for batch in batches for row in batch], schema), name)
            for name, (schema, batches) in tables.items()
        ]
        app = weir.Application(*build(*sources))
        outputs: dict[str, list[pa.Table]] = defaultdict(list)

        def collector(name: str) -> Callable[[Any, int], None]:
            return lambda frame, batch: outputs[name].append(frame.toArrow())

        folder = tempfile.TemporaryDirectory(
            prefix="weir-semantics-"
        )  # goes with the last who may read state
        sinks = {name: collector(name) for name in parts_of(app).leaves}
        query = app.run(folder.name, servers=servers, sink=sinks)
        return Results(outputs, lambda name, folder=folder: query.state(name).toArrow())  # type: ignore[misc]

    def frame(self, rows: list[Row], schema: str) -> Any:
        """Return rows as a DataFrame."""
        from weir.spark.session import to_ddl

        columns = to_schema(schema)
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in columns]
        # left alone, Spark takes timestamp_ntz for timestamp
        return self.spark.createDataFrame(pa.Table.from_arrays(arrays, schema=columns), to_ddl(columns))

    def sql(self, query: str, **tables: tuple[str, list[list[Row]]]) -> list[Row]:
        """Return what Spark SQL answers; ``tables`` are views that the query may name."""
        for name, (schema, batches) in tables.items():
            self.frame([row for batch in batches for row in batch], schema).createOrReplaceTempView(name)
        try:
            return list(self.spark.sql(query).toArrow().to_pylist())
        finally:
            for name in tables:
                self.spark.catalog.dropTempView(name)


@dataclass
class Tally:
    """Counts cases by kind and place, and keeps what differs."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[Row] = field(default_factory=list)

    def compare(
        self,
        kind: str,
        place: Place,
        ours: Mapping[Any, Any],
        theirs: Mapping[Any, Any],
        about: Callable[[Any], Row] = lambda key: {"case": repr(key)},
        same: Callable[[Any, Any], bool] = lambda mine, other: bool(mine == other),
    ) -> None:
        """Compare two results by key; each key is a case. ``about`` tells what a difference is about."""
        for key in ours.keys() | theirs.keys():
            self.cases[kind, place.name] += 1
            mine, other = ours.get(key), theirs.get(key)
            if key not in ours or key not in theirs or not same(mine, other):
                found = {"kind": kind, "place": place.name, "weir": repr(mine), "spark": repr(other)}
                self.differences.append({**found, **about(key)})

    def rows(self, kind: str, place: Place, ours: list[Row], theirs: list[Row], columns: str) -> None:
        """Compare rows by some columns, whatever their order; each row is a case."""
        self.compare(kind, place, _counted(ours, columns.split()), _counted(theirs, columns.split()))

    def by(self, part: int) -> dict[str, int]:
        """Return the number of cases by kind (0) or by place (1)."""
        totals: Counter[str] = Counter()
        for names, count in self.cases.items():
            totals[names[part]] += count
        return dict(sorted(totals.items()))


def _counted(rows: Iterable[Row], columns: list[str]) -> dict[Any, int]:
    """Rows as text, which tells NaN from null and -0.0 from 0.0, and takes NaN for equal to itself.

    Equal rows are numbered: each is a case of its own.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    numbered = {}
    for row in rows:
        text = tuple(repr(row[name]) for name in columns)
        seen[text] += 1
        numbered[*text, seen[text]] = 1
    return numbered


def cut(rng: random.Random, rows: list[Row], count: int) -> list[list[Row]]:
    """Return rows in so many batches, of which some may be empty."""
    cuts = sorted(rng.randint(0, len(rows)) for _ in range(count - 1))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def same_number(mine: Any, theirs: Any) -> bool:
    """Whether values are equal; sums and moments of floats depend on the order of their terms, in both systems."""
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(same_number, mine, theirs))
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        return mine == theirs or math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-6)
    if mine is None or theirs is None:
        return mine is None and theirs is None
    return bool(mine == theirs)


def seconds(count: float) -> dt.timedelta:
    return dt.timedelta(seconds=count)
