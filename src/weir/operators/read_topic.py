"""Reading topics on the servers that their partitions are assigned to: the first operator over Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from weir.errors import SourceError, TopologyError
from weir.messages.feed import END, PARTITION, RANGES, START
from weir.messages.payloads import Payload
from weir.messages.registry import Registry
from weir.messages.topics import Range, Topics
from weir.operators.instance import Context, Instance
from weir.operators.read import SourceReader
from weir.rows import Rows

# columns of a schema that are filled from the message itself, by name
ABOUT: dict[str, tuple[pa.DataType, ...]] = {
    "kafka_key": (pa.binary(), pa.string()),
    "kafka_timestamp": (pa.timestamp("us", "UTC"),),
    "kafka_topic": (pa.string(),),
    "kafka_partition": (pa.int32(), pa.int64()),
    "kafka_offset": (pa.int64(),),
    "kafka_headers": (pa.map_(pa.string(), pa.binary()), pa.map_(pa.string(), pa.string())),
}


@dataclass(frozen=True)
class ReadTopic(SourceReader):
    """Turns ranges of offsets into the rows of their messages, on the server that the partition is assigned to.

    What reaches it is one row per partition (:data:`~weir.messages.feed.RANGES`). Use :func:`weir.kafka`.
    """

    schema: pa.Schema
    topics: Topics
    format: str = "json"
    avro: str = ""
    expired: str = "fail"
    registry: Registry | None = None

    listing: ClassVar[pa.Schema] = RANGES

    def __post_init__(self) -> None:
        if not len(self.schema):
            raise TopologyError("a topic needs at least one column to be read")
        Payload(self.format, self.schema, self.avro, self.registry).check()
        for field in self.schema:
            if field.name in ABOUT and field.type not in ABOUT[field.name]:
                kinds = " or ".join(map(str, ABOUT[field.name]))
                raise TopologyError(
                    f"column {field.name!r} comes from the message and is {kinds}, not {field.type}"
                )

    def instance(self, context: Context) -> Instance:
        return _ReadInstance(context)


class _ReadInstance(Instance):
    """Read the ranges that are assigned to its server; rows come from their partition."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        operator, schema = self.operator, self.node.rows_out
        listed = [rows.column(c).to_pylist() for c in (PARTITION, START, END)]
        ranges = [Range(*r) for r in zip(*listed, strict=True)]
        hashes = dict(zip((r.place for r in ranges), rows.hash(self.node.key), strict=True))
        content = pa.schema([f for f in schema if f.name not in ABOUT])
        payload = Payload(operator.format, content, operator.avro, operator.registry)
        for messages in operator.topics.read(ranges, operator.expired):
            if content.names:
                decoded = payload.decode([m.value() for m in messages])
                for number, why in decoded.failures:
                    self._undecodable(messages[number], why)
                chosen, columns = decoded.message, dict(zip(content.names, decoded.rows.columns, strict=True))
            else:  # somebody only counts them
                chosen, columns = payload.present([m.value() for m in messages]), {}
            if not len(chosen):
                continue
            for field in schema:
                if field.name in ABOUT:
                    columns[field.name] = pa.array(_about(field, messages), field.type).take(pa.array(chosen))
            self.report.rows_in += len(chosen)
            self.report.rows_out += len(chosen)
            homes = np.array([hashes[m.topic(), m.partition()] for m in messages], np.uint64)
            batch = pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema)
            yield Rows(batch, origin=(self.node.name, homes[chosen]))

    def _undecodable(self, message: Any, why: str) -> None:
        where = f"{message.topic()}/{message.partition()}, offset {message.offset()}"
        error = SourceError(f"{where}: no {self.operator.format} of the columns of schema=: {why}")
        if self.node.declared.on_error != "divert":
            raise SourceError(
                f'{error}. Nothing of this batch has been committed. Fix the topic, or set on_error="divert" in '
                "weir.kafka(…) to send such messages to the dead letters."
            )
        self.report.diverted += 1
        value = (message.value() or b"").decode("utf-8", "replace")
        row = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
        self.context.divert(self.node, where, {**row, "value": value}, error)


def _about(field: pa.Field, messages: list[Any]) -> list[Any]:
    match field.name:
        case "kafka_key":
            return [_spelt(m.key(), field.type) for m in messages]
        case "kafka_headers":
            kind = field.type.item_type
            named = [dict(m.headers() or ()) for m in messages]  # of several with one name, the last
            return [[(name, _spelt(value, kind)) for name, value in one.items()] for one in named]
        case "kafka_timestamp":
            times = [m.timestamp() for m in messages]
            return [1000 * at if kind else None for kind, at in times]
        case "kafka_topic":
            return [m.topic() for m in messages]
        case "kafka_partition":
            return [m.partition() for m in messages]
        case _:
            return [m.offset() for m in messages]


def _spelt(value: bytes | None, kind: pa.DataType) -> bytes | str | None:
    """Return bytes of a message as the column wants them."""
    return value if value is None or pa.types.is_binary(kind) else value.decode("utf-8", "replace")
