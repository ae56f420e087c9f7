"""Spark's types as Arrow's, and back."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from weir.errors import TopologyError

_SIMPLE: dict[type[T.DataType], pa.DataType] = {
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
}
_NAMES = {kind: name().simpleString() for name, kind in _SIMPLE.items() if name is not T.DayTimeIntervalType}


def to_arrow(kind: T.DataType, column: str) -> pa.DataType:
    """Return the Arrow type in which values of a Spark type reach Python."""
    for spark_type, arrow_type in _SIMPLE.items():
        if isinstance(kind, spark_type):
            return arrow_type
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", to_arrow(kind.elementType, column), kind.containsNull))
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, to_arrow(f.dataType, column), f.nullable) for f in kind.fields])
    if isinstance(kind, T.MapType):
        return pa.map_(
            to_arrow(kind.keyType, column),
            pa.field("value", to_arrow(kind.valueType, column), kind.valueContainsNull),
        )
    raise TopologyError(
        f"column {column!r} has type {kind.simpleString()}, which cannot pass through Arrow; "
        "cast it to another type, or drop it before the source"
    )


def to_ddl(schema: pa.Schema) -> str:
    """An Arrow schema as Spark DDL."""
    return ", ".join(f"`{f.name}` {to_ddl_type(f.type)}" for f in schema)


def to_ddl_type(kind: pa.DataType) -> str:
    """An Arrow type by Spark's name."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_duration(kind):
        return "interval day to second"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{to_ddl_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(f"`{f.name}`: {to_ddl_type(f.type)}" for f in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{to_ddl_type(kind.key_type)}, {to_ddl_type(kind.item_type)}>"
    raise TopologyError(f"type {kind} has no counterpart in Spark")
