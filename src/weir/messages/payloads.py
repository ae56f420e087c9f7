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
import pyarrow.json
from numpy.typing import NDArray

from weir.errors import TopologyError, did_you_mean
from weir.extras import require

FORMATS = ("json", "avro", "confluent-avro", "arrow")
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
    of the schema ``avro`` (JSON text) per message, behind five bytes that name a registered schema with
    ``confluent-avro``. ``arrow``: a stream of any number of rows per message. A message without a value becomes a row
    of nulls, with ``arrow`` none.

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

    def check(self) -> None:
        """Raise a TopologyError if it cannot work."""
        if self.format not in FORMATS:
            raise TopologyError(f"format={self.format!r}: {did_you_mean(self.format, FORMATS)}")
        if "avro" in self.format:
            require("fastavro", "kafka")
            if not self.avro:
                raise TopologyError(f"format={self.format!r} needs avro=, the file with its schema")
            _ = self._avro

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return the rows of some messages, and those messages that are none."""
        if self.format == "arrow":
            return self._decode_arrow(values)
        part = self._json if self.format == "json" else self._avro_rows
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

    def encode(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Return the messages of some rows: one each, with ``arrow`` as few as their length allows."""
        if self.format == "arrow":
            rows = max(1, int(MESSAGE_BYTES * batch.num_rows / max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, batch.schema) as writer:
                    writer.write_batch(batch[start : start + rows])
                yield out.getvalue().to_pybytes()
        elif self.format == "json":
            encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
            for row in batch.to_pylist():
                yield encode(row)
        else:
            from fastavro import schemaless_writer

            head = b"\0" + struct.pack(">I", 0) if self.format != "avro" else b""
            for row in batch.to_pylist():
                data = io.BytesIO()
                schemaless_writer(data, self._avro, row)
                yield head + data.getvalue()

    def _json(self, values: Sequence[bytes | None]) -> pa.Table:
        """Parse messages all at once.

        Each is put into an object of its own: text that is not exactly one value breaks that object, or makes a row
        too many, but can't make up for another message's missing row.
        """
        whole = b'{"v":' + b'}\n{"v":'.join([b"{}" if v is None else v for v in values]) + b"}"
        kind = pa.struct([(f.name, _spelt(f.type)) for f in self.schema])
        table = pa.json.read_json(
            pa.BufferReader(whole),
            pa.json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
            pa.json.ParseOptions(pa.schema([("v", kind)]), unexpected_field_behavior="ignore"),
        )
        column = table.column("v").combine_chunks()
        if table.num_rows != len(values) or column.null_count:
            raise ValueError("expected one JSON object per message")
        columns = [column.field(i).cast(f.type) for i, f in enumerate(self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    @cached_property
    def _avro(self) -> Any:
        from fastavro import parse_schema

        try:
            return parse_schema(json.loads(self.avro))
        except Exception as error:  # fastavro raises what it likes
            raise TopologyError(f"avro=: no Avro schema: {error}") from None

    def _avro_rows(self, values: Sequence[bytes | None]) -> pa.Table:
        from fastavro import schemaless_reader

        skip = 0 if self.format == "avro" else 5
        rows = []
        for value in values:
            data = io.BytesIO(b"" if value is None else value)
            if skip and value is not None and data.read(skip)[:1] != b"\0":
                raise ValueError("the message does not begin with the number of a registered schema")
            rows.append({} if value is None else schemaless_reader(data, self._avro, None))
            if data.read(1):
                raise ValueError("the message goes on behind its datum")
        return pa.Table.from_pylist(rows, schema=self.schema)

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
    except Exception as error:  # whatever a decoder raises, it is about these messages
        if end - start == 1:
            failures.append((start, _line(error)))
            return
        middle = (start + end) // 2
        yield from _halved(decode, values, start, middle, failures)
        yield from _halved(decode, values, middle, end, failures)
        return
    yield start, end, table


def _spelt(kind: pa.DataType) -> pa.DataType:
    """Return the type as which JSON holds a value: dates and bytes are texts."""
    return pa.string() if pa.types.is_date(kind) or pa.types.is_binary(kind) else kind


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
