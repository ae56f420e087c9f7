"""An aggregate function of one's own in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.columns import to_type
from weir.errors import OperatorError, renamed
from weir.operators.aggregate.aggregate_functions import (
    AggregateFunction,
    Columns,
    Groups,
    Kinds,
    is_ordered,
    merge_saved,
    valid_rows,
)
from weir.values import to_array


class PythonAggregate(AggregateFunction):
    """A value of an :class:`~weir.Aggregate` in plain Python.

    Parameters
    ----------
    column
        The column whose values it sees; nulls are left out.
    zero
        Returns the state that has seen nothing: numbers, text, lists, dicts, whatever msgspec can write.
    add
        ``add(state, values)`` returns the state that has seen some more values, given as a sorted list.
    merge
        ``merge(one, other)`` returns the state that has seen what both have seen, in whichever order they come.
    finish
        Returns the value of a state; the state itself if not given.
    result
        The type of that value, by Spark's name.

    Notes
    -----
    What is saved is known by the value's name and column alone: functions may change as long as states still fit.

    Examples
    --------
    >>> from weir import Aggregate
    >>> spread = PythonAggregate(
    ...     "price",
    ...     zero=lambda: None,
    ...     add=lambda state, values: [values[0], values[-1]] if state is None
    ...     else [min(state[0], values[0]), max(state[1], values[-1])],
    ...     merge=lambda a, b: [min(a[0], b[0]), max(a[1], b[1])],
    ...     finish=lambda state: state[1] - state[0],
    ...     result="double",
    ... )
    >>> Aggregate(spread=spread).describe()
    'Aggregate(spread=PythonAggregate(price))'
    """

    suffixes = (".state",)

    @renamed(start="zero")
    def __init__(
        self,
        column: str,
        *,
        zero: Callable[[], Any],
        add: Callable[[Any, list[Any]], Any],
        merge: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any] | None = None,
        result: str | pa.DataType = "double",
    ) -> None:
        super().__init__(column)
        self._zero, self._add, self._join, self._finish = zero, add, merge, finish
        self._result = to_type(result)

    def accepts(self, kinds: Kinds) -> bool:
        return is_ordered(kinds[0])

    def result(self, kinds: Kinds) -> pa.DataType:
        return self._result

    def types(self, kinds: Kinds) -> Kinds:
        return [pa.binary()]

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        rows = np.flatnonzero(valid_rows(columns))
        table = pa.table({"g": groups, "v": columns[0]}).take(pa.array(rows))
        order = pc.sort_indices(table, sort_keys=[("g", "ascending"), ("v", "ascending")])
        values = table["v"].take(order).to_pylist()
        bounds = np.searchsorted(groups[rows][order.to_numpy()], np.arange(n + 1)).tolist()
        states = [
            None if start == end else self._write(self._add(self._zero(), values[start:end]))
            for start, end in pairwise(bounds)
        ]
        return [pa.array(states, pa.binary())]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return [merge_saved(states[0], groups, n, msgspec.msgpack.decode, self._join, self._write)]

    def finish(self, states: Columns) -> pa.Array:
        finish = self._finish or (lambda state: state)
        values = [None if s is None else finish(msgspec.msgpack.decode(s)) for s in states[0].to_pylist()]
        try:
            return to_array(values, self._result)
        except ValueError as error:
            raise OperatorError(f"the finish of PythonAggregate({self.columns[0]}): {error}") from None

    @staticmethod
    def _write(state: Any) -> bytes:
        return msgspec.msgpack.encode(state, order="deterministic")
