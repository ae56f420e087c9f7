"""The files that one task writes: named so that no two attempts meet, and listed in its report."""

from __future__ import annotations

import uuid

import pyarrow as pa

from weir.engine.arrays import write_table
from weir.engine.documents import MadeSegment, TaskReport
from weir.state.segment import SegmentRef, write_segment
from weir.state.storage import Storage


class TaskFiles:
    """Writes a task's files. A file counts only if a commit names it."""

    def __init__(self, storage: Storage, report: TaskReport, batch: int, task: int) -> None:
        self.storage, self.report = storage, report
        self._batch = batch
        self._who = f"s{report.server}" if report.server >= 0 else f"t{task}"

    def name(self, folder: str, what: str = "") -> str:
        """Return a new name in a folder of this batch."""
        suffix = f"-{what}" if what else ""
        attempt = uuid.uuid4().hex[:12]
        return f"{folder}/{self._batch:012d}/{self._who}-{self.report.step}{suffix}-{attempt}.arrow"

    def segment(
        self, name: str, table: pa.Table, replaces: tuple[int, int] | None = None
    ) -> SegmentRef | None:
        """Write entries of an operator's state; with ``replaces``, in the place of a run of segments."""
        ref = None
        if table.num_rows:
            path = self.name(f"state/{name}", "merged" if replaces else "")
            ref = write_segment(self.storage, path, table)
        if ref is not None or replaces is not None:
            self.report.segments.append(MadeSegment(name, ref, replaces))
        return ref

    def output(self, sink: str, table: pa.Table) -> None:
        """Write rows for a sink."""
        ref = write_table(self.storage, self.name(f"outputs/{sink}"), table.combine_chunks())
        self.report.outputs.setdefault(sink, []).append(ref)
