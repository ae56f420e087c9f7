"""Python values and rows from Arrow columns and back: exactly, or with an error that names the first that does not fit.

Arrow itself is more generous: it cuts the fraction off a number for an integer column, the time off a date, takes a
text for a list of letters, and passes over fields of a struct that it does not know.
"""

from __future__ import annotations

import datetime
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

_FLOAT32 = float(np.finfo(np.float32).max)
_NUMBERS = (float, Decimal, np.floating)


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column of a type; raise a ValueError that names the first that it can't hold as it is.

    A float that is a whole number may stand for an integer.

    >>> to_array([1, 2.0, None], pa.int64()).to_pylist()
    [1, 2, None]
    >>> to_array([1, 19.99], pa.int64())
    Traceback (most recent call last):
    ValueError: 19.99 is no whole number
    >>> to_array(["FR"], pa.list_(pa.string()))
    Traceback (most recent call last):
    ValueError: 'FR' is a text, not a list
    """
    check = _check_of(kind)
    if check is not None:
        check(values)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if len(values) > 1:  # which one is it?
            for value in values:
                to_array([value], kind)
        raise ValueError(f"{values[0]!r} does not fit: {error}" if len(values) else str(error)) from None


Check = Callable[[Iterable[Any]], None]


def _check_of(kind: pa.DataType) -> Check | None:
    """Return what looks for values that Arrow would change on their way into a type; None if there are none."""
    t = pa.types
    if t.is_integer(kind):
        return _whole
    if t.is_float32(kind):
        return _within_float32
    if t.is_date(kind):
        return _dates
    if t.is_timestamp(kind):
        return _times if kind.tz else _local_times
    if t.is_list(kind) or t.is_large_list(kind):
        return _lists(kind.value_type)
    if t.is_struct(kind):
        return _structs(kind)
    if t.is_map(kind):
        return _maps(kind)
    return None


def _odd(values: Iterable[Any], *usual: type) -> list[Any]:
    """Return the values that are of none of the usual types; in most batches none is, which is seen at once."""
    odd = set(map(type, values)) - {type(None), *usual}
    return [value for value in values if type(value) in odd] if odd else []


def _whole(values: Iterable[Any]) -> None:
    for value in _odd(values, int):
        if isinstance(value, _NUMBERS) and not (np.isfinite(float(value)) and value == int(value)):
            raise ValueError(f"{value!r} is no whole number")


def _within_float32(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, float) and _FLOAT32 < abs(value) < float("inf"):
            raise ValueError(f"{value!r} is beyond what a float holds; declare a double")


def _dates(values: Iterable[Any]) -> None:
    for value in _odd(values, datetime.date, int):
        if isinstance(value, datetime.datetime) and value.time() != datetime.time():
            raise ValueError(f"{value!r} has a time of day, a date has none; declare a timestamp")
        if isinstance(value, _NUMBERS):
            raise ValueError(f"{value!r} is a number, not a date")


def _times(values: Iterable[Any]) -> None:
    for value in _odd(values, datetime.datetime, int):
        if isinstance(value, _NUMBERS):
            raise ValueError(f"{value!r} is a number, not a time; use datetime.fromtimestamp")


def _local_times(values: Iterable[Any]) -> None:
    _times(values)
    for value in values:
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            raise ValueError(f"{value!r} has a time zone, a timestamp_ntz has none; declare a timestamp")


def _lists(kind: pa.DataType) -> Check:
    inner = _check_of(kind)

    def check(values: Iterable[Any]) -> None:
        for value in values:
            if value is None:
                continue
            if isinstance(value, str | bytes):
                raise ValueError(f"{value!r} is a text, not a list")
            if isinstance(value, set | frozenset):
                raise ValueError(f"{value!r} is a set, which has no order; return sorted(…)")
            if inner is not None and isinstance(value, Iterable):
                inner(list(value))

    return check


def _structs(kind: pa.DataType) -> Check:
    fields = {field.name: _check_of(field.type) for field in kind}

    def check(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Mapping):
                if unknown := [name for name in value if name not in fields]:
                    raise ValueError(f"{value!r} has a field {unknown[0]!r}, the declared struct has none")
                parts: Iterable[Any] = ((inner, value.get(name)) for name, inner in fields.items())
            elif isinstance(value, tuple | list):
                parts = zip(fields.values(), value, strict=False)
            else:
                continue
            for inner, part in parts:
                if inner is not None:
                    inner([part])

    return check


def _maps(kind: pa.DataType) -> Check:
    inner = _check_of(kind.key_type), _check_of(kind.item_type)

    def check(values: Iterable[Any]) -> None:
        for value in values:
            pairs = value.items() if isinstance(value, Mapping) else value or ()
            for pair in pairs:
                for one, part in zip(inner, pair, strict=True):
                    if one is not None:
                        one([part])

    return check


class Row(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """A row as users' functions get it: its columns are attributes, and all else is as with a named tuple.

    Making one costs a fifth of what a named tuple costs, and the garbage collector need not look at it.

    >>> (row,) = rows_of(pa.record_batch({"place": ["FR"], "n": [2]}))
    >>> place, n = row
    >>> row.n, row[0], row == ("FR", 2), row._asdict()
    (2, 'FR', True, {'place': 'FR', 'n': 2})
    """

    @property
    def _fields(self) -> tuple[str, ...]:
        return self.__struct_fields__

    def __iter__(self) -> Iterator[Any]:
        return iter(astuple(self))

    def __len__(self) -> int:
        return len(self.__struct_fields__)

    def __getitem__(self, at: Any) -> Any:
        return astuple(self)[at]

    def __add__(self, other: tuple[Any, ...]) -> tuple[Any, ...]:
        return astuple(self) + tuple(other)

    def __eq__(self, other: object) -> bool:
        return astuple(self) == (astuple(other) if isinstance(other, Row) else other)

    def __hash__(self) -> int:
        return hash(astuple(self))

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self.__struct_fields__, self, strict=True))

    def _replace(self, **values: Any) -> Row:
        return msgspec.structs.replace(self, **values)


Sequence.register(Row)


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Callable[..., Row]:
    """Return the class of rows with these columns; what can't be an attribute is called after its position."""
    plain = [n.isidentifier() and not keyword.iskeyword(n) and not n.startswith("_") for n in names]
    fields = [n if ok else f"_{i}" for i, (n, ok) in enumerate(zip(names, plain, strict=True))]
    options = {"frozen": True, "order": True, "gc": False, "array_like": True}
    made: Any = msgspec.defstruct("Row", fields, bases=(Row,), **options)  # type: ignore[arg-type]
    kind: Callable[..., Row] = made
    return kind


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return the rows of a batch."""
    kind = row_type(tuple(batch.schema.names))
    if not batch.num_columns:
        return (kind() for _ in range(batch.num_rows))
    return map(kind, *map(to_python, batch.columns))


def to_python(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python's: maps as dicts, or as pairs where a dict can't have their keys.

    >>> to_python(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
    [{'a': 1}]
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return list(column.to_pylist(maps_as_pydicts=None if _has_nested_keys(kind) else "strict"))
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in (None, "UTC"):
        return _times_of(column)
    return list(column.to_pylist())


def _times_of(column: pa.Array) -> list[Any]:
    """Return times; Arrow, which makes one at a time, takes up to thirty times as long."""
    since = column.view(pa.int64())
    if column.null_count:
        since = since.fill_null(0)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=pa.lib.string_to_tzinfo("UTC") if column.type.tz else None)
    try:
        spans = since.to_numpy().view(f"timedelta64[{column.type.unit}]").tolist()
        times: list[Any] = list(map(epoch.__add__, spans))
    except (OverflowError, TypeError):  # beyond the years that Python knows: Arrow says so
        return list(column.to_pylist())
    if column.null_count:
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            times[at] = None
    return times


def _has_nested_keys(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return pa.types.is_nested(kind.key_type) or _has_nested_keys(kind.item_type)
    return any(_has_nested_keys(kind.field(i).type) for i in range(kind.num_fields))


def to_columns(rows: Sequence[Any], schema: pa.Schema, maker: str) -> list[pa.Array]:
    """Return rows, each a dict or a tuple in the order of the schema, as columns; a ValueError says what is wrong.

    ``maker`` is who made them, for the message.
    """
    names = schema.names
    kinds = set(map(type, rows))
    for kind in kinds:
        if not issubclass(kind, Mapping | tuple | list | Row):
            row = next(row for row in rows if type(row) is kind)
            raise ValueError(
                f"{maker} {row!r}, which is no row: a row is a dict or a tuple of {', '.join(names)}"
                + (f"; for one column, ({row!r},)" if len(names) == 1 else "")
            )
    if not any(issubclass(kind, Mapping) for kind in kinds):
        if set(map(len, rows)) - {len(names)}:
            row = next(row for row in rows if len(row) != len(names))
            raise ValueError(f"{maker} {row!r}, but the declared columns are {', '.join(names)}")
        rows = rows if kinds <= {tuple, list} else list(map(tuple, rows))
        values: list[Any] = [list(map(itemgetter(at), rows)) for at in range(len(names))]
    else:
        rows = [row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows]
        try:
            values = [list(map(itemgetter(name), rows)) for name in names]
        except KeyError as error:
            (absent,) = error.args
            row = next(row for row in rows if absent not in row)
            raise ValueError(f"{maker} {row!r}, without {absent!r}, which is declared") from None
        if set(map(len, rows)) - {len(names)}:
            row = next(row for row in rows if len(row) != len(names))
            unknown = next(name for name in row if name not in names)
            raise ValueError(f"{maker} {row!r}, with {unknown!r}, which is not declared ({', '.join(names)})")
    columns = []
    for field, column in zip(schema, values, strict=True):
        try:
            columns.append(to_array(column, field.type))
        except ValueError as error:
            raise ValueError(f"column {field.name!r} is declared as {field.type}: {error}") from None
    return columns
