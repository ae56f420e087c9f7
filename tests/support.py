"""What several tests share: streams of posts, an application that counts them, and the true answers to compare with."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir

NOW = {"availableNow": True}
POSTS = "place string, topic string, n long"


def write_batches(folder: Path, tables: list[pa.Table]) -> str:
    """One file per micro-batch, read in order of name."""
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.glob("*.parquet")))
    for number, table in enumerate(tables, start):
        path = folder / f"{number:05d}.parquet"
        hidden = folder / f".{path.name}"  # a query that looks on must not see it before it has its age
        pq.write_table(table, hidden)
        age = 1_700_000_000 + number  # Spark reads files in order of age
        os.utime(hidden, (age, age))
        hidden.rename(path)
    return str(folder)


def write_parts(folder: Path, batches: int, parts: int = 4, rows: int = 300, strays: float = 0.1) -> str:
    """Files by place: each folder holds posts of its own places, with a share of strays from all others."""
    rng = np.random.default_rng(batches)
    for batch in range(batches):
        for part in range(parts):
            of = np.where(rng.random(rows) < strays, rng.integers(0, parts, rows), part)
            place = rng.integers(0, 10, rows) * parts + of
            table = pa.table(
                {
                    "place": pa.array([f"place {p}" for p in place]),
                    "topic": pa.array([f"topic {(7 * p + t) % 60}" for p, t in zip(place, of, strict=True)]),
                    "n": pa.array(rng.integers(0, 1000, rows)),
                    "unread": pa.array(["x" * 20] * rows),
                }
            )
            path = folder / f"part={part}" / f"{batch}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            at = 1_700_000_000 + 100 * batch + part
            os.utime(path, (at, at))
    return str(folder)


def places_and_topics(rows: weir.Stream) -> weir.Stream:
    """Return an application that counts places, each on the server of its number, and adds up topics."""
    table = weir.Table.of({f"place {p}": p % 4 for p in range(40)})
    return rows.keyed("place", weir.Count(emit="rows"), name="places", routing=table).keyed(
        "topic", weir.Aggregate(total="sum(n)"), name="topics"
    )


def watch_fsync(monkeypatch: Any, root: Path) -> list[str]:
    """The list to which every file and folder is added, by its path below ``root``, when it is flushed to disk."""
    synced, real = list[str](), os.fsync
    monkeypatch.setattr("weir.state.local_files._flushing", True)  # see conftest.py

    def note(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), root))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    return synced


def run_app(
    app: Path, *args: str, timeout: float, fault: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program of the tests by itself; with a fault, it kills itself there.

    The rows of tests are short; all go through files where servers share a host, as long ones would.
    """
    env = {k: v for k, v in os.environ.items() if k != "WEIR_FAULT"}
    env |= {"PYSPARK_PYTHON": sys.executable, "WEIR_HANDOFF_BYTES": "1"}
    if fault is not None:
        env["WEIR_FAULT"] = fault
    command = [sys.executable, str(app), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def stream(spark: Any, folder: str | Path, schema: str = POSTS, files: int = 1) -> Any:
    """Return a streaming DataFrame of the files in a folder, so many per batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))


def posts(rows: int, seed: int, places: int = 20, topics: int = 200) -> pa.Table:
    """Posts with a place, a topic that favours its place, and a number."""
    rng = np.random.default_rng(seed)
    place = rng.zipf(1.5, rows) % places
    topic = np.where(
        rng.random(rows) < 0.7, place * 10 + rng.integers(0, 10, rows), rng.integers(0, topics, rows)
    )
    return pa.table(
        {
            "place": pa.array([f"place {p}" for p in place]),
            "topic": pa.array([f"topic {t % topics}" for t in topic]),
            "n": pa.array(rng.integers(0, 1000, rows)),
        }
    )


def every_type(n: int = 400) -> pa.Table:
    """Return rows with a column of every type that a key may have."""
    return pa.table(
        {
            "s": pa.array([f"k{i % 7}" if i % 11 else None for i in range(n)]),
            "i": pa.array([i % 5 - 2 for i in range(n)], pa.int32()),
            "l": pa.array([(i % 6) * 10**12 for i in range(n)]),
            "d": pa.array([dt.date(2020, 1, 1 + i % 9) for i in range(n)]),
            "t": pa.array(
                [dt.datetime(2020, 1, 1, i % 8, tzinfo=dt.UTC) for i in range(n)], pa.timestamp("us", "UTC")
            ),
            "b": pa.array([i % 2 == 0 for i in range(n)]),
            "y": pa.array([bytes([i % 4]) for i in range(n)]),
        }
    )


def two_counts(rows: Any = POSTS, *, places: Any = None, **topics: Any) -> weir.Stream:
    """Return an application that counts posts by place, then by topic.

    ``rows`` is a DataFrame, or the schema of what weir.testing feeds; ``places`` the routing of the first operator;
    ``topics`` are options of the second.
    """
    return (
        weir.source(rows)
        .keyed("place", weir.Count(emit="rows"), name="places", routing=places)
        .keyed("topic", weir.Count(emit="rows"), name="topics", **topics)
    )


def rows_of(rows: Any) -> list[tuple[Any, ...]]:
    """Return the rows of an Arrow table or a DataFrame in an order of their own, to compare whatever the order."""
    if isinstance(rows, pa.Table):
        tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    else:
        tuples = [tuple(row) for row in rows.collect()]
    return sorted(tuples, key=repr)


def dicts(tables: pa.Table | Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of one or several tables."""
    return [
        row for table in ([tables] if isinstance(tables, pa.Table) else tables) for row in table.to_pylist()
    ]


def grouped(
    tables: pa.Table | Iterable[pa.Table], *columns: str
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows of tables by their values in some columns, in plain Python."""
    groups = defaultdict(list)
    for row in dicts(tables):
        groups[tuple(row[c] for c in columns)].append(row)
    return groups


def counts(tables: pa.Table | Iterable[pa.Table], *columns: str) -> list[tuple[Any, ...]]:
    """Return how often each value of some columns occurs, counted in plain Python; ordered as by rows_of."""
    counter = Counter(tuple(row[c] for c in columns) for row in dicts(tables))
    return sorted(((*values, count) for values, count in counter.items()), key=repr)


def sums(tables: pa.Table | Iterable[pa.Table], column: str, value: str) -> list[tuple[Any, ...]]:
    """Return the sum of one column by another, added up in plain Python; ordered as by rows_of."""
    groups = grouped(tables, column)
    return sorted(((*key, sum(row[value] for row in rows)) for key, rows in groups.items()), key=repr)


def counted(spark: Any, folder: str | Path, column: str, schema: str = POSTS) -> list[tuple[Any, ...]]:
    """Return plain Spark's count by a column."""
    return rows_of(spark.read.schema(schema).parquet(str(folder)).groupBy(column).count())


@dataclass
class Run:
    rows: int = 0
    last: int = -1
    rises: int = 0
    seen: list[int] = field(default_factory=list)


class Rises(weir.Process):
    """Counts how often a key's number rises from one row to the next: depends on order."""

    state = Run
    output = {"topic": "string", "rises": "long"}

    def process(self, key, rows, state):
        for row in rows:
            state.rises += row.n > state.last
            state.last = row.n
            state.rows += 1
        state.seen = sorted({*state.seen, *(r.n % 5 for r in rows)})
        yield {"topic": key, "rises": state.rises}


def rises_in_python(tables):
    out = {}
    for table in tables:
        groups: dict[str, list[int]] = {}
        for topic, n in zip(table["topic"].to_pylist(), table["n"].to_pylist(), strict=True):
            groups.setdefault(topic, []).append(n)
        for topic, numbers in groups.items():
            rises, last = out.get(topic, (0, -1))
            for n in sorted(numbers):
                rises += n > last
                last = n
            out[topic] = (rises, last)
    return {k: v[0] for k, v in out.items()}
