"""From a change of servers or of the application to what the next batch does: who owns which keys from then on.

A decision (:mod:`weir.elasticity`) says which servers come or go and which operators get instances there; a restart
may come with other servers, placements or groupings. Here either becomes a :class:`Change`, which the batch's plan
carries out: state changes its owner by reference (:mod:`weir.engine.task.ownership`). Nothing has happened until the
plan is written; from then on a restart completes it.

Scaling moves as few key groups as balance needs. Keys with an entry in a
table keep their home unless its server goes; those of learning operators are then placed by the next reconfiguration,
which is asked for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.elasticity.decision import Decision
from weir.elasticity.graph import Graph
from weir.elasticity.keys import regroup, spread
from weir.engine.checkpoint import TABLES, CheckpointLayout, save_arrays
from weir.engine.documents import Commit, Layout, Move, TableRef
from weir.engine.task.ownership import known, listed_before, owners_before, transfer, write_moves
from weir.engine.task.tables import load_table, whole_table
from weir.errors import EngineError
from weir.graph.build import check_promises
from weir.graph.model import HELD, Node, Topology
from weir.routing.base import Grouping
from weir.routing.table import NO_TABLE
from weir.state.storage import Storage

Build = Callable[[int, Mapping[str, Sequence[int]] | None], Topology]
Weigh = Callable[[str, NDArray[np.uint64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Change:
    """A change of owners, ready to be planned.

    ``origin`` has for each server its number before, −1 for a new one.
    """

    layout: Layout | None
    origin: list[int]
    tables: dict[str, TableRef]
    moves: list[Move]
    rewrites: list[str]
    moved_keys: int  # about


def graph_of(topology: Topology) -> Graph:
    """Return the operators of an application and their edges; what Spark reads for them is not part of it."""
    names = tuple(node.name for node in topology.nodes)
    return Graph(names, tuple((e.source, e.target) for e in topology.edges if e.source in names))


def everywhere(topology: Topology) -> frozenset[str]:
    """Return the operators that have an instance on every server, and will on every server that comes."""
    return frozenset(n.name for n in topology.nodes if n.declared.everywhere)


def check(topology: Topology, decision: Decision) -> None:
    """Refuse to scale what can't be: before anything has changed, with a remedy."""
    for node in topology.stateful:
        grouping = topology.grouping_of(node)
        if not grouping.scales:
            raise EngineError(
                f"operator {node.name!r} is routed by {grouping}, whose keys cannot move: it has order_free = False "
                "without splits_keys = True, or says scales = False. Queries scale with Hash, Table, Locality, too"
            )
        if not grouping.scales_by_key_group:
            check_promises(node.declared, grouping, len(decision.after.instances[node.name]))


def scaled(
    decision: Decision,
    topology: Topology,
    build: Build,
    storage: Storage,
    last: Commit,
    declared: str,
    weigh: Weigh | None = None,
) -> Change:
    """Work a scaling decision out and write its files; only a plan makes them count.

    ``weigh`` gives the recent load of listed keys of an operator; all weigh the same without it.
    """
    before, after = decision.before, decision.after
    number = {machine: i for i, machine in enumerate(after.machines)}
    origin = [int(m) if m in before.machines else -1 for m in after.machines]
    placements = {name: [number[m] for m in where] for name, where in after.instances.items()}
    # refuses what cannot run, before anything is written
    after_topology = build(len(after.machines), placements)
    layout = Layout(len(after.machines), declared, placements, {})
    return change(after_topology, storage, last, origin, layout, weigh)


def restarted(topology: Topology, storage: Storage, last: Commit) -> Change:
    """Work out how an application that has changed since a commit goes on from there: with even key groups again."""
    origin = [server if server < last.servers else -1 for server in range(topology.servers)]
    return change(topology, storage, last, origin, None)


def change(
    topology: Topology,
    storage: Storage,
    last: Commit,
    origin: list[int],
    layout: Layout | None,
    weigh: Weigh | None = None,
) -> Change:
    """Return what changes where the state of a commit goes on with another topology.

    A ``layout`` gets key groups that move as little as balance needs, and keeps the tables that are in force.
    """
    batch = last.batch + 1
    tables, moves, rewrites = dict(last.tables), list[Move](), list[str]()
    number = {old: new for new, old in enumerate(origin) if old >= 0}
    moved_keys = 0.0
    for node in topology.nodes:
        grouping, k = topology.grouping_of(node), len(node.placement)
        instance = np.full(last.servers, -1, np.int32)  # server before → instance now
        for old, new in number.items():
            instance[old] = node.instance_on.get(new, -1)
        if not node.operator.stateful:
            if node.name in tables:  # of partitions that are read: no state moves with them
                table = load_table(storage, tables[node.name])
                places = np.arange(last.servers) if last.layout is None else last.layout.placements[node.name]
                homes = instance[np.asarray(places)[table.instances]]
                homes = _rehomed(node, grouping, table.hashes, homes, weigh)
                tables[node.name] = whole_table(
                    storage, tables[node.name], node.name, batch, table.hashes, homes
                )
            continue
        before = owners_before(storage, last, node, grouping) if node.name in last.manifest else None
        listed = NO_TABLE if before is None else before
        if before is None and grouping.learnt and node.name in tables:
            listed = listed_before(storage, last, node)
        if len(listed) and (grouping.learnt or layout is not None):
            homes = _rehomed(node, grouping, listed.hashes, instance[listed.instances], weigh)
            tables[node.name] = whole_table(
                storage, tables.get(node.name), node.name, batch, listed.hashes, homes
            )
        else:
            tables.pop(node.name, None)
        if before is None or not known(grouping, k):
            if any(last.manifest.get(node.name, [])) or any(last.manifest.get(node.name + HELD, [])):
                rewrites.append(node.name)
                moved_keys += last.keys.get(node.name, 0)
            continue
        if layout is not None and (grouping.scales_by_key_group or grouping.splits_keys):
            name = CheckpointLayout.new_file(TABLES, batch, "key-groups", node.name)
            groups = regroup(instance[before.rule(1).homes], k)
            layout.key_groups[node.name] = save_arrays(storage, name, {"homes": groups})
        owners = transfer(storage, last, layout, tables, origin, node, topology)
        moved_keys += owners.moved_keys(last.keys.get(node.name, 0))
        if len(owners.moves.keys):
            moves.append(write_moves(storage, node.name, batch, owners.moves))
    return Change(layout, origin, tables, moves, rewrites, round(moved_keys))


def _rehomed(
    node: Node,
    grouping: Grouping,
    hashes: NDArray[np.uint64],
    homes: NDArray[np.int32],
    weigh: Weigh | None,
) -> NDArray[np.int32]:
    """Return new homes of listed keys: those whose home goes find another; a fixed table is balanced anew as well."""
    k = len(node.placement)
    weights = weigh(node.name, hashes) if weigh is not None else np.ones(len(hashes))
    if not grouping.learnt:
        return spread(homes, k, weights=weights)
    # where learning places keys, balance is its business: it knows which of them belong together
    return spread(homes, k, weights=weights, slack=float(k))
