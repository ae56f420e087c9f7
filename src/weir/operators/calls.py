"""Calls of a user's function by key: what it was handed, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """One call of the user's code that went well: the key, its rows, what it emitted, its state afterwards."""

    number: int  # of the key in this batch; −1 for a key that expired
    key: Any
    rows: list[Any]
    out: list[Any]
    state: bytes


class Handed(Sequence[Any]):
    """A key's rows, remembering the last one looked at, so that an error can name it."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.last: Any = rows[0] if rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        found = self._rows[at]
        if not isinstance(at, slice):
            self.last = found
        return found

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.last = row
            yield row
