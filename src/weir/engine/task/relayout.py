"""Laying saved state out anew between two runs, for another number of servers or another grouping.

Every old server's state is read once and written as one segment per new home. Partial states that wait for their
merging wait on, or, if the application no longer defers it, are merged into the state of their homes. Old files stay
as they are until the commit that names the new ones; a crash in between leaves the old state.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.documents import Commit, Manifest
from weir.engine.task.tables import homes_of
from weir.graph.model import HELD, Node, Topology
from weir.operators.base import Operator
from weir.state.segment import H1, SYSTEM, SegmentRef, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

Homes = Callable[[NDArray[np.uint64]], NDArray[np.int32]]
Each = Callable[[int, Callable[[int], Any]], list[Any]]  # run a task for each number; their JSON-able answers
Scattered = dict[str, dict[int, SegmentRef]]  # state name → new home → segment


def lay_out(
    topology: Topology, commit: Commit, storage: Storage, each: Each
) -> tuple[Manifest, dict[str, int]]:
    """Return the manifest of a commit's state for a topology, and the number of keys of each operator.

    ``each`` runs tasks; they write the files that the manifest names.
    """
    answers = each(commit.servers, partial(scatter, topology, commit, storage))
    scattered = [msgspec.convert(answer, Scattered, str_keys=True) for answer in answers]
    manifest: Manifest = {
        name: [
            [part[name][server] for part in scattered if server in part.get(name, {})]
            for server in range(topology.servers)
        ]
        for name in topology.state_names
    }
    crowded = any(len(refs) > 1 for _, held in _waiting(topology) for refs in manifest[held])
    if crowded or _to_merge(topology, commit):
        merged = each(topology.servers, partial(merge_waiting, topology, commit, storage, manifest))
        for server, answer in enumerate(merged):
            for name, ref in msgspec.convert(answer, dict[str, SegmentRef | None]).items():
                manifest[name][server] = [] if ref is None else [ref]
    keys = {n.name: sum(ref.rows for refs in manifest[n.name] for ref in refs) for n in topology.stateful}
    return manifest, keys


def scatter(topology: Topology, commit: Commit, storage: Storage, old: int) -> Scattered:
    """Write what one old server has as segments of the servers on which it will live."""
    out: Scattered = {}
    for node in topology.stateful:
        table = _saved(storage, commit, node.name, node, old)
        homes = homes_of(node, topology.grouping_of(node), table[H1].to_numpy())
        for server in np.unique(homes).tolist():
            part = table.filter(pa.array(homes == server))
            out.setdefault(node.name, {})[server] = _write(storage, commit, node.name, server, part)
        if node.held is not None:
            waiting = _saved(storage, commit, node.held, node, old)
            if waiting.num_rows:
                server = old % topology.servers
                out[node.held] = {server: _write(storage, commit, node.held, server, waiting)}
    return out


def merge_waiting(
    topology: Topology, commit: Commit, storage: Storage, manifest: Manifest, server: int
) -> dict[str, SegmentRef | None]:
    """Merge partial states that no longer may wait into the state of one server; the segments to name instead.

    Of those that wait on, merge what several servers of before have left on one: a key may be in each of these.
    """
    out: dict[str, SegmentRef | None] = {}
    for node in _to_merge(topology, commit):
        own = StateView(storage, manifest[node.name][server], node.state).everything()
        homes = partial(homes_of, node, topology.grouping_of(node))
        waiting = commit.manifest[node.name + HELD]
        table = with_waiting(storage, own, waiting, node.state, node.operator, len(node.key), homes, server)
        out[node.name] = _write(storage, commit, node.name, server, table) if table.num_rows else None
    for node, held in _waiting(topology):
        refs = manifest[held][server]
        if len(refs) > 1:
            parts = [StateView(storage, [ref], node.state).everything() for ref in refs]
            table = node.operator.merge_entries(pa.concat_tables(parts), len(SYSTEM) + len(node.key))
            out[held] = _write(storage, commit, held, server, table)
    return out


def with_waiting(
    storage: Storage,
    own: pa.Table,
    waiting: Sequence[Sequence[SegmentRef]],
    schema: pa.Schema,
    operator: Operator,
    keys: int,
    homes: Homes,
    server: int,
) -> pa.Table:
    """Return a server's entries with the partial states of its keys that wait on any server merged in."""
    parts = [own]
    for refs in waiting:
        table = StateView(storage, refs, schema).everything()
        parts.append(table.filter(pa.array(homes(table[H1].to_numpy()) == server)))
    return operator.merge_entries(pa.concat_tables(parts), len(SYSTEM) + keys)


def _to_merge(topology: Topology, commit: Commit) -> list[Node]:
    """Return the operators whose partial states wait in a commit, but no longer may."""
    return [n for n in topology.stateful if n.held is None and any(commit.manifest.get(n.name + HELD, []))]


def _waiting(topology: Topology) -> list[tuple[Node, str]]:
    """Return the operators whose partial states may wait, and the names under which they do."""
    return [(n, n.held) for n in topology.stateful if n.held is not None]


def _saved(storage: Storage, commit: Commit, name: str, node: Node, old: int) -> pa.Table:
    servers = commit.manifest.get(name, [])
    return StateView(storage, servers[old] if old < len(servers) else [], node.state).everything()


def _write(storage: Storage, commit: Commit, name: str, server: int, table: pa.Table) -> SegmentRef:
    # among the files of the next batch: a clean-up leaves those alone
    path = f"state/{name}/{commit.batch + 1:012d}/s{server}-moved-{uuid.uuid4().hex[:12]}.arrow"
    return write_segment(storage, path, table)
