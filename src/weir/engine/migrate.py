"""Laying saved state out anew, for another number of servers or another grouping.

Each server of the new topology reads what there is and keeps what will live with it. Old files stay as they are
until the commit that names the new ones; a crash in between leaves the old state.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.plan import Commit
from weir.grouping.base import Grouping
from weir.grouping.hashed import Hash
from weir.grouping.learnt import Learnt
from weir.state.segment import H1, SegmentRef, StateView, write_segment
from weir.state.storage import Storage
from weir.topology import Node, Topology


def homes_of(node: Node, grouping: Grouping, h1: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The server on which each key's state lives, also where its rows are worked on elsewhere."""
    rule: Grouping = grouping
    if isinstance(grouping, Learnt):
        rule = grouping.table
    elif node.splits:
        rule = Hash()
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
        ref = None
        if mine is not None and mine.num_rows:
            name = f"state/{node.name}/{commit.batch:012d}/s{server}-moved-{uuid.uuid4().hex[:12]}.arrow"
            ref = write_segment(storage, name, mine)
        out[node.name] = (ref, mine.num_rows if mine is not None else 0)
    return out


def manifest_of(
    topology: Topology, laid_out: list[dict[str, Any]]
) -> tuple[dict[str, list[list[SegmentRef]]], dict[str, int]]:
    """The manifest and key counts after :func:`lay_out` ran for every server, in order."""
    manifest = {
        n.name: [[o[n.name][0]] if o[n.name][0] is not None else [] for o in laid_out]
        for n in topology.stateful
    }
    keys = {n.name: sum(o[n.name][1] for o in laid_out) for n in topology.stateful}
    return manifest, keys
