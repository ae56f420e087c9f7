"""What several tests share: streams as files, and plain Spark's answer to compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir


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


def watch_fsync(monkeypatch: Any, root: Path) -> list[str]:
    """The list to which every file and folder is added, by its path below ``root``, when it is flushed to disk."""
    synced, real = list[str](), os.fsync

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
    env |= {"PYSPARK_PYTHON": sys.executable, "WEIR_PARCEL_BYTES": "1"}
    if fault is not None:
        env["WEIR_FAULT"] = fault
    command = [sys.executable, str(app), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def stream(spark: Any, folder: str | Path, schema: str, files: int = 1) -> Any:
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


POSTS = "place string, topic string, n long"


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """The rows of a DataFrame as a set-like list, to compare whatever the order."""
    return sorted((tuple(r) for r in frame.collect()), key=repr)


def counted(spark: Any, folder: str | Path, column: str, schema: str = POSTS) -> list[tuple[Any, ...]]:
    """Plain Spark's count by a column: what every run must equal."""
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
