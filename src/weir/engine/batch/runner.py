"""What the batch loop asks of whoever runs it: Spark jobs, live servers on Spark, or this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import pyarrow as pa

from weir.engine.documents import BatchPlan, Claim, FileRef, Manifest
from weir.engine.progress import Progress
from weir.engine.steering.scaler import Machines
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.reports import BatchResult
from weir.graph.model import Topology
from weir.locality.stats import BatchStats
from weir.state.storage import Storage


class SourceRows(Protocol):
    """What is asked of the rows that sources hand over: the loop only passes them on."""

    def listings(self, rows: Any, topology: Topology, sources: Collection[str]) -> dict[str, pa.Table]:
        """Return the rows of sources that list what is to be read, of those that have some."""

    def without(self, rows: Any, topology: Topology, sources: Collection[str] | None = None) -> Any:
        """Return rows without those of some sources, None: of all."""

    def no_rows(self, topology: Topology) -> Any:
        """Return what the source would hand over if it had nothing."""


class TaskRunner(Protocol):
    """What delivering asks of a runner."""

    def each(self, count: int, task: Callable[[int], Any]) -> list[Any]:
        """Run a task for each number below ``count``; return their answers, which are JSON-able."""

    def call(self, sink: Any, files: list[FileRef], schema: pa.Schema, batch: int) -> None:
        """Call a function with a batch's rows."""

    def frame(self, files: list[FileRef], schema: pa.Schema, order: str = "") -> Any:
        """Return a batch's rows as a DataFrame, of a session whose settings sinks may change; on Spark only.

        ``order`` is a column to be added that numbers the rows.
        """


class Runner(Protocol):
    """Runs the batches of one query."""

    storage: Storage
    mode: str  # of the checkpoint: what kind of batches come

    @property
    def sources(self) -> SourceRows:
        """Who knows the rows that batches bring."""

    @property
    def tasks(self) -> TaskRunner:
        """Who runs tasks beside batches."""

    @property
    def machines(self) -> Machines:
        """Who gives servers the room to run."""

    def room(self, servers: int | None) -> int:
        """Raise an EngineError if so many servers can't run; for None return how many can."""

    @property
    def execution(self) -> str:
        """How batches run, and why so: for people."""

    def start(self, rows: Any, topology: Topology, learning: Learning | None, claim: Claim) -> None:
        """Get ready for the first batch; called before each, does nothing after the first.

        Processes that run tasks must find ``claim`` in the checkpoint (:func:`weir.engine.batch.fence.check_shared`).
        """

    def locate(self, always: bool) -> dict[int, tuple[str, str]]:
        """Return host and process of each server, and remember the hosts; unless ``always``, only if need be."""

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        """Go over to other servers with the next batch."""

    def look_ahead(self, rows: Any, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        """Count the keys of the batch that is planned next, which is then run with the same rows.

        None if that was not possible; ``again`` is whether it may read the source a second time. Then the batch is
        planned by what is known of earlier ones.
        """

    def run(self, rows: Any, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchResult:
        """Run a batch."""

    def committed(self, progress: Progress) -> None:
        """Hear what a batch did, once it has happened."""

    def close(self) -> None:
        """End what runs between batches; a batch that runs ends with an error."""
