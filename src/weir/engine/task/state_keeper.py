"""The saved state of one server in one step: read it, add to it, take over keys that move here."""

from __future__ import annotations

from operator import itemgetter

import pyarrow as pa

from weir.engine.documents import OperatorReport, TaskReport
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.task_files import TaskFiles
from weir.graph.model import Node
from weir.operators.instance import Instance
from weir.state.move import read_moves, take_over
from weir.state.segment import DEAD, DEADLINE, SegmentRef, newest, stored_schema
from weir.state.storage import Storage
from weir.state.view import StateView


class StateKeeper:
    """Reads committed segments of a server and writes those of this batch."""

    def __init__(self, job: BatchContext, storage: Storage, files: TaskFiles, server: int) -> None:
        self._job, self._storage, self._files, self._server = job, storage, files, server
        # segments this server wrote in this batch, with the step: reports come in any order
        self._fresh: dict[str, list[tuple[int, SegmentRef]]] = {}
        self._arrived: dict[str, list[pa.RecordBatch]] = {}  # states from servers that change places
        self._committed: dict[str, StateView] = {}

    def view(self, node: Node) -> StateView:
        """Return the operator's state here: as committed, with what earlier steps of this batch wrote."""
        refs = self._job.segments.of(node.name, self._server)
        fresh = sorted(self._fresh.get(node.name, ()), key=itemgetter(0))
        if fresh:
            self._files.settle()
            return StateView(self._storage, [*refs, *(ref for _, ref in fresh)], node.state)
        if node.name not in self._committed:
            self._committed[node.name] = StateView(self._storage, refs, node.state)
        return self._committed[node.name]

    def has_state(self, node: Node) -> bool:
        """Return whether anything was committed for an operator here."""
        return bool(self._job.segments.of(node.name, self._server))

    def write(self, node: Node, table: pa.Table) -> None:
        """Write entries, one per key, and count what they change."""
        if self._job.invariants and table.num_rows:
            counted = self._files.report.entries
            added, gone = counted.get(node.name, (0, 0))
            more, fewer = self.view(node).changes(table)
            counted[node.name] = added + more, gone + fewer
        ref = self._files.segment(node.name, table)
        if ref is not None:
            self._fresh.setdefault(node.name, []).append((self._files.report.step, ref))

    def hear(self, report: TaskReport) -> TaskReport:
        """Take in what an earlier step of this batch wrote here; return its report."""
        for written in report.segments:
            if written.replaces is None and written.ref is not None and report.server == self._server:
                self._fresh.setdefault(written.operator, []).append((report.step, written.ref))
        return report

    def arrive(self, node: Node, batch: pa.RecordBatch) -> None:
        """Take in states that another server sends here, because servers change."""
        self._arrived.setdefault(node.name, []).append(batch)

    def change_owners(self, report: TaskReport) -> None:
        """Make states of keys that move here this server's own, before any state is read; let others go."""
        topology, plan = self._job.topology, self._job.plan
        for name, batches in self._arrived.items():
            node = topology.by_name[name]
            table = newest(pa.Table.from_batches(batches))
            _count(report, name).keys_delta += table.num_rows
            self.write(node, table)
        for move in plan.moves:
            node = topology.by_name[move.operator]
            segments = self._job.segments.of_all(node.name)
            moves = read_moves(self._storage, move.file.name, move.file.bytes, move.file.crc)
            changes = take_over(self._storage, node.state, segments, moves, self._server)
            if changes.entries.num_rows:
                report.moved[node.name] = changes.arrived, changes.left
                _count(report, node.name).keys_delta += changes.arrived - changes.left
                self.write(node, changes.entries)

    def merge_segments(self) -> None:
        """Merge runs of old segments as planned."""
        for name, runs in self._job.plan.merges.items():
            run = runs[self._server]
            if run is None:
                continue
            node = self._job.topology.by_state_name[name]
            refs = self._job.segments.of(name, self._server)
            self._files.merge(name, refs, (run[0], run[1]), node.state)

    def hold_or_release(self, node: Node, instance: Instance) -> None:
        """Keep partial states on this server, or let all leave for their homes, as ``aggregate_every`` says."""
        assert node.held is not None
        plan = self._job.plan
        held = StateView(self._storage, self._job.segments.of(node.held, self._server), node.state)
        due = node.aggregates(plan.batch, plan.end_of_input)
        table = instance.release(held) if due else instance.hold(held)
        if table is not None and table.num_rows:
            self._files.segment(node.held, newest(table))


def _count(report: TaskReport, operator: str) -> OperatorReport:
    return report.operators.setdefault(operator, OperatorReport())


def partial_schema(node: Node) -> pa.Schema:
    """Return the columns in which partial states of an operator travel."""
    return pa.schema([f for f in stored_schema(node.state) if f.name not in (DEAD, DEADLINE)])
