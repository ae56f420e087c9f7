"""Stateless operators from functions of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import TopologyError
from weir.operators.stateless import Filter, Map
from weir.values import rows_of, to_columns

RowFunction = Callable[..., Any]  # of a row, and of the side input if there is one
PARENT = "__parent__"


class MapRows(Map):
    """Turns each row into one row.

    Parameters
    ----------
    function
        Takes a row as a named tuple; returns a row as a dict or a tuple in the order of ``schema``.
    schema
        What it returns, as ``"place string, n long"``, a dict or a ``pyarrow.Schema``. None if it returns the
        columns it was given; ``row._replace(n=0)`` makes such a row.
    columns
        The columns it reads; None for all. Others don't travel to it.

    Examples
    --------
    >>> double = MapRows(lambda row: {"n": 2 * row.n}, "n long")
    >>> double.apply(pa.record_batch({"n": [1, 2]}), pa.schema([("n", pa.int64())]))[0].to_pydict()
    {'n': [2, 4]}
    """

    def __init__(
        self, function: RowFunction, schema: Any = None, columns: Iterable[str] | None = None
    ) -> None:
        check_function(function, "map")
        super().__init__(function, schema, columns)
        self.function = partial(_mapped, function, self.schema)


class FlatMapRows(Map):
    """Turns each row into any number of rows.

    Locality-aware routing learns through it, since each result is known to come from one row.

    Parameters
    ----------
    function
        Takes a row as a named tuple; returns or yields rows, each a dict or a tuple in the order of ``schema``;
        None for no rows.
    schema, columns
        As for :class:`MapRows`.

    Examples
    --------
    >>> words = FlatMapRows(lambda row: [(word,) for word in row.text.split()], "word string")
    >>> rows, parents = words.apply(pa.record_batch({"text": ["a b", "c"]}), pa.schema([("word", pa.string())]))
    >>> rows.to_pydict(), parents.tolist()
    ({'word': ['a', 'b', 'c']}, [0, 0, 1])
    """

    def __init__(
        self, function: RowFunction, schema: Any = None, columns: Iterable[str] | None = None
    ) -> None:
        check_function(function, "flat_map")
        super().__init__(function, schema, columns, parents=PARENT)
        self.function = partial(_flat_mapped, function, self.schema)


class FilterRows(Filter):
    """Keeps the rows for which a function of a row returns True; None counts as False.

    >>> FilterRows(lambda row: row.n > 1).mask(pa.record_batch({"n": [1, 2]})).to_pylist()
    [False, True]
    """

    def __init__(self, function: RowFunction) -> None:
        check_function(function, "filter")
        super().__init__(partial(_kept, function))


def check_function(function: Any, method: str) -> None:
    """Raise a TopologyError unless a function can be called."""
    if not callable(function):
        raise TopologyError(f"{method}(…) takes a function first, not {function!r}")


def _mapped(
    function: RowFunction, schema: pa.Schema | None, batch: pa.RecordBatch, *side: Any
) -> dict[str, pa.Array]:
    results = list(map(function, rows_of(batch), *map(repeat, side)))
    return _columns(results, schema or batch.schema)


def _flat_mapped(
    function: RowFunction, schema: pa.Schema | None, batch: pa.RecordBatch, *side: Any
) -> dict[str, pa.Array]:
    results: list[Any] = []
    ends: list[int] = []
    for returned in map(function, rows_of(batch), *map(repeat, side)):
        if type(returned) is not list and returned is not None:
            one = isinstance(returned, Mapping | str) or hasattr(returned, "_fields")
            if one or not isinstance(returned, Iterable):
                raise TopologyError(
                    f"a flat_map returns several rows, e.g. in a list; it returned {returned!r}"
                )
        results.extend(() if returned is None else returned)
        ends.append(len(results))
    columns = _columns(results, schema or batch.schema)
    counts: Any = np.diff(np.array(ends, np.int64), prepend=0)
    return {**columns, PARENT: pa.array(np.repeat(np.arange(len(ends)), counts))}


def _kept(function: RowFunction, batch: pa.RecordBatch, *side: Any) -> pa.Array:
    marks = list(map(function, rows_of(batch), *map(repeat, side)))
    odd = set(map(type, marks)) - {bool, np.bool_, type(None)}
    if odd:
        mark = next(mark for mark in marks if type(mark) in odd)
        raise TopologyError(f"a filter returns True or False for a row; it returned {mark!r}")
    return pa.array(list(map(bool, marks)), pa.bool_())


def _columns(results: Sequence[Any], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the columns of rows that a user's function returned."""
    try:
        return dict(zip(schema.names, to_columns(results, schema, "it returned"), strict=True))
    except ValueError as error:
        raise TopologyError(str(error)) from None
