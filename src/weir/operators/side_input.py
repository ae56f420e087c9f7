"""Side inputs: a small table that every instance of an operator sees, refreshed between batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from weir.durations import Duration, microseconds
from weir.errors import SourceError, TopologyError, did_you_mean
from weir.values import rows_of

LARGEST = 256 << 20  # bytes: every Python worker holds it


class SideInput:
    """A small table that a function gets with its rows: exchange rates, a list of customers, the weights of a model.

    Parameters
    ----------
    table
        A ``pyarrow.Table``, a DataFrame, a list of dicts, or a function without arguments that returns one of these.
        The function is called on the driver, between batches. A DataFrame is collected then, anew each time.
    key
        A column: functions get a dict from its values to rows, as named tuples, in place of a ``pyarrow.Table``. Of
        rows with equal values the last one counts.
    every
        How often a function is called, or a DataFrame collected, at most; before every batch if not given.

    Notes
    -----
    What a batch works with is named in its plan and kept in the checkpoint, so a batch that runs again sees the same.
    Only a table that has changed is written again. A function that fails stops the query before the batch begins.

    Examples
    --------
    >>> import weir
    >>> from weir.testing import run
    >>> rates = SideInput([{"currency": "EUR", "rate": 1.0}, {"currency": "USD", "rate": 0.9}], key="currency")
    >>> sums = weir.source("currency string, amount double").map(
    ...     lambda row, rates: (row.amount * rates[row.currency].rate,), "euros double", side=rates
    ... )
    >>> run(sums, [[{"currency": "USD", "amount": 10.0}]], servers=1).output().to_pylist()
    [{'euros': 9.0}]
    """

    def __init__(self, table: Any, key: str | None = None, every: Duration | None = None) -> None:
        self.key, self.every = key, 0 if every is None else microseconds(every)
        self.changes = callable(table) or hasattr(table, "toArrow")
        self._table: Callable[[], Any] = table if callable(table) else lambda: table
        if not self.changes:
            self.read("side input")  # what is wrong with it is said at once

    def read(self, where: str) -> pa.Table:
        """Return the table as it is now; called on the driver."""
        try:
            given = self._table()
            if hasattr(given, "toArrow"):
                given = given.toArrow()
            if isinstance(given, pa.RecordBatch):
                given = pa.Table.from_batches([given])
            table = given if isinstance(given, pa.Table) else pa.Table.from_pylist(list(given))
        except Exception as error:
            raise SourceError(
                f"{where}: its table could not be read ({type(error).__name__}: {error}). Nothing of the batch has "
                "begun; fix it, and start again."
            ) from error
        if self.key is not None and self.key not in table.column_names:
            raise TopologyError(
                f"{where}: no column {self.key!r}; {did_you_mean(self.key, table.column_names)}"
            )
        if table.nbytes > LARGEST:
            raise TopologyError(
                f"{where}: {table.nbytes:,} bytes, more than {LARGEST:,}; a table of that size is better joined: "
                "stream.lookup(table, …)"
            )
        return table.combine_chunks()

    def __getstate__(self) -> dict[str, Any]:
        """Leave on the driver what only the driver can read."""
        return {**self.__dict__, "_table": None}

    def shape(self, table: pa.Table) -> Any:
        """Return what functions get."""
        if self.key is None:
            return table
        batches = table.to_batches()
        keys = table[self.key].to_pylist()
        return dict(zip(keys, (row for batch in batches for row in rows_of(batch)), strict=True))
