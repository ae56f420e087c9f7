"""Messages of Protocol Buffers: schemas as texts, compiled by the protoc that grpcio-tools has as a library."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from weir.extras import require

Getter = Callable[[Any], Any]


class Schema:
    """The messages that a text declares, with the texts that it imports, by the names that it calls them.

    >>> schema = Schema.of('syntax = "proto3"; message Post { string place = 1; optional int64 n = 2; }')
    >>> data = schema.encode({"place": "FR", "n": None})
    >>> [get(schema.kind((0,)).FromString(data)) for get in schema.getters((0,), pa.schema([("n", pa.int64())]))]
    [None]
    """

    def __init__(self, text: str, imports: Mapping[str, str]) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(_compiled(text, imports)).file:
            pool.Add(file)
        self._messages = list(pool.FindFileByName(_NAME).message_types_by_name.values())

    @staticmethod
    def of(text: str, imports: Mapping[str, str] | None = None) -> Schema:
        """Return a schema, compiled once per process; raise a ValueError if it is none."""
        return _known(text, tuple(sorted((imports or {}).items())))

    def kind(self, path: tuple[int, ...]) -> Any:
        """Return the class of a message: the first number is its place in the text, others are places within."""
        from google.protobuf import message_factory

        kinds, found = self._messages, None
        for number in path:
            if not 0 <= number < len(kinds):
                raise ValueError(f"the schema has no message at {path}")
            found, kinds = kinds[number], kinds[number].nested_types
        return message_factory.GetMessageClass(found)

    def getters(self, path: tuple[int, ...], schema: pa.Schema) -> list[Getter]:
        """Return for each column what reads it from a message; fields that a message has not are null."""
        fields = self.kind(path).DESCRIPTOR.fields_by_name
        return [_getter(fields.get(column.name), column.type) for column in schema]

    def encode(self, row: Mapping[str, Any]) -> bytes:
        """Return a row as the first message of the text."""
        return bytes(self.kind((0,))(**row).SerializeToString())


_NAME = "weir_schema.proto"


@lru_cache(maxsize=256)
def _known(text: str, imports: tuple[tuple[str, str], ...]) -> Schema:
    return Schema(text, dict(imports))


def _compiled(text: str, imports: Mapping[str, str]) -> bytes:
    require("grpc_tools", "protobuf")
    import grpc_tools
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**imports, _NAME: text}.items():
            file = Path(folder, name)
            if not file.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"the schema imports {name!r}, which is no name of a file")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        own = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")  # google/protobuf/…
        options = [f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={folder}/compiled"]
        if protoc.main(["protoc", *options, f"{folder}/{_NAME}"]):
            raise ValueError("the schema is none that protoc compiles; what it says is on standard error")
        return Path(folder, "compiled").read_bytes()


def _getter(field: Any, kind: pa.DataType) -> Getter:
    """Return what reads a field from a message, as a column of a type wants it."""
    if field is None:
        return lambda message: None
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _value(field.message_type.fields_by_name["value"], getattr(kind, "item_type", kind))
        return lambda message: [(k, value(v)) for k, v in getattr(message, name).items()]
    if field.is_repeated:
        value = _value(field, getattr(kind, "value_type", kind))
        return lambda message: [value(one) for one in getattr(message, name)]
    value = _value(field, kind)
    if field.has_presence:
        return lambda message: value(getattr(message, name)) if message.HasField(name) else None
    return lambda message: value(getattr(message, name))


def _value(field: Any, kind: pa.DataType) -> Getter:
    """Return what turns one value of a field into one of a column."""
    if field.enum_type is not None and pa.types.is_string(kind):
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda value: value
    fields = field.message_type.fields_by_name
    if pa.types.is_struct(kind):
        parts = {part.name: _getter(fields.get(part.name), part.type) for part in kind}
        return lambda message: {name: get(message) for name, get in parts.items()}
    if field.message_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
    if field.message_type.full_name.startswith("google.protobuf.") and [*fields] == ["value"]:
        return lambda wrapper: wrapper.value
    raise ValueError(f"field {field.name!r} is a message, and the column {kind}")


def message_path(data: memoryview) -> tuple[tuple[int, ...], int]:
    """Return which message of a schema follows, and where it begins, as Confluent's format says before it.

    >>> message_path(memoryview(bytes([0]))), message_path(memoryview(bytes([4, 2, 0])))
    (((0,), 1), ((1, 0), 3))
    """
    numbers = _varints(data)
    count, at = next(numbers)
    if count == 0:  # short for the first message
        return (0,), at
    if not 0 < count <= len(data):
        raise ValueError(f"the message names {count} places of its type")
    path = []
    for _ in range(count):
        number, at = next(numbers)
        path.append(number)
    return tuple(path), at


def _varints(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield numbers, in zigzag, and where each ends."""
    value = shift = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield (value >> 1) ^ -(value & 1), at + 1
            value = shift = 0
    raise ValueError("the message ends within the numbers of its type")
