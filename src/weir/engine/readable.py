"""Saved state as people read it: keys and values, from what the checkpoint alone says."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.migrate import with_waiting
from weir.operators.aggregate import Aggregate
from weir.operators.base import WINDOW_END, WINDOW_START
from weir.operators.process import STATE
from weir.state.segment import SegmentRef, StateView
from weir.state.storage import Storage

_JSON_TYPES = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def state_schema(described: dict[str, Any]) -> pa.Schema:
    """What is stored per key, from an operator's entry in a commit's signature."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["schema"])))


def readable_schema(described: dict[str, Any]) -> pa.Schema:
    """The columns of :func:`readable`."""
    return readable(described, state_schema(described).empty_table()).schema


def merged_state(
    storage: Storage,
    described: dict[str, Any],
    segments: list[SegmentRef],
    waiting: list[list[SegmentRef]],
    server: int,
    buckets: NDArray[np.int32] | None = None,
) -> pa.Table:
    """What a server owns, with partial states of its keys that still wait elsewhere merged in."""
    schema = state_schema(described)
    own = StateView(storage, segments, schema).everything()
    if not any(waiting):
        return own
    return with_waiting(
        storage,
        own,
        waiting,
        schema,
        _aggregate(described),
        len(described["key"]),
        described["placement"],
        server,
        buckets,
    )


def _aggregate(described: dict[str, Any]) -> Aggregate:
    values: dict[str, Any] = {
        n: f if c is None else f"{f}({c})" for n, f, c in described["operator"]["values"]
    }
    return Aggregate(**values)


def readable(described: dict[str, Any], table: pa.Table) -> pa.Table:
    """Keys, windows and values from stored entries."""
    schema = state_schema(described)
    keys = [k for k, _ in described["key"]]
    out: dict[str, Any] = {k: table[k] for k in keys}
    operator = described["operator"]
    if described["window"]:
        start = table[WINDOW_START]
        size = described["window"][1]
        out[WINDOW_START] = start
        micros = pa.compute.add(start.cast(pa.int64()), size)
        out[WINDOW_END] = micros.cast(schema.field(WINDOW_START).type)
    if operator["kind"] == "Aggregate":
        aggregate = _aggregate(described)
        first = len(keys) + (1 if described["window"] else 0)
        columns = [table[n] for n in schema.names[first:]]
        arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        arrays = [pa.concat_arrays(a.chunks) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
        for spec, values in zip(aggregate.specs, aggregate.finish(arrays), strict=True):
            out[spec.name] = values
        return pa.table(out)
    fields = _fields(operator["state"])
    objects = [msgspec.msgpack.decode(s) if s else {} for s in table[STATE].to_pylist()]
    for name, kind in fields:
        values = [o.get(name) if isinstance(o, dict) else None for o in objects]
        if kind is None:
            values = [None if v is None else msgspec.json.encode(v, enc_hook=str).decode() for v in values]
        out[name if name not in out else f"state.{name}"] = pa.array(values, kind or pa.string())
    return pa.table(out)


def _fields(schema: dict[str, Any] | None) -> list[tuple[str, pa.DataType | None]]:
    """The fields of a state type, with an Arrow type where it is a simple one; others are shown as JSON."""
    if not schema:
        return []
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    properties = schema.get("properties", {})
    return [
        (n, _JSON_TYPES.get(p.get("type", "")) if "format" not in p else None) for n, p in properties.items()
    ]
