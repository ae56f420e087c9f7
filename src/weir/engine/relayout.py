"""Laying saved state out anew, for another number of servers or another grouping, between two runs.

Each server of the new topology reads what there is and keeps what will live with it. Old files stay as they are
until the commit that names the new ones; a crash in between leaves the old state.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.documents import Commit
from weir.engine.tables import homes_of
from weir.graph.model import Topology
from weir.hashing import hash_home
from weir.operators.base import Operator
from weir.state.segment import H1, SYSTEM, SegmentRef, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

LaidOut = dict[str, tuple[SegmentRef | None, int]]  # operator → segment, number of keys


def lay_out(topology: Topology, commit: Commit, location: str, server: int) -> LaidOut:
    """Writes the state that will live on one server; per operator its segment and number of keys."""
    storage = Storage(location)
    out: LaidOut = {}
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
    return operator.merge_entries(pa.concat_tables(parts), len(SYSTEM) + keys)


def manifest_of(
    topology: Topology, laid_out: list[LaidOut]
) -> tuple[dict[str, list[list[SegmentRef]]], dict[str, int]]:
    """The manifest and key counts after :func:`lay_out` ran for every server, in order."""
    manifest = {n.name: [_listed(o[n.name][0]) for o in laid_out] for n in topology.stateful}
    manifest |= {n.held: [[] for _ in laid_out] for n in topology.stateful if n.held}
    keys = {n.name: sum(o[n.name][1] for o in laid_out) for n in topology.stateful}
    return manifest, keys


def _listed(ref: SegmentRef | None) -> list[SegmentRef]:
    return [] if ref is None else [ref]
