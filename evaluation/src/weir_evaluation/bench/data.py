"""Generated streams for benchmarks: pairs of keys with a known locality, skew and payload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.routing.table import Table


def correlated_pairs(
    rows: int, keys: int, groups: int, locality: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two key numbers per row; with probability ``locality`` both are of one group (number mod groups)."""
    rng = np.random.default_rng(seed)
    left = rng.integers(0, keys, rows)
    right = rng.integers(0, keys // groups, rows) * groups
    same = rng.random(rows) < locality
    other = (left + rng.integers(1, max(2, groups), rows)) % groups
    return left, right + np.where(same, left % groups, other)


def bodies(rows: int, size: int, rng: np.random.Generator) -> pa.Array:
    """Random bytes for each row, which no compression makes smaller.

    >>> made = bodies(3, 5, np.random.default_rng(0))
    >>> len(made), {len(body.as_py()) for body in made}
    (3, {5})
    """
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(size)
    parts = [None, pa.py_buffer(ends), pa.py_buffer(rng.bytes(rows * size))]
    return pa.Array.from_buffers(pa.binary(), rows, parts)


def write_pairs(
    folder: Path,
    *,
    batches: int,
    rows: int,
    keys: int,
    servers: int,
    locality: float,
    payload: int,
    files_per_batch: int = 2,
    row_group: int | None = None,
    seed: int = 0,
) -> None:
    """Writes Parquet files of ``(k1, k2, payload)``; each micro-batch is ``files_per_batch`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(batches * files_per_batch):
        n = rows // files_per_batch
        left, right = correlated_pairs(n, keys, servers, locality, seed * 1000 + number)
        k1 = pa.compute.binary_join_element_wise("a", pa.array(left).cast(pa.string()), "-")
        k2 = pa.compute.binary_join_element_wise("b", pa.array(right).cast(pa.string()), "-")
        if payload:
            # a few kB of random bytes, cut at random offsets: different in every row, yet cheap to make
            pool = rng.integers(0, 256, payload + (1 << 20), np.uint8).tobytes()
            starts = rng.integers(0, 1 << 20, n)
            body = pa.array([pool[s : s + payload] for s in starts], pa.binary())
        else:
            body = pa.array([b""] * n, pa.binary())
        table = pa.table({"k1": k1, "k2": k2, "payload": body})
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=row_group)


def fitting_tables(keys: int, servers: int) -> tuple[Table, Table]:
    """The tables that make the generated pairs local: each group on one server."""
    first = Table.of({f"a-{i}": i % servers for i in range(keys)})
    second = Table.of({f"b-{i}": i % servers for i in range(keys)})
    return first, second
