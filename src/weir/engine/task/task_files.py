"""The files that one task writes: named so that no two attempts meet, and listed in its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from weir.engine.checkpoint import OUTPUTS, STATE, CheckpointLayout, write_table
from weir.engine.documents import MadeSegment, TaskReport
from weir.engine.metrics.latency import count_age
from weir.errors import OperatorError, said
from weir.graph.model import DEAD_LETTER_SCHEMA, LATE, Node, Topology
from weir.rows import Rows
from weir.state.merge import merge_segments
from weir.state.segment import SegmentRef, write_segment
from weir.state.storage import Storage, WriteBehind


class TaskFiles:
    """Writes a task's files, behind its back: :meth:`settle` before they are read, or the task reports them.

    A file counts only if a commit names it.
    """

    def __init__(self, storage: Storage, report: TaskReport, batch: int, task: int) -> None:
        self.storage, self.report = WriteBehind(storage), report
        self.settle = self.storage.settle
        self._batch = batch
        self._who = f"t{task}" if report.server is None else f"s{report.server}"

    def name(self, kind: str, operator: str = "", what: str = "") -> str:
        """Return a name for a new file of this task."""
        return CheckpointLayout.new_file(kind, self._batch, f"{self._who}-{self.report.step}{what}", operator)

    def segment(self, name: str, table: pa.Table) -> SegmentRef | None:
        """Write entries of an operator's state, if there are any."""
        if not table.num_rows:
            return None
        ref = write_segment(self.storage, self.name(STATE, name), table)
        self.report.segments.append(MadeSegment(name, ref))
        return ref

    def merge(self, name: str, refs: Sequence[SegmentRef], run: tuple[int, int], schema: pa.Schema) -> None:
        """Write one segment in the place of a run of an operator's segments, while operators work."""
        path = self.name(STATE, name, "-merged")

        def work(storage: Storage) -> None:
            ref = merge_segments(storage, refs[run[0] : run[1]], schema, path, keep_dead=run[0] > 0)
            self.report.segments.append(MadeSegment(name, ref, run))

        self.storage.behind(work)

    def output(self, sink: str, table: pa.Table) -> None:
        """Write rows for a sink."""
        ref = write_table(self.storage, self.name(OUTPUTS, sink), table.combine_chunks())
        self.report.outputs.setdefault(sink, []).append(ref)


class TaskOutputs:
    """Collects a task's rows for sinks and the rows that it diverts, and writes them when the step ends."""

    def __init__(self, files: TaskFiles, topology: Topology) -> None:
        self._files, self._topology = files, topology
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._groups: dict[str, list[tuple[int, int]]] = {}  # sink → marker, rows
        self._letters: dict[str, list[dict[str, str]]] = {}  # sink → rows that were set aside

    def add(self, sink: str, batch: pa.RecordBatch, source_time: int) -> None:
        """Add rows for a sink; ``source_time`` is when the oldest left its source."""
        self._batches.setdefault(sink, []).append(batch)
        self._groups.setdefault(sink, []).append((source_time, batch.num_rows))

    def divert(self, node: Node, key: Any, row: Any, error: BaseException) -> None:
        """Add a row that an operator failed on to the dead letters."""
        letter = {
            "operator": node.name,
            "key": "" if key is None else _text(str(key)),
            "row": _readable(row),
            "error": _text(f"{type(error).__name__}: {said(error)}"),
        }
        for sink in self._topology.dead_letter_sinks(node):
            self._letters.setdefault(sink, []).append(letter)

    def late(self, node: Node, rows: Rows) -> None:
        """Add rows that came too late for an operator, if somebody wants them."""
        if node.name + LATE in self._topology.sinks:
            self.add(node.name + LATE, rows.to_batch(node.input), rows.source_time)

    def set_aside(self, node: Node, rows: Rows, why: str) -> None:
        """Add rows that an operator does not believe to the dead letters, if somebody takes these."""
        if self._topology.dead_letter_sinks(node):
            for row in rows.to_batch(node.input).to_pylist():
                self.divert(node, ", ".join(str(row[k]) for k in node.key), row, OperatorError(why))

    def write(self) -> None:
        """Write one file per sink, and count how old the rows are by now."""
        for sink, batches in self._batches.items():
            self._files.output(sink, pa.Table.from_batches(batches))
            ages = self._files.report.sink_ages.setdefault(sink, {})
            for source_time, rows in self._groups[sink]:
                count_age(ages, source_time, rows)
        for sink, letters in self._letters.items():
            self._files.output(sink, pa.Table.from_pylist(letters, schema=DEAD_LETTER_SCHEMA))


def _readable(row: Any) -> str:
    """Return a row as JSON, or, if JSON can't hold it, as Python shows it; a dead letter must not fail."""
    try:
        return msgspec.json.encode(row, enc_hook=str).decode()
    except Exception:
        return _text(repr(row))


def _text(text: str) -> str:
    """Return a text that UTF-8 can hold: half of a surrogate pair is written out."""
    return text.encode("utf-8", "backslashreplace").decode()
