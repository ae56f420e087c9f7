"""Calls of a user's function by key: what it was handed, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.errors import OperatorError
from weir.values import to_columns


@dataclass(frozen=True)
class Done:
    """One call of the user's code that went well: the key, its rows, what it emitted, its state afterwards."""

    number: int  # of the key in this batch; −1 for a key that expired
    key: Any
    rows: list[Any]
    out: list[Any]
    state: bytes
    changes: Sequence[Any] = ()  # of lists and maps in its state


class Handed(Sequence[Any]):
    """A key's rows, remembering the last one looked at, so that an error can name it."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.last: Any = rows[0] if rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        chosen = self._rows[at]
        if not isinstance(at, slice):
            self.last = chosen
        return chosen

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.last = row
            yield row


def emitted_batch(name: str, schema: pa.Schema, emitted: list[Any]) -> pa.RecordBatch | None:
    """Return rows that an operator emitted as a batch of its declared output."""
    if not emitted:
        return None
    if not len(schema):
        raise OperatorError(
            f"operator {name!r} emits rows ({emitted[0]!r}) but declares no output; "
            'declare it: output={"column": "type"}'
        )
    try:
        columns = to_columns(emitted, schema, "it emitted")
    except ValueError as error:
        raise OperatorError(f"operator {name!r}: {error}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)
