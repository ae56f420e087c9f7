"""Recorded streams for the tests of advice: rows with a time, a place and a topic, whose best routing is obvious."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

START = datetime(2024, 1, 1)


def stream_of(place: Sequence[int] | NDArray, topic: Sequence[int] | NDArray) -> pa.Table:
    """Return rows a second apart."""
    when = pa.array([START + timedelta(seconds=i) for i in range(len(place))], pa.timestamp("us", "UTC"))
    names = [
        pa.array([f"{kind} {k}" for k in keys], pa.string()) for kind, keys in (("p", place), ("t", topic))
    ]
    return pa.table({"time": when, "place": names[0], "topic": names[1], "n": np.arange(len(place))})


def planted(
    rows: int = 8_000, seed: int = 0, groups: int = 16, together: float = 0.9, shift: int = 0, keys: int = 80
) -> tuple[NDArray, NDArray]:
    """Return places and topics: those of equal ``number % groups`` meet; ``shift`` regroups the topics."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, keys, rows)
    own = rng.integers(0, keys // groups, rows) * groups + (place + shift * (place // groups)) % groups
    return place, np.where(rng.random(rows) < together, own, rng.integers(0, keys, rows))


def write(path: Path, table: pa.Table) -> Path:
    """Write a table as Parquet, and return its path."""
    pq.write_table(table, path)
    return path
