"""What several tests share: streams as files, and plain Spark's answer to compare with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_batches(folder: Path, tables: list[pa.Table]) -> str:
    """One file per micro-batch, read in order of name."""
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.glob("*.parquet")))
    for number, table in enumerate(tables, start):
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads files in order of age
    return str(folder)


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
