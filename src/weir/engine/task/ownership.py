"""Who owns the state of an operator, and what becomes of it when servers or groupings change.

Every key has one owner: the server of its key group, or the server that a table lists it at. State is sorted by hash,
so a key group is a slice of every segment. A change moves slices from one server's list of segments to another's;
no state is read or copied. Two kinds of state are written anew, by their new owners:

* listed keys that their slice does not follow (:attr:`Transfer.moves`), few beside the others;
* all state of an operator whose old owners are unknown (:func:`rewritten`): it comes from an earlier version, or from
  a grouping that is no longer there, or that only its routers know.

Both read the last commit alone. So tasks need not wait for each other, a task that runs twice finds the same, and
until this batch's commit nothing has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.checkpoint import MOVES, CheckpointLayout, read_table, write_table
from weir.engine.documents import BatchPlan, Commit, Layout, Manifest, Move, TableRef
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.tables import grouping_in_force, homes_of, key_groups_in_force, load_table
from weir.graph.model import HELD, Node, Topology
from weir.hashing import group_starts, key_group
from weir.routing.base import Grouping
from weir.routing.table import NO_TABLE, Table, finer
from weir.state.merge import living
from weir.state.move import Moves
from weir.state.segment import H1, SYSTEM, SegmentRef, stored_schema
from weir.state.storage import Storage

LAST = (1 << 64) - 1


def known(grouping: Grouping, n: int) -> bool:
    """Return whether a grouping says by which key groups and table its keys find their owners."""
    return grouping.splits_keys or grouping.rule(n) is not None


def ranged(topology: Topology, layout: Layout | None) -> list[str]:
    """Return the operators whose owners follow from what a commit names: key groups, and a table if there is one."""
    moved = {} if layout is None else layout.key_groups
    return [n.name for n in topology.stateful if n.name in moved or _plain(topology.grouping_of(n), n)]


def _plain(grouping: Grouping, node: Node) -> bool:
    if grouping.splits_keys or grouping.learnt:
        return True
    rule = grouping.rule(len(node.placement))
    return (
        rule is not None
        and not len(rule.listed)
        and np.array_equal(rule.homes, np.arange(len(node.placement)))
    )


def owners(
    storage: Storage,
    grouping: Grouping | None,
    placement: Sequence[int],
    name: str,
    layout: Layout | None,
    table: TableRef | None,
) -> Table:
    """Return the servers that own keys: by a layout and a table, where there are such, else by the operator's grouping.

    Without a grouping, keys that no table lists are spread evenly.
    """
    places = np.asarray(placement, np.int32)
    rule = None if grouping is None or grouping.splits_keys else grouping.rule(len(places))
    key_groups = key_groups_in_force(storage, layout, name)
    if key_groups is None:
        key_groups = finer(np.arange(len(places)) if rule is None else rule.homes)
    if table is not None:
        listed = load_table(storage, table)
    else:
        listed = NO_TABLE if rule is None else Table(rule.listed, rule.instances)
    return Table(listed.hashes, places[listed.instances]).with_key_groups(places[key_groups])


def owners_before(storage: Storage, last: Commit, node: Node, grouping: Grouping) -> Table | None:
    """Return the owners of an operator's keys as of a commit; None if it does not tell."""
    saved = last.signature.operators[node.name]
    if last.ranged is None:
        return None
    rule = None
    if node.name not in last.ranged:
        if saved.grouping != grouping.signature() or not known(grouping, len(saved.placement)):
            return None
        rule = grouping
    return owners(storage, rule, saved.placement, node.name, last.layout, last.tables.get(node.name))


def listed_before(storage: Storage, last: Commit, node: Node) -> Table:
    """Return the servers of keys that a table of a commit lists."""
    table = load_table(storage, last.tables[node.name])
    places = np.asarray(last.signature.operators[node.name].placement, np.int32)
    return Table(table.hashes, places[table.instances])


class Transfer:
    """What a change of owners does to the state of an operator.

    Owners are tables of servers, with key groups. ``origin`` has for each server after the change its number before,
    −1 for a new one.

    >>> half, whole = np.array([0, 0, 0, 1, 1, 1], np.int32), np.array([0, 0, 2, 1, 1, 2], np.int32)
    >>> change = Transfer(*map(NO_TABLE.with_key_groups, (half, whole)), [0, 1, -1])
    >>> after = change.slices([[SegmentRef("a", 9, 0, 0)], [SegmentRef("b", 9, 0, 0)]])
    >>> [[(ref.name, round(ref.share, 2)) for ref in refs] for refs in after]
    [[('a', 0.67)], [('b', 0.67)], [('a', 0.33), ('b', 0.33)]]
    """

    def __init__(self, before: Table, after: Table, origin: Sequence[int]) -> None:
        self.before, self.after, self.origin = before, after, list(origin)
        groups = [owners.rule(1).homes for owners in (before, after)]
        self._starts = np.union1d(*(group_starts(len(homes)) for homes in groups))
        self._old, self._new = (homes[key_group(self._starts, len(homes))] for homes in groups)
        self._width = np.diff(np.append(self._starts, np.uint64(LAST))).astype(np.float64)
        highest = max(int(self._old.max()), int(before.instances.max(initial=0)), *self.origin)
        self._number = np.full(highest + 1, -1, np.int32)
        for new, old in enumerate(self.origin):
            if old >= 0:
                self._number[old] = new

    def _holder(self, server: NDArray[np.int32] | int, at: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return who holds what a server had in some ranges of hashes; −1: nobody, for only listed keys were there."""
        same, old, new = self._number[server], self._old[at], self._new[at]
        return np.where(old == server, new, np.where(new == same, -1, same)).astype(np.int32)

    def slices(self, manifest: Sequence[Sequence[SegmentRef]]) -> list[list[SegmentRef]]:
        """Return the segments of each server after the change, given those of each before."""
        out: list[list[list[SegmentRef]]] = [[] for _ in self.origin]
        every = np.arange(len(self._starts))
        for server, refs in enumerate(manifest):
            if not refs or server >= len(self._number):
                continue
            holder, owned = self._holder(server, every), self._old == server
            total = float(self._width[owned].sum()) or float(self._width.sum())
            for target in np.unique(holder[holder >= 0]).tolist():
                mine = holder == target
                if mine.all():
                    out[target].append(list(refs))
                    continue
                edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]]).astype(np.int8)))
                lasts = np.append(self._starts, np.uint64(0)) - np.uint64(1)  # of the range before each start
                ranges = [(int(self._starts[a]), int(lasts[b])) for a, b in edges.reshape(-1, 2)]
                share = float(self._width[mine & owned].sum()) / total
                parts = (ref.sliced(ranges, share) for ref in refs)
                out[target].append([part for part in parts if part is not None])
        return [_large_first(lists) for lists in out]

    def moved_keys(self, keys: int) -> float:
        """Return how many of an operator's keys change their owner, about: nobody counts them in a range."""
        moved = self._number[self._old] != self._new
        listed = self.before
        elsewhere = self._number[listed.instances] != self.after.route(listed.hashes)
        unlisted = max(0, keys - len(listed))
        return float(elsewhere.sum() + unlisted * self._width[moved].sum() / self._width.sum())

    @cached_property
    def moves(self) -> Moves:
        """Listed keys that do not follow their slice."""
        keys = np.union1d(self.before.hashes, self.after.hashes)
        at = np.searchsorted(self._starts, keys, "right") - 1
        source, target = self.before.route(keys), self.after.route(keys)
        holder = self._holder(source, at)
        moved = holder != target
        return Moves(keys[moved], source[moved], target[moved], holder[moved])


def _large_first(lists: Sequence[Sequence[SegmentRef]]) -> list[SegmentRef]:
    """Return the segments of some lists, whose keys differ, as one: each list in its order, large ones first.

    Merging wants those of one size to be neighbours.
    """
    ranked: list[tuple[int, SegmentRef]] = []
    for refs in lists:
        largest = list(accumulate((ref.entries for ref in reversed(refs)), max))  # from the last on
        ranked += zip(reversed(largest), refs, strict=True)
    return [ref for _, ref in sorted(ranked, key=lambda pair: -pair[0])]


def write_moves(storage: Storage, operator: str, batch: int, moves: Moves) -> Move:
    """Write moves to a file; a plan may name the result from then on."""
    table = pa.table(dict(zip(("h1", "from", "to", "stale"), moves, strict=True)))
    return Move(
        operator, write_table(storage, CheckpointLayout.new_file(MOVES, batch, "moves", operator), table)
    )


def read_moves(storage: Storage, move: Move) -> Moves:
    """Return the moves that a plan names."""
    return Moves(*(column.to_numpy() for column in read_table(storage, move.file).columns))


def reassigned(storage: Storage, last: Commit, plan: BatchPlan, topology: Topology) -> Manifest:
    """Return the segments of each server in the batch that carries out a change."""
    assert plan.origin is not None
    out: Manifest = {}
    for node in topology.stateful:
        saved = last.manifest.get(node.name, [])
        out[node.name] = [[] for _ in plan.origin]
        if node.name not in plan.rewrites and any(saved):
            change = transfer(storage, last, plan.layout, plan.tables, plan.origin, node, topology)
            out[node.name] = change.slices(saved)
    return out


def transfer(
    storage: Storage,
    last: Commit,
    layout: Layout | None,
    tables: dict[str, TableRef],
    origin: Sequence[int],
    node: Node,
    topology: Topology,
) -> Transfer:
    """Return what a change does to the state of an operator whose owners before are known."""
    grouping = topology.grouping_of(node)
    before = owners_before(storage, last, node, grouping)
    assert before is not None
    after = owners(storage, grouping, node.placement, node.name, layout, tables.get(node.name))
    return Transfer(before, after, origin)


def rewritten(job: BatchContext, node: Node, server: int) -> tuple[pa.Table, int]:
    """Return all state of an operator that a server owns, from every server of before; and how many keys are new.

    New are keys of which only partial states waited (up to version 0.2), which are merged.
    """
    assert job.before is not None
    grouping = grouping_in_force(job.storage, job.plan, node.name, job.topology.grouping_of(node))
    key_groups = key_groups_in_force(job.storage, job.plan.layout, node.name)

    def own(name: str) -> list[pa.Table]:
        parts = []
        for refs in job.before.of_all(name):  # type: ignore[union-attr]
            for table in living(job.storage, refs, node.state):
                homes = homes_of(node, grouping, table[H1].to_numpy(), key_groups)
                parts.append(table.filter(pa.array(homes == server)))
        return parts

    table = pa.concat_tables([stored_schema(node.state).empty_table(), *own(node.name)])
    waiting = own(node.name + HELD)
    if not sum(part.num_rows for part in waiting):
        return table, 0
    merged = node.operator.merge_entries(pa.concat_tables([table, *waiting]), len(SYSTEM) + len(node.key))  # type: ignore[attr-defined]
    return merged, merged.num_rows - table.num_rows
