"""From a scaling decision to what the next batch does: who lives where, which keys go along, and what is saved.

A decision (:mod:`weir.elasticity`) says which servers come or go and which operators get instances there. Here it
becomes a :class:`Change`: the layout that the plan and every later commit carry, and the tables
of operators that have some. Nothing has happened until the plan that names it is written; from then on a restart
completes it.

Keys of hashed operators move by buckets (:class:`~weir.routing.buckets.Buckets`), as few as balance needs. Keys
with an entry in a table keep their home unless its server goes; those of learning operators are then placed by
the next reconfiguration, which is asked for at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.elasticity.decision import Decision
from weir.elasticity.graph import Graph
from weir.elasticity.keys import carried, spread
from weir.engine.arrays import save_arrays
from weir.engine.documents import FileRef, Layout, TableRef, TaskReport
from weir.engine.exchange import wire
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.server import Server
from weir.engine.task.state_keeper import partial_schema
from weir.engine.task.tables import buckets_in_force, homes_of, load_table, whole_table
from weir.errors import EngineError
from weir.graph.model import Node, Topology
from weir.routing.buckets import Buckets
from weir.routing.locality_aware import NO_TABLE
from weir.routing.table import Table
from weir.state.segment import H1, H2, tombstones
from weir.state.storage import Storage
from weir.state.view import StateView

LEAVING_SERVER = -2  # the number of a server that goes, in its last report

Build = Callable[[int, Mapping[str, Sequence[int]] | None], Topology]
Weigh = Callable[[str, NDArray[np.uint64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Change:
    """A change of servers, ready to be planned.

    ``origin`` has for each server its number before, −1 for a new one.
    """

    layout: Layout
    origin: list[int]
    tables: dict[str, TableRef]


def graph_of(topology: Topology) -> Graph:
    """Return the operators of an application and their edges; what Spark reads for them is not part of it."""
    names = tuple(node.name for node in topology.nodes)
    return Graph(names, tuple((e.source, e.target) for e in topology.edges if e.source in names))


def everywhere(topology: Topology) -> frozenset[str]:
    """Return the operators that have an instance on every server, and will on every server that comes."""
    return frozenset(n.name for n in topology.nodes if n.declared.everywhere)


def check(topology: Topology) -> None:
    """Refuse to scale what can't be: before anything has changed, with a remedy."""
    for node in topology.stateful:
        grouping = topology.grouping_of(node)
        if not grouping.scales:
            raise EngineError(
                f"operator {node.name!r} is routed by {grouping.name}, which is made for a fixed number of "
                "instances; queries scale with Hash, Table, Locality, groupings that split keys, and those that say so"
            )


def change(
    decision: Decision,
    topology: Topology,
    build: Build,
    storage: Storage,
    batch: int,
    layout: Layout | None,
    declared: str,
    tables: Mapping[str, TableRef],
    weigh: Weigh | None = None,
) -> Change:
    """Work a decision out and write its files; only a plan makes them count.

    ``weigh`` gives the recent load of listed keys of an operator; all weigh the same without it.
    """
    check(topology)
    before, after = decision.before, decision.after
    number = {machine: i for i, machine in enumerate(after.machines)}
    origin = [int(m) if m in before.machines else -1 for m in after.machines]
    placements = {name: [number[m] for m in where] for name, where in after.instances.items()}
    build(len(after.machines), placements)  # refuses what cannot run, before anything is written
    files: dict[str, FileRef] = {}
    new_tables: dict[str, TableRef] = {}
    for node in topology.nodes:
        k = len(placements[node.name])
        kept = carried(before.instances[node.name], after.instances[node.name])
        if node.operator.stateful:
            buckets = buckets_in_force(storage, layout, node.name) or _first_buckets(node, topology)
            if buckets is None:
                continue  # its routers for the new number say where keys live
            moved = spread(kept[buckets.homes], k, slack=0.0).homes
            name = f"tables/{node.name}/{batch:012d}/buckets-{uuid.uuid4().hex[:12]}.arrow"
            files[node.name] = save_arrays(storage, name, {"homes": moved})
        elif node.name not in tables:
            continue
        table = _listed(node, topology, storage, tables)
        if len(table):
            homes = _rehomed(node, topology, table, kept, k, weigh)
            new_tables[node.name] = whole_table(
                storage, tables.get(node.name), node.name, batch, table.hashes, homes
            )
    new_layout = Layout(len(after.machines), declared, placements, files)
    return Change(new_layout, origin, new_tables)


def _first_buckets(node: Node, topology: Topology) -> Buckets | None:
    """Return the buckets that route as an operator does before its first scaling; None if it has none."""
    grouping, n = topology.grouping_of(node), len(node.placement)
    rule = grouping.rule(n) if grouping.scales_by_bucket else None
    if rule is not None:
        return Buckets.of_rule(rule)
    return Buckets.like_hash(n) if grouping.splits_keys else None


def _listed(node: Node, topology: Topology, storage: Storage, tables: Mapping[str, TableRef]) -> Table:
    """Return the keys of an operator that have homes of their own."""
    ref = tables.get(node.name)
    if ref is not None:
        return load_table(storage, ref)
    rule = topology.grouping_of(node).rule(len(node.placement))
    return NO_TABLE if rule is None else Table(rule.listed, rule.instances)


def _rehomed(
    node: Node, topology: Topology, table: Table, kept: NDArray[np.int32], k: int, weigh: Weigh | None
) -> NDArray[np.int32]:
    """Return new homes of listed keys: those whose home goes find another; a fixed table is balanced anew as well."""
    homes = kept[table.instances]
    weights = weigh(node.name, table.hashes) if weigh is not None else np.ones(len(table))
    if not topology.grouping_of(node).learnt:
        return spread(homes, k, weights=weights).homes
    # where learning places keys, balance is its business: it knows which of them belong together
    return spread(homes, k, weights=weights, slack=float(k)).homes


def move_home(job: BatchContext, old: int) -> Iterator[pa.RecordBatch]:
    """Send the states of all keys that no longer live on a server to their new homes.

    ``old`` is the server's number before the change. One that stays marks them as gone; one that goes takes
    nothing with it: partial states that wait for their aggregation there leave as well.
    """
    return Mover(job, old).leave()


def leaving(job: BatchContext, server: int) -> list[int]:
    """Return the numbers before a change of those whose states a server sends: its own, and some of those that go."""
    origin = job.plan.origin
    assert origin is not None
    before = 0 if job.before is None else job.before.servers
    gone = [old for old in range(before) if old not in origin and old % len(origin) == server]
    return [old for old in [origin[server], *gone] if old >= 0]


class Mover(Server):
    """A server on the day of the move, before the batch's first exchange."""

    def __init__(self, job: BatchContext, old: int) -> None:
        origin = job.plan.origin
        assert origin is not None
        super().__init__(job, 0, origin.index(old) if old in origin else -1)
        self.old = old
        if self.server < 0:
            self.report.server = LEAVING_SERVER

    def leave(self) -> Iterator[pa.RecordBatch]:
        for node in self.topology.stateful:
            yield from self._states(node)
            if self.server < 0 and node.held is not None:
                held = self._saved(node, node.held).select(partial_schema(node).names)
                self._put(self.old % self.plan.servers, wire.PARTIAL, node, held)
        self._send_reports()
        yield from self.outbox.flush()

    def _states(self, node: Node) -> Iterator[pa.RecordBatch]:
        table = self._saved(node, node.name)
        buckets = buckets_in_force(self.storage, self.plan.layout, node.name)
        homes = homes_of(node, self.routers.grouping(node), table[H1].to_numpy(), buckets)
        leaving = homes != self.server
        if not leaving.any():
            return
        gone, homes = table.filter(pa.array(leaving)), homes[leaving]
        for target in np.unique(homes):
            self._put(int(target), wire.STATE, node, gone.filter(pa.array(homes == target)))
            if self.outbox.full():
                yield from self.outbox.flush()
        if self.server >= 0:
            self.keeper.write(node, tombstones(gone[H1].to_numpy(), gone[H2].to_numpy(), node.state))
        self._operator(node).keys_delta -= gone.num_rows

    def _saved(self, node: Node, name: str) -> pa.Table:
        refs = self.job.before.of(name, self.old) if self.job.before is not None else []
        return StateView(self.storage, refs, node.state).everything()

    def _put(self, target: int, kind: int, node: Node, table: pa.Table) -> None:
        rows = max(1, table.num_rows * wire.BLOB_BYTES // max(1, table.nbytes))
        for batch in table.combine_chunks().to_batches(rows):
            self.outbox.put(target, kind, node.index, wire.pack(batch), rows=batch.num_rows)


def moved_keys(reports: Sequence[TaskReport]) -> int:
    """Return how many keys' states left a server in the batch of a change."""
    return -sum(
        op.keys_delta for r in reports if r.step == 0 for op in r.operators.values() if op.keys_delta < 0
    )
