"""Side inputs of a batch: read on the driver when it is planned, written down, and read back by its tasks."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa

from weir.engine.arrays import read_table, write_table
from weir.engine.checkpoint import SIDE, CheckpointLayout
from weir.engine.documents import SideRef
from weir.graph.model import Node, Topology
from weir.state.cache import BYTES
from weir.state.storage import Storage


def refresh(
    storage: Storage, topology: Topology, batch: int, clock: int, last: dict[str, SideRef]
) -> dict[str, SideRef]:
    """Return the side input of each operator that has one, for the next batch; only what has changed is written."""
    out: dict[str, SideRef] = {}
    for node in topology.nodes:
        side = node.operator.side
        if side is None:
            continue
        before = last.get(node.name)
        if before is not None and clock - before.read_at < side.every:
            out[node.name] = before
            continue
        table = side.read(f"side input of operator {node.name!r}")
        content = _checksum(table)
        if before is not None and before.content == content:
            out[node.name] = SideRef(before.file, content, clock)
            continue
        name = CheckpointLayout.new_file(SIDE, batch, "table", node.name)
        out[node.name] = SideRef(write_table(storage, name, table), content, clock)
    return out


def value(storage: Storage, node: Node, sides: dict[str, SideRef]) -> Any:
    """Return what an operator's functions get in a batch, kept in this process until it changes."""
    side, ref = node.operator.side, sides.get(node.name)
    if side is None or ref is None:
        return None
    key = (storage.location, ref.file.name, "side", side.key)
    return BYTES.get_or_make(key, lambda: side.shape(read_table(storage, ref.file)), lambda _: ref.file.bytes)


def _checksum(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    return f"{zlib.crc32(data):08x}-{data.size}"
