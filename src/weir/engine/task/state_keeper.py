"""The saved state of one server in one step: read it, add to it, take over keys that move here."""

from __future__ import annotations

from operator import itemgetter

import pyarrow as pa

from weir.engine.documents import OperatorReport, TaskReport
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.ownership import read_moves, rewritten
from weir.engine.task.task_files import TaskFiles
from weir.graph.model import Node
from weir.state.move import check_homes, take_over
from weir.state.segment import DEAD, DEADLINE, SegmentRef, stored_schema
from weir.state.view import StateView


class StateKeeper:
    """Reads committed segments of a server and writes those of this batch."""

    def __init__(self, job: BatchContext, files: TaskFiles, server: int) -> None:
        self._job, self._storage, self._files, self._server = job, job.storage, files, server
        # segments this server wrote in this batch, with the step: reports come in any order
        self._fresh: dict[str, list[tuple[int, SegmentRef]]] = {}
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
        self._append(node, table)

    def _append(self, node: Node, table: pa.Table) -> None:
        ref = self._files.segment(node.name, table)
        if ref is not None:
            self._fresh.setdefault(node.name, []).append((self._files.report.step, ref))

    def hear(self, report: TaskReport) -> TaskReport:
        """Take in what an earlier step of this batch wrote here; return its report."""
        for written in report.segments:
            if written.replaces is None and written.ref is not None and report.server == self._server:
                self._fresh.setdefault(written.operator, []).append((report.step, written.ref))
        return report

    def change_owners(self) -> None:
        """Make state of keys that move here this server's own, before any state is read; let others go."""
        job, plan, report = self._job, self._job.plan, self._files.report
        for name in plan.rewrites:
            node = job.topology.by_name[name]
            table, new_keys = rewritten(job, node, self._server)
            self._append(node, table)
            if new_keys:
                _count(report, name).keys_delta += new_keys
                report.entries[name] = new_keys, 0
        for move in plan.moves:
            node = job.topology.by_name[move.operator]
            moves = read_moves(self._storage, move)
            # then other numbers count for owners before, and no key comes or goes
            changing = plan.origin is not None
            segments = (job.before if changing and job.before is not None else job.segments).of_all(node.name)
            if not changing:
                check_homes(self._storage, node.state, segments, moves, self._server)
            changes = take_over(self._storage, node.state, segments, self.view(node), moves, self._server)
            if changing:
                self._append(node, changes.entries)
            elif changes.entries.num_rows:
                report.moved[node.name] = changes.arrived, changes.left
                _count(report, node.name).keys_delta += changes.arrived - changes.left
                self.write(node, changes.entries)

    def merge_segments(self) -> None:
        """Merge runs of old segments as planned."""
        for name, runs in self._job.plan.merges.items():
            run = runs[self._server]
            if run is None:
                continue
            node = self._job.topology.by_name[name]
            refs = self._job.segments.of(name, self._server)
            self._files.merge(name, refs, (run[0], run[1]), node.state)


def _count(report: TaskReport, operator: str) -> OperatorReport:
    return report.operators.setdefault(operator, OperatorReport())


def partial_schema(node: Node) -> pa.Schema:
    """Return the columns in which partial states of an operator travel."""
    return pa.schema([f for f in stored_schema(node.state) if f.name not in (DEAD, DEADLINE)])
