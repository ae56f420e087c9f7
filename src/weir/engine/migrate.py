"""Laying saved state out anew, for another number of servers or another grouping.

Each server of the new topology reads what there is and keeps what will live with it. Old files stay as they are
until the commit that names the new ones; a crash in between leaves the old state.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.documents import Commit
from weir.graph.model import Node, Topology
from weir.hashing import hash_home
from weir.operators.aggregate import Aggregate
from weir.operators.base import Operator
from weir.routing.base import Grouping
from weir.routing.buckets import Buckets
from weir.routing.hash import Hash
from weir.routing.locality_aware import Learnt
from weir.state.index import group_rows
from weir.state.segment import H1, H2, SYSTEM, SegmentRef, StateView, write_segment
from weir.state.storage import Storage


def homes_of(
    node: Node, grouping: Grouping, h1: NDArray[np.uint64], buckets: Buckets | None = None
) -> NDArray[np.int32]:
    """The server on which each key's state lives, also where its rows are worked on elsewhere.

    ``grouping`` is the one in force; ``buckets`` say where keys live that a grouping splits.
    """
    rule: Grouping = grouping
    if isinstance(grouping, Learnt):
        rule = grouping.homes
    elif node.splits:
        rule = buckets or Hash()
    return np.asarray(node.placement, np.int32)[rule.router(len(node.placement)).route(h1)]


def lay_out(
    topology: Topology, commit: Commit, location: str, server: int
) -> dict[str, tuple[SegmentRef | None, int]]:
    """Writes the state that will live on one server; per operator its segment and number of keys."""
    storage = Storage(location)
    out: dict[str, tuple[SegmentRef | None, int]] = {}
    for node in topology.stateful:
        parts: list[pa.Table] = []
        for refs in commit.manifest.get(node.name, []):
            table = StateView(storage, refs, node.state).everything()
            where = homes_of(node, topology.grouping_of(node), table[H1].to_numpy())
            parts.append(table.filter(pa.array(where == server)))
        mine = pa.concat_tables(parts) if parts else None
        waiting = commit.manifest.get(f"{node.name}~held", [])
        if mine is not None and any(waiting):
            mine = with_waiting(
                storage, mine, waiting, node.state, node.operator, len(node.key), node.placement, server
            )
        ref = None
        if mine is not None and mine.num_rows:
            name = f"state/{node.name}/{commit.batch:012d}/s{server}-moved-{uuid.uuid4().hex[:12]}.arrow"
            ref = write_segment(storage, name, mine)
        out[node.name] = (ref, mine.num_rows if mine is not None else 0)
    return out


def with_waiting(
    storage: Storage,
    own: pa.Table,
    waiting: Sequence[Sequence[SegmentRef]],
    schema: pa.Schema,
    operator: Operator,
    keys: int,
    placement: Sequence[int],
    server: int,
    buckets: NDArray[np.int32] | None = None,
) -> pa.Table:
    """A server's entries with the partial states of its keys that wait on any server merged in."""
    parts = [own]
    for refs in waiting:
        table = StateView(storage, refs, schema).everything()
        where = np.asarray(placement, np.int32)[hash_home(table[H1].to_numpy(), len(placement), buckets)]
        parts.append(table.filter(pa.array(where == server)))
    return merge_entries(operator, keys, pa.concat_tables(parts))


def merge_entries(operator: Operator, keys: int, table: pa.Table) -> pa.Table:
    """Entries of an aggregate, those of one key merged into one."""
    assert isinstance(operator, Aggregate)
    table = table.combine_chunks()
    groups, first = group_rows(table[H1].to_numpy(), table[H2].to_numpy())
    if len(first) == table.num_rows:
        return table
    head = table.select(range(len(SYSTEM) + keys)).take(pa.array(first))
    states = [c.combine_chunks() for c in table.columns[len(SYSTEM) + keys :]]
    states = [pa.concat_arrays(s.chunks) if isinstance(s, pa.ChunkedArray) else s for s in states]
    merged = operator.merge(states, groups, len(first))
    return pa.Table.from_arrays([*head.columns, *merged], schema=table.schema)


def manifest_of(
    topology: Topology, laid_out: list[dict[str, Any]]
) -> tuple[dict[str, list[list[SegmentRef]]], dict[str, int]]:
    """The manifest and key counts after :func:`lay_out` ran for every server, in order."""
    manifest = {
        n.name: [[o[n.name][0]] if o[n.name][0] is not None else [] for o in laid_out]
        for n in topology.stateful
    }
    manifest |= {n.held: [[] for _ in laid_out] for n in topology.stateful if n.held}
    keys = {n.name: sum(o[n.name][1] for o in laid_out) for n in topology.stateful}
    return manifest, keys
