"""Payloads of messages as rows and back: JSON, Avro, or Arrow's stream format."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from weir.errors import SourceError, TopologyError, did_you_mean
from weir.extras import require
from weir.messages.protobuf import Schema, message_path
from weir.messages.registry import FRAME, Registry, json_schema

FORMATS = ("json", "avro", "confluent-avro", "confluent-json", "confluent-protobuf", "debezium", "arrow")
# columns that say what happened to a row
CHANGE_COLUMNS = {
    "debezium_op": pa.string(),
    "debezium_deleted": pa.bool_(),
    "debezium_time": pa.timestamp("us", "UTC"),
}
# of an Arrow message that is written; brokers take 1 MB if they are not told otherwise
MESSAGE_BYTES = 512 << 10

Failure = tuple[int, str]  # number of a message, and what is wrong with it


@dataclass(frozen=True)
class Decoded:
    """Rows of messages: ``message`` has for each row the number of the message that it comes from."""

    rows: pa.RecordBatch
    message: NDArray[np.int64]
    failures: list[Failure]


@dataclass(frozen=True)
class Payload:
    """How rows are spelt in messages.

    ``json``: an object per message; fields that are missing are null, others are passed over. ``avro``: one datum
    of the schema ``avro`` (JSON text) per message. ``confluent-avro``, ``confluent-json``, ``confluent-protobuf`` have
    five bytes in front, which name a schema of a ``registry``; a datum is read with the schema that it was written
    with, and resolved to ``avro`` if that is given. Schemas are registered under ``subject`` when rows are written;
    that of Protobuf is ``proto``, whose first message a row becomes. ``arrow``: a stream of
    any number of rows per message. ``debezium``: a change as JSON; its row is the one after it, of a deletion the one
    before. A message without a value becomes a row of nulls, with ``arrow`` and ``debezium`` none.

    >>> payload = Payload("json", pa.schema([("place", pa.string()), ("n", pa.int64())]))
    >>> decoded = payload.decode([b'{"place": "FR", "n": 1}', b'{"n": ', b'{"place": "US", "x": 0}', None])
    >>> decoded.rows.to_pylist()
    [{'place': 'FR', 'n': 1}, {'place': 'US', 'n': None}, {'place': None, 'n': None}]
    >>> decoded.message.tolist(), [number for number, why in decoded.failures]
    ([0, 2, 3], [1])
    """

    format: str
    schema: pa.Schema
    avro: str = ""
    registry: Registry | None = None
    subject: str = ""
    proto: str = ""

    def check(self, writes: bool = False) -> None:
        """Raise a TopologyError if it cannot work."""
        if self.format not in FORMATS:
            raise TopologyError(f"format={self.format!r}: {did_you_mean(self.format, FORMATS)}")
        if self.format == "debezium":
            if writes:
                raise TopologyError('format="debezium" can only be read')
            for name in CHANGE_COLUMNS.keys() & set(self.schema.names):
                if self.schema.field(name).type != CHANGE_COLUMNS[name]:
                    raise TopologyError(
                        f"column {name!r} comes from the change and is {CHANGE_COLUMNS[name]}, not "
                        f"{self.schema.field(name).type}"
                    )
        framed = self.format.startswith("confluent-")
        if self.registry is not None and not framed:
            raise TopologyError(
                f'format={self.format!r} has no use for registry=; did you mean "confluent-avro"?'
            )
        if writes and framed and self.registry is None:
            raise TopologyError(f"format={self.format!r} needs registry=, which gives schemas their numbers")
        if self.format == "confluent-protobuf":
            require("grpc_tools", "protobuf")
            if self.registry is None:
                raise TopologyError(
                    f"format={self.format!r} needs registry=, which has the schemas of messages"
                )
            if writes:
                self._check_proto()
        if "avro" in self.format:
            require("fastavro", "kafka")
            if self.avro:
                _ = self._avro
            elif writes or self.registry is None:
                raise TopologyError(f"format={self.format!r} needs avro=, the file with its schema")

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return the rows of some messages, and those messages that are none."""
        if self.format == "arrow":
            return self._decode_arrow(values)
        if self.format == "debezium":  # behind a deletion comes a message without a value, for compaction
            kept = self.present(values)
            decoded = self._decoded(self._changes, [value for value in values if value is not None])
            failures = [(int(kept[number]), why) for number, why in decoded.failures]
            return Decoded(decoded.rows, kept[decoded.message], failures)
        parts = {
            "json": self._json,
            "confluent-json": self._framed_json,
            "confluent-protobuf": self._protobuf_rows,
        }
        part = parts.get(self.format, self._avro_rows)
        return self._decoded(part, values)

    def _decoded(
        self, part: Callable[[Sequence[bytes | None]], pa.Table], values: Sequence[bytes | None]
    ) -> Decoded:
        tables: list[pa.Table] = []
        failures: list[Failure] = []
        numbers: list[NDArray[np.int64]] = []
        for start, end, table in _halved(part, values, 0, len(values), failures):
            tables.append(table)
            numbers.append(np.arange(start, end))
        whole = pa.concat_tables([self.schema.empty_table(), *tables]).combine_chunks()
        batches = whole.to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], self.schema)
        return Decoded(rows, np.concatenate([np.empty(0, np.int64), *numbers]), failures)

    def present(self, values: Sequence[bytes | None]) -> NDArray[np.int64]:
        """Return the numbers of messages that are rows, or changes."""
        if self.format != "debezium":
            return np.arange(len(values))
        return np.array([number for number, value in enumerate(values) if value is not None], np.int64)

    def encode(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Return the messages of some rows: one each, with ``arrow`` as few as their length allows."""
        if self.format == "arrow":
            rows = max(1, int(MESSAGE_BYTES * batch.num_rows / max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, batch.schema) as writer:
                    writer.write_batch(batch[start : start + rows])
                yield out.getvalue().to_pybytes()
        elif "json" in self.format:
            encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
            head = self._frame(json_schema(batch.schema), "JSON")
            for row in batch.to_pylist():
                yield head + encode(row)
        elif self.format == "confluent-protobuf":
            head = self._frame(self.proto, "PROTOBUF") + b"\0"  # the first message
            schema = Schema.of(self.proto)
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                yield head + schema.encode(row)
        else:
            from fastavro import schemaless_writer

            head = self._frame(self.avro, "AVRO")
            for row in batch.to_pylist():
                data = io.BytesIO()
                schemaless_writer(data, self._avro, row)
                yield head + data.getvalue()

    def _frame(self, text: str, kind: str) -> bytes:
        """Return what stands before each message: nothing, or the number of its schema."""
        if not self.format.startswith("confluent-"):
            return b""
        assert self.registry is not None  # see check
        return b"\0" + struct.pack(">I", self.registry.register(self.subject, text, kind))

    def _framed_json(self, values: Sequence[bytes | None]) -> pa.Table:
        for value in values:
            _number(value)
        return self._json([value if value is None else value[FRAME:] for value in values])

    def _json(self, values: Sequence[bytes | None]) -> pa.Table:
        column = _parsed(values, pa.struct([(f.name, _spelt(f.type)) for f in self.schema]))
        columns = [column.field(i).cast(f.type) for i, f in enumerate(self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _changes(self, values: Sequence[bytes | None]) -> pa.Table:
        """Return the rows of Debezium's envelopes, with or without their schema around them."""
        row = pa.struct([(f.name, _spelt(f.type)) for f in self.schema if f.name not in CHANGE_COLUMNS])
        envelope = [("before", row), ("after", row), ("op", pa.string()), ("ts_ms", pa.int64())]
        column = _parsed(values, pa.struct([*envelope, ("payload", pa.struct(envelope))]))
        wrapped = pc.is_valid(pc.struct_field(column, "payload"))

        def of(*path: str) -> pa.Array:
            return pc.if_else(
                wrapped, pc.struct_field(column, ["payload", *path]), pc.struct_field(column, [*path])
            )

        kind = of("op")
        if not pc.all(pc.is_in(kind, pa.array(["c", "u", "r", "d"]))).as_py():
            raise ValueError(f"op {kind[0].as_py()!r} is no change of a row")
        deleted = pc.equal(kind, "d")
        if not pc.all(pc.is_valid(pc.if_else(deleted, of("before"), of("after")))).as_py():
            raise ValueError("the change has no row; a deletion needs the one before (REPLICA IDENTITY)")
        about = {
            "debezium_op": kind,
            "debezium_deleted": deleted,
            "debezium_time": pc.multiply(of("ts_ms"), 1000),
        }
        columns = [
            about[f.name].cast(f.type)
            if f.name in about
            else pc.if_else(deleted, of("before", f.name), of("after", f.name)).cast(f.type)
            for f in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    @cached_property
    def _avro(self) -> Any:
        from fastavro import parse_schema

        try:
            return parse_schema(json.loads(self.avro))
        except Exception as error:  # fastavro raises what it likes
            raise TopologyError(f"avro=: no Avro schema: {error}") from None

    def _writer(self, number: int) -> Any:
        """Return the schema that a datum was written with."""
        from fastavro import parse_schema

        if self.registry is None:
            return self._avro
        text, _ = self.registry.schema(number)
        if text not in _writers:
            _writers[text] = parse_schema(json.loads(text))
        return _writers[text]

    def _avro_rows(self, values: Sequence[bytes | None]) -> pa.Table:
        from fastavro import schemaless_reader

        framed, reader = self.format != "avro", self._avro if self.registry and self.avro else None
        rows: list[Any] = []
        for value in values:
            if value is None:
                rows.append({})
                continue
            data = io.BytesIO(value)
            writer = self._writer(_number(value)) if framed else self._avro
            data.seek(FRAME if framed else 0)
            rows.append(schemaless_reader(data, writer, reader))
            if data.read(1):
                raise ValueError("the message goes on behind its datum")
        return pa.Table.from_pylist(rows, schema=self.schema)

    def _check_proto(self) -> None:
        if not self.proto:
            raise TopologyError(f"format={self.format!r} needs proto=, the file with its schema")
        try:
            fields = Schema.of(self.proto).kind((0,)).DESCRIPTOR.fields_by_name
        except ValueError as error:
            raise TopologyError(f"proto=: {error}") from None
        for name in self.schema.names:
            if name not in fields:
                raise TopologyError(
                    f"proto=: its first message has no field {name!r}; {did_you_mean(name, fields)}"
                )

    def _protobuf_rows(self, values: Sequence[bytes | None]) -> pa.Table:
        assert self.registry is not None  # see check
        plans: dict[Any, Any] = {}
        rows = []
        for value in values:
            if value is None:
                rows.append([None] * len(self.schema))
                continue
            number, (path, at) = _number(value), message_path(memoryview(value)[FRAME:])
            if (number, path) not in plans:
                schema = Schema.of(*self.registry.schema(number))
                plans[number, path] = schema.kind(path), schema.getters(path, self.schema)
            kind, getters = plans[number, path]
            message = kind.FromString(value[FRAME + at :])
            rows.append([get(message) for get in getters])
        columns = zip(*rows, strict=True) if rows else [[] for _ in self.schema]
        arrays = [pa.array(list(c), f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _decode_arrow(self, values: Sequence[bytes | None]) -> Decoded:
        tables, numbers = [self.schema.empty_table()], [np.empty(0, np.int64)]
        failures: list[Failure] = []
        for number, value in enumerate(values):
            if value is None:
                continue
            try:
                table = pa.ipc.open_stream(value).read_all()
                missing = [name for name in self.schema.names if name not in table.column_names]
                if missing:
                    raise ValueError(f"no column {missing[0]!r}")
                tables.append(table.select(self.schema.names).cast(self.schema))
                numbers.append(np.full(table.num_rows, number, np.int64))
            except (pa.ArrowException, ValueError, OSError) as error:
                failures.append((number, _line(error)))
        whole = pa.concat_tables(tables).combine_chunks()
        rows = whole.to_batches()[0] if len(whole) else pa.RecordBatch.from_pylist([], self.schema)
        return Decoded(rows, np.concatenate(numbers), failures)


def _parsed(values: Sequence[bytes | None], kind: pa.StructType) -> pa.StructArray:
    """Parse JSON objects all at once.

    Each is put into an object of its own: text that is not exactly one value breaks that object, or makes a row
    too many, but can't make up for another message's missing row.
    """
    whole = b'{"v":' + b'}\n{"v":'.join([b"{}" if v is None else v for v in values]) + b"}"
    table = pa.json.read_json(
        pa.BufferReader(whole),
        pa.json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
        pa.json.ParseOptions(pa.schema([("v", kind)]), unexpected_field_behavior="ignore"),
    )
    column = table.column("v").combine_chunks()
    if table.num_rows != len(values) or column.null_count:
        raise ValueError("expected one JSON object per message")
    return column


def _halved(
    decode: Callable[[Sequence[bytes | None]], pa.Table],
    values: Sequence[bytes | None],
    start: int,
    end: int,
    failures: list[Failure],
) -> Iterator[tuple[int, int, pa.Table]]:
    """Decode all messages together, and where that fails half of them, down to those that are wrong."""
    if start == end:
        return
    try:
        table = decode(values[start:end])
    except (SourceError, TopologyError):
        raise  # the registry is away, or what decodes is not installed here
    except Exception as error:  # whatever else a decoder raises, it is about these messages
        if end - start == 1:
            failures.append((start, _line(error)))
            return
        middle = (start + end) // 2
        yield from _halved(decode, values, start, middle, failures)
        yield from _halved(decode, values, middle, end, failures)
        return
    yield start, end, table


_writers: dict[str, Any] = {}  # text of a schema → the schema


def _number(value: bytes | None) -> int:
    """Return the number of a message's schema.

    >>> _number(bytes([0, 0, 0, 0, 7]) + b"datum")
    7
    """
    if value is None:
        return 0
    if len(value) < FRAME or value[0]:
        raise ValueError("the message does not begin with the number of a registered schema")
    return int(struct.unpack_from(">I", value, 1)[0])


def _spelt(kind: pa.DataType) -> pa.DataType:
    """Return the type as which JSON holds a value: dates and bytes are texts."""
    return pa.string() if pa.types.is_date(kind) or pa.types.is_binary(kind) else kind


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
