"""The rows of ``weir bench elastic``: every key once, then keys at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "one long, two long, note string"
FILL = 500_000  # rows per batch while the state is filled
NOTE = 150  # bytes of a row's text, which the state keeps


class Feed:
    """Hands the query one batch after the other, and counts what it has handed over."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.folder, self.keys = folder, keys
        self.counts = np.zeros(keys, np.int64)
        self._rng, self._number = np.random.default_rng(1), 0
        folder.mkdir()

    def batch(self, one: np.ndarray) -> None:
        np.add.at(self.counts, one, 1)
        notes = pa.array([f"{self._number:08d}".ljust(NOTE, "x")]).dictionary_encode()
        note = pa.DictionaryArray.from_arrays(np.zeros(len(one), np.int32), notes.dictionary)
        table = pa.table({"one": one, "two": self.keys - 1 - one, "note": note.cast(pa.string())})
        name = f"{self._number:06d}.parquet"
        pq.write_table(table, self.folder / f".{name}")
        (self.folder / f".{name}").rename(self.folder / name)
        self._number += 1

    def fill(self) -> Iterator[None]:
        """Hand every key over once; give the word after each batch."""
        for start in range(0, self.keys, FILL):
            self.batch(np.arange(start, min(self.keys, start + FILL)))
            yield

    def some(self, rows: int) -> None:
        self.batch(self._rng.integers(0, self.keys, rows))
