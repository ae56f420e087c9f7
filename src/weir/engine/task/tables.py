"""Routing tables, key groups and side inputs as a batch's plan names them, loaded once per process.

A plan names a table by its files: a base, and what changed since. A worker that has the table of the last batch
applies one small patch to get the next.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.checkpoint import SIDE, TABLES, CheckpointLayout, load_arrays, read_table, write_table
from weir.engine.documents import BatchPlan, Commit, FileRef, Layout, SideRef, TableRef
from weir.graph.model import Node, Topology
from weir.hashing import hash_home
from weir.routing.base import Grouping, Instances, PlannedRouting
from weir.routing.table import NO_TABLE, Patch, Table
from weir.state.cache import BYTES, Bounded
from weir.state.storage import Storage

PATCHES_AT_MOST = 32

_loaded: Bounded[Table] = Bounded(16)
_key_groups: Bounded[Instances] = Bounded(16)


def changed_table(
    storage: Storage,
    before: TableRef | None,
    operator: str,
    batch: int,
    hashes: NDArray[np.uint64],
    servers: NDArray[np.int32],
) -> TableRef:
    """Write what changes in a table (−1: the key leaves it); a plan may name the result from then on."""
    if before is None:
        return whole_table(storage, None, operator, batch, hashes, servers)
    if len(before.files) >= PATCHES_AT_MOST:
        whole = load_table(storage, before).patch(Patch(hashes, servers))
        return whole_table(storage, before, operator, batch, whole.hashes, whole.instances)
    version = before.version + 1
    name = CheckpointLayout.new_file(TABLES, batch, f"{version:08d}-patch", operator)
    return TableRef(version, [*before.files, _write_entries(storage, name, hashes, servers)])


def whole_table(
    storage: Storage,
    before: TableRef | None,
    operator: str,
    batch: int,
    hashes: NDArray[np.uint64],
    servers: NDArray[np.int32],
) -> TableRef:
    """Write a table that takes the place of the one before."""
    version = before.version + 1 if before else 1
    name = CheckpointLayout.new_file(TABLES, batch, f"{version:08d}-base", operator)
    return TableRef(version, [_write_entries(storage, name, hashes, servers)])


def _write_entries(
    storage: Storage, name: str, hashes: NDArray[np.uint64], servers: NDArray[np.int32]
) -> FileRef:
    return write_table(storage, name, pa.table({"hash": hashes, "instance": np.asarray(servers, np.int32)}))


def load_table(storage: Storage, ref: TableRef) -> Table:
    """A table from the checkpoint; goes on from the longest part of it that this process has."""
    keys = [(storage.location, file.name, file.crc) for file in ref.files]
    start, table = 0, NO_TABLE
    for i in range(len(keys), 0, -1):
        if (known := _loaded.get(keys[i - 1])) is not None:
            start, table = i, known
            break
    for key, file in zip(keys[start:], ref.files[start:], strict=True):
        data = read_table(storage, file)
        table = table.patch(Patch(data["hash"].to_numpy(), data["instance"].to_numpy()))
        _loaded.put(key, table, 1)
    return table


def grouping_in_force(storage: Storage, plan: BatchPlan, operator: str, declared: Grouping) -> Grouping:
    """Return the grouping of an operator in a batch: with what the plan says, where that decides."""
    ref, hot = plan.tables.get(operator), plan.hot.get(operator)
    table = NO_TABLE if ref is None else load_table(storage, ref)
    planned = PlannedRouting(
        table=table.with_key_groups(key_groups_in_force(storage, plan.layout, operator)),
        hot=None if hot is None else np.array(hot, np.uint64),
        spare=plan.spare.get(operator, 0.0),
    )
    return declared.in_force(planned)


def homes_of(
    node: Node, grouping: Grouping, key_hash: NDArray[np.uint64], key_groups: Instances | None = None
) -> NDArray[np.int32]:
    """Return the server on which each key's state lives, also where its rows are worked on elsewhere.

    ``grouping`` is the one in force; ``key_groups`` say where keys live that a grouping splits.
    """
    rule, n = grouping.home_rule, len(node.placement)
    homes = hash_home(key_hash, n, key_groups) if rule is None else rule.router(n).route(key_hash)
    return np.asarray(node.placement, np.int32)[homes]


def key_groups_in_force(storage: Storage, layout: Layout | None, operator: str) -> Instances | None:
    """Return where unlisted keys of an operator live, if scaling has taken that from their plain hash."""
    ref = layout.key_groups.get(operator) if layout is not None else None
    if ref is None:
        return None
    key, load = (storage.location, ref.name, ref.crc), partial(load_arrays, storage, ref)
    return _key_groups.get_or_make(key, lambda: load()["homes"].astype(np.int32), lambda _: 1)


def table_in_force(storage: Storage, last: Commit | None, node: Node) -> Table:
    """Return an operator's learnt table by server, with where unlisted keys live, as of the last commit."""
    ref = last.tables.get(node.name) if last else None
    table = NO_TABLE if ref is None else load_table(storage, ref)
    places = np.asarray(node.placement, np.int32)
    groups = key_groups_in_force(storage, last.layout, node.name) if last else None
    return Table(
        table.hashes,
        places[table.instances],
        last.servers if last else len(places),
        node.name,
        0 if ref is None else ref.version,
        key_groups=None if groups is None else places[groups],
    )


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
