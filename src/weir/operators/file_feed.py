"""Files of one listing, cut into batches by their length."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import SourceError
from weir.operators.read import BYTES, LISTING, MODIFIED, PATH

TICK, DONE, FILES, READ = "tick", "done", "files", "read"
MOST_FILES = 10_000  # of a batch: a plan names them all, and every server gets it


@dataclass
class FileFeed:
    """Takes the files that Spark lists in a round in the order of their times, as many as fit into a batch.

    A position is a round, the number of its files, and of those that have been read, with a checksum of them. In a
    round that comes again these must be the same, or a :class:`~weir.errors.SourceError` stops the query; others may
    have been repaired or removed.
    """

    most: int | None = None
    first: int = 16 << 20  # bytes
    smallest: int = 1
    grows: ClassVar[bool] = False
    _files: pa.Table = field(default_factory=LISTING.empty_table)
    _ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def begin(
        self, position: dict[str, int] | None, tick: int, listing: pa.Table | None, again: bool = False
    ) -> dict[str, int]:
        files = LISTING.empty_table() if listing is None else listing
        self._files = files.sort_by([(MODIFIED, "ascending"), (PATH, "ascending")])
        self._ends = np.concatenate([[0], np.cumsum(self._files[BYTES].to_numpy())])
        count = self._files.num_rows
        start = {TICK: tick, DONE: 0, FILES: count, READ: 0}
        if position is None or position[TICK] != tick:
            # a round that was handed over before files were cut up has been read as a whole
            return self._behind(start, count) if again else start
        start = self._behind(start, min(count, position[DONE]))
        if start[DONE] < position[DONE] or position.get(READ, start[READ]) != start[READ]:
            raise SourceError(
                f"{position[DONE]} files of a batch of the source have been read, and one of them was changed, "
                "replaced or deleted since, or an older one has come. Put the files back as they were, or start "
                "with an empty checkpoint folder."
            )
        return start

    def _behind(self, position: dict[str, int], end: int) -> dict[str, int]:
        """Return the position behind the next files, up to the one with this number."""
        part = self._files.slice(position[DONE], end - position[DONE])
        columns = zip(*(part[c].to_pylist() for c in (PATH, BYTES, MODIFIED)), strict=True)
        read = zlib.crc32("".join(f"{file}\n" for file in columns).encode(), position[READ])
        return {**position, DONE: end, READ: read}

    def cut(
        self, position: dict[str, int], most: float | None
    ) -> tuple[dict[str, list[Any]], dict[str, int]]:
        done, count = position[DONE], self._files.num_rows
        limit = self._ends[-1] if most is None else self._ends[done] + most
        fits = int(np.searchsorted(self._ends, limit, "right")) - 1
        end = min(count, max(done + 1, fits), done + MOST_FILES)
        part = self._files.slice(done, end - done)
        part = part.set_column(part.column_names.index(MODIFIED), MODIFIED, part[MODIFIED].cast(pa.int64()))
        return part.to_pydict(), self._behind(position, end)

    def size(self, position: dict[str, int]) -> int:
        left = self._files.num_rows - position[DONE]
        return int(self._ends[-1] - self._ends[position[DONE]]) or left  # empty files are read, too

    def about(self, position: dict[str, int]) -> dict[str, Any]:
        return {"lag": self._files.num_rows - position[DONE]}


def is_half_read(position: dict[str, int]) -> bool:
    """Return whether a position is one of files, some of which are still to be read; positions of topics are not."""
    return position.get(DONE, 0) < position.get(FILES, 0)
