"""Column types: Spark's names for Arrow's types, and what a key may be made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from weir.errors import TopologyError, UnknownColumn, did_you_mean

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def to_type(name: str | pa.DataType) -> pa.DataType:
    """An Arrow type from Spark's name for it.

    >>> to_type("bigint"), to_type("array<string>"), to_type("decimal(10,2)")
    (DataType(int64), ListType(list<element: string>), Decimal128Type(decimal128(10, 2)))
    """
    if isinstance(name, pa.DataType):
        return name
    text = name.strip().lower() if isinstance(name, str) else ""
    if text in TYPES:
        return TYPES[text]
    if match := re.fullmatch(r"array\s*<(.+)>", text):
        return pa.list_(pa.field("element", to_type(match[1])))
    if (match := re.fullmatch(r"map\s*<(.+)>", text)) and len(parts := _apart(match[1])) == 2:
        return pa.map_(to_type(parts[0]), to_type(parts[1]))
    if match := re.fullmatch(r"struct\s*<(.+)>", name.strip() if text else "", re.IGNORECASE):
        fields = [re.fullmatch(r"`?(\w+)`?\s*:?\s*(.+)", part) for part in _apart(match[1])]
        if all(fields):
            return pa.struct([(field[1], to_type(field[2])) for field in fields if field])
    match = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", text)
    if match and 1 <= int(match[1]) <= 38 and int(match[2]) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2]))
    raise TopologyError(f"unknown type {name!r}; {did_you_mean(text, TYPES)}")


def _apart(text: str) -> list[str]:
    """Return what commas separate, but for those within brackets.

    >>> _apart("a int, b struct<c: int, d: string>")
    ['a int', 'b struct<c: int, d: string>']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def to_schema(schema: pa.Schema | Mapping[str, str | pa.DataType] | str | Any) -> pa.Schema:
    """An Arrow schema from a dict, from ``"a string, b long"`` or from itself.

    >>> to_schema("place string, n long").names
    ['place', 'n']
    """
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        pairs = []
        for part in _apart(schema):
            words = part.strip().split(None, 1)
            if len(words) != 2:
                raise TopologyError(f"schema {schema!r}: expected 'name type' in {part.strip()!r}")
            pairs.append((words[0], to_type(words[1])))
        return pa.schema(pairs)
    if isinstance(schema, Mapping) and all(isinstance(name, str) for name in schema):
        return pa.schema([(name, to_type(kind)) for name, kind in schema.items()])
    raise TopologyError(f"a schema is a dict, a string or a pyarrow.Schema, not {type(schema).__name__}")


def can_be_key(kind: pa.DataType) -> bool:
    """Return whether a column of this type may be (part of) a key."""
    simple = (pa.string(), pa.binary(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.bool_())
    return canonical_type(kind) in simple or bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def canonical(schema: pa.Schema) -> pa.Schema:
    """Return the same columns with one spelling per type, so that equal data has equal schemas everywhere."""
    return pa.schema([pa.field(f.name, canonical_type(f.type)) for f in schema])


def canonical_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC") if kind.tz else pa.timestamp("us")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def column_names(option: str, names: Any) -> tuple[str, ...]:
    """Return the columns that an option names: one, or several in a list.

    >>> column_names("order_by", "time"), column_names("columns", ["a", "b"])
    (('time',), ('a', 'b'))
    """
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (None,)
    if not all(isinstance(name, str) and name for name in listed):
        expected = f'expected a column\'s name or a list of names, e.g. {option}=["time"]'
        raise TopologyError(f"{option}={names!r}: {expected}")
    return listed


def check_column(
    name: str, schema: pa.Schema, where: str, role: str = "", timestamp: bool = False, side: str = ""
) -> None:
    """Raise unless a schema has a column, in some role, and it is a timestamp if it must be one."""
    if name not in schema.names:
        has, what = f"its {side} has " if side else "", f" for {role}" if role else ""
        raise UnknownColumn(f"{where}: {has}no column {name!r}{what}; {did_you_mean(name, schema.names)}")
    kind, called = schema.field(name).type, role.removeprefix("its ")
    if timestamp and not pa.types.is_timestamp(kind):
        raise TopologyError(f"{where}: {called} column {name!r} is {kind}, not a timestamp")


def check_columns(names: Iterable[str], schema: pa.Schema, where: str) -> None:
    """Raise an UnknownColumn unless a schema has all of these columns."""
    for name in names:
        check_column(name, schema, where)
