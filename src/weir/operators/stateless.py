"""Stateless operators: Arrow functions of whole batches of rows, and functions of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.columns import column_names, to_schema
from weir.errors import OperatorError, TopologyError, did_you_mean
from weir.operators.base import Operator
from weir.operators.instance import Context, Instance, TimeLimit, failed
from weir.rows import Rows
from weir.values import rows_of, to_columns

ArrowFunction = Callable[..., Any]  # of a RecordBatch, and of the side input if there is one
RowFunction = Callable[..., Any]  # the same of a row
PARENT = "__parent__"


class Map(Operator):
    """Turns a batch of rows into another: fewer, as many, or more (a flat map).

    Parameters
    ----------
    function
        Takes a ``pyarrow.RecordBatch``; returns a RecordBatch, a Table, or a dict of columns. It must treat
        rows independently of each other: how rows are cut into batches is not defined.
    schema
        What it returns, as ``{"column": "type"}`` with Spark's type names, or a ``pyarrow.Schema``. None if
        it returns the columns it was given.
    columns
        The columns it reads; None for all. Others don't travel to it.
    parents
        For a flat map: a column of the result, beside those of ``schema``, that says for each row which row of
        the batch it was made from, counted from 0. It goes no further. With it, locality-aware routing learns
        which keys follow each other through the map, too.

    Examples
    --------
    >>> def words(batch):
    ...     split = pc.split_pattern(batch.column("text"), " ")
    ...     return {"word": pc.list_flatten(split), "row": pc.list_parent_indices(split)}
    >>> made, parents = Map(words, "word string", parents="row").apply(
    ...     pa.record_batch({"text": ["a b", "c"]}), pa.schema([("word", pa.string())])
    ... )
    >>> made.column("word").to_pylist(), parents.tolist()
    (['a', 'b', 'c'], [0, 0, 1])
    """

    takes_side = True

    def __init__(
        self,
        function: ArrowFunction,
        schema: Any = None,
        columns: Iterable[str] | None = None,
        parents: str | None = None,
    ) -> None:
        self.function = function
        self.parents = parents
        self.schema = None if schema is None else to_schema(schema)
        self.columns = None if columns is None else column_names("columns", columns)

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return None if self.columns is None else set(self.columns)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        if self.schema is not None:
            return self.schema
        if self.columns is not None:
            for column in self.columns:
                if column not in schema.names:
                    raise TopologyError(f"columns={column!r}: {did_you_mean(column, schema.names)}")
            return pa.schema([schema.field(c) for c in self.columns])
        return schema

    def apply(
        self, batch: pa.RecordBatch, schema: pa.Schema, *side: Any
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        """Return the rows that a batch becomes, and, where it is known, which of its rows each was made from."""
        result = self.function(batch, *side)
        rows = conform(result, schema, "it")
        if self.parents is None:
            # a function that returns as many rows as it got is taken to have kept their order
            return rows, np.arange(len(rows)) if rows.num_rows == batch.num_rows else None
        return rows, _parents(result, self.parents, batch.num_rows)

    def once(self, rows: Rows, batch: pa.RecordBatch, schema: pa.Schema, *side: Any) -> Rows:
        """Return what becomes of rows; ``batch`` has them with the columns that it reads."""
        result, parents = self.apply(batch, schema, *side)
        if rows.origin is None or parents is None:
            return Rows(result)
        return Rows(result, origin=(rows.origin[0], rows.origin[1][parents]))

    def instance(self, context: Context) -> Instance:
        return _StatelessInstance(context)


class Filter(Operator):
    """Keeps the rows for which an Arrow function says so.

    ``function`` takes a ``pyarrow.RecordBatch`` and returns one boolean per row (an Arrow or NumPy array);
    null counts as false.
    """

    passes_rows = True
    takes_side = True

    def __init__(self, function: ArrowFunction) -> None:
        self.function = function

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def once(self, rows: Rows, batch: pa.RecordBatch, schema: pa.Schema, *side: Any) -> Rows:
        """Return the rows to keep."""
        return rows.select(np.asarray(self.mask(batch, *side).to_numpy(zero_copy_only=False)))

    def instance(self, context: Context) -> Instance:
        return _StatelessInstance(context)

    def mask(self, batch: pa.RecordBatch, *side: Any) -> pa.Array:
        """Return which rows to keep."""
        mask = self.function(batch, *side)
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if not isinstance(mask, pa.Array):
            mask = pa.array(mask)
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise TopologyError(
                f"a filter must return one boolean per row; for {batch.num_rows} rows it returned "
                f"{len(mask)} values of type {mask.type}"
            )
        return pc.fill_null(mask, False)


class _StatelessInstance(Instance):
    """Apply a user's Arrow function; a row that it fails on is found by halving."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        if not len(rows):
            return
        for out in self._apply(rows):
            if len(out):
                self.report.rows_out += len(out)
                yield out

    def _apply(self, rows: Rows) -> Iterator[Rows]:
        batch = rows.to_batch(self.node.input)
        try:
            with TimeLimit(self.node.declared.timeout):
                out = self.operator.once(rows, batch, self.node.rows_out, *self.extra)
        except TimeoutError as error:  # to look for the row that it waits at would take as long, many times
            raise failed(self.node, None, f"one of {batch.num_rows} rows", error) from error
        except (Exception, SystemExit) as error:
            if batch.num_rows > 1:
                for half in np.array_split(np.arange(batch.num_rows), 2):
                    yield from self._apply(rows.select(half))
                return
            row = batch.to_pylist()[0]
            if self.node.declared.on_error == "divert":
                self.report.diverted += 1
                self.context.divert(self.node, None, row, error)
                return
            raise failed(self.node, None, row, error) from error
        yield out


def _parents(result: Any, name: str, rows: int) -> NDArray[np.int64]:
    names = list(result) if isinstance(result, dict) else result.schema.names
    if name not in names:
        raise TopologyError(
            f"it returned no column {name!r}, which parents= names; {did_you_mean(name, names)}"
        )
    column = pa.table({name: result[name]})[name].combine_chunks()
    positions: NDArray[np.int64] = np.zeros(0, np.int64)
    if pa.types.is_integer(column.type) and not column.null_count:
        positions = column.to_numpy().astype(np.int64)
    if len(positions) != len(column) or (
        len(positions) and not 0 <= positions.min() <= positions.max() < rows
    ):
        raise TopologyError(
            f"parents={name!r} must say for each row which of the {rows} rows given it comes from"
        )
    return positions


def conform(result: Any, schema: pa.Schema, who: str) -> pa.RecordBatch:
    """Return what a user's function returned, as a batch of exactly the declared schema."""
    if isinstance(result, dict):
        result = pa.table(result)
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise TopologyError(
            f"{who} must return a pyarrow RecordBatch, Table or dict of columns, not {type(result).__name__}"
        )
    missing = [n for n in schema.names if n not in result.column_names]
    if missing:
        raise TopologyError(f"{who} returned no column {missing[0]!r}, which its declared schema has")
    table = result.select(schema.names)
    try:
        table = table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise TopologyError(f"{who} returned {table.schema} where {schema} was declared: {error}") from None
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:  # whoever calls it tries again with fewer rows
        raise OperatorError(f"{who} returned {table.nbytes} bytes for one batch, which do not fit one column")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


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

    _method = "map"
    _parents: str | None = None

    def __init__(
        self, function: RowFunction, schema: Any = None, columns: Iterable[str] | None = None
    ) -> None:
        check_function(function, self._method)
        super().__init__(function, schema, columns, self._parents)
        self.function = partial(_mapped if self._parents is None else _flat_mapped, function, self.schema)


class FlatMapRows(MapRows):
    """Turns each row into any number of rows: ``function`` returns or yields them; None for no rows.

    Locality-aware routing learns through it, since each result is known to come from one row. Parameters are those of
    :class:`MapRows`.

    Examples
    --------
    >>> words = FlatMapRows(lambda row: [(word,) for word in row.text.split()], "word string")
    >>> rows, parents = words.apply(pa.record_batch({"text": ["a b", "c"]}), pa.schema([("word", pa.string())]))
    >>> rows.to_pydict(), parents.tolist()
    ({'word': ['a', 'b', 'c']}, [0, 0, 1])
    """

    _method, _parents = "flat_map", PARENT


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
    return columns_of(results, schema or batch.schema)


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
    columns = columns_of(results, schema or batch.schema)
    counts: Any = np.diff(np.array(ends, np.int64), prepend=0)
    return {**columns, PARENT: pa.array(np.repeat(np.arange(len(ends)), counts))}


def _kept(function: RowFunction, batch: pa.RecordBatch, *side: Any) -> pa.Array:
    marks = list(map(function, rows_of(batch), *map(repeat, side)))
    odd = set(map(type, marks)) - {bool, np.bool_, type(None)}
    if odd:
        mark = next(mark for mark in marks if type(mark) in odd)
        raise TopologyError(f"a filter returns True or False for a row; it returned {mark!r}")
    return pa.array(list(map(bool, marks)), pa.bool_())


def columns_of(results: Sequence[Any], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the columns of rows that a user's function returned."""
    try:
        return dict(zip(schema.names, to_columns(results, schema, "it returned"), strict=True))
    except ValueError as error:
        raise TopologyError(str(error)) from None
