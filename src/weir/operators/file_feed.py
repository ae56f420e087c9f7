"""Files of one listing, cut into batches by their length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.operators.read import BYTES, LISTING, MODIFIED, PATH

TICK, DONE = "tick", "done"


@dataclass
class FileFeed:
    """Takes the files that Spark lists in a round in the order of their times, as many as fit into a batch.

    A position is a round and the number of its files that have been read; a round that comes again lists the same.
    """

    most: int | None = None
    first: int = 16 << 20  # bytes
    smallest: int = 1
    _files: pa.Table = field(default_factory=LISTING.empty_table)
    _ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def begin(self, position: dict[str, int] | None, tick: int, listing: pa.Table | None) -> dict[str, int]:
        files = LISTING.empty_table() if listing is None else listing
        self._files = files.sort_by([(MODIFIED, "ascending"), (PATH, "ascending")])
        self._ends = np.concatenate([[0], np.cumsum(self._files[BYTES].to_numpy())])
        again = position is not None and position[TICK] == tick
        return {TICK: tick, DONE: position[DONE] if again and position is not None else 0}

    def cut(
        self, position: dict[str, int], most: float | None
    ) -> tuple[dict[str, list[Any]], dict[str, int]]:
        done, count = position[DONE], self._files.num_rows
        fits = (
            count if most is None else int(np.searchsorted(self._ends, self._ends[done] + most, "right")) - 1
        )
        end = min(count, max(done + 1, fits))
        part = self._files.slice(done, end - done)
        part = part.set_column(part.column_names.index(MODIFIED), MODIFIED, part[MODIFIED].cast(pa.int64()))
        return part.to_pydict(), {**position, DONE: end}

    def size(self, position: dict[str, int]) -> int:
        left = self._files.num_rows - position[DONE]
        return int(self._ends[-1] - self._ends[position[DONE]]) or left  # empty files are read, too

    def about(self, position: dict[str, int]) -> dict[str, Any]:
        return {"lag": self._files.num_rows - position[DONE]}
