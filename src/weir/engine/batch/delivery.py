"""Hand the outputs of a committed batch to its sinks: each once, all of them, however long one is away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.engine.arrays import read_table, table_schema
from weir.engine.batch.ledger import Ledger
from weir.engine.batch.retry import Retry
from weir.engine.batch.runner import TaskRunner
from weir.engine.documents import Commit, FileRef
from weir.errors import CheckpointMismatch
from weir.faults import reach
from weir.graph.model import Topology
from weir.sinks.base import Delivery, Sink
from weir.state.storage import Storage

Sinks = Mapping[str, Sequence[Any]]  # operator → its sinks: a Sink or a function each


class Deliveries:
    """Delivers batches of one query."""

    def __init__(
        self, sinks: Sinks, storage: Storage, ledger: Ledger, runner: TaskRunner, retry: Retry
    ) -> None:
        self.sinks, self.storage, self.ledger = sinks, storage, ledger
        self._runner, self._patience = runner, retry
        self._recovering = ledger.last  # a commit that an earlier driver made may have been delivered by it

    def open(self, topology: Topology, forget: Collection[str]) -> None:
        """Make sure that nothing is owed to a sink that is gone, and that all sinks can take rows."""
        last = self.ledger.last
        self._check_owed(forget)
        self.ledger.sinks = {name: len(sinks) for name, sinks in self.sinks.items()}
        for name, sinks in self.sinks.items():
            schema = topology.sink_schema(name)
            for sink in sinks:
                if isinstance(sink, Sink):
                    self._open(sink, name, schema, last is None)

    def _open(self, sink: Sink, name: str, schema: pa.Schema, fresh: bool) -> None:
        self._persist(name, lambda again: sink.open(self.ledger.query, name, schema, fresh))

    def deliver(self, commit: Commit, topology: Topology) -> dict[str, Any]:
        """Hand a batch's outputs to the sinks, unless they have had it; return what it had to wait for."""
        waits: dict[str, Any] = {}
        if not self.sinks or self.ledger.was_delivered(commit.batch):
            return waits
        reach("delivery-started", commit.batch)
        for name, sinks in self.sinks.items():
            files = commit.outputs.get(name, [])
            # as they were written: the application may have changed since
            schema = table_schema(self.storage, files[0]) if files else topology.sink_schema(name)
            for sink in sinks:
                if not isinstance(sink, Sink):
                    if files or name in topology.by_name:
                        self._runner.call(sink, files, schema, commit.batch)
                elif files:
                    waited = self._persist(name, self._one(sink, name, commit, files, schema))
                    if waited is not None:
                        waits[f"{name}: {sink!r}"] = waited
                    reach("sink-committed", commit.batch)
        self.ledger.delivered(commit.batch)
        return waits

    def close(self) -> None:
        """Let go of connections."""
        for sinks in self.sinks.values():
            for sink in sinks:
                if isinstance(sink, Sink):
                    sink.close()

    def _one(
        self, sink: Sink, name: str, commit: Commit, files: list[FileRef], schema: pa.Schema
    ) -> Callable[[bool], None]:
        recovering = self._recovering is not None and self._recovering.batch == commit.batch
        storage = self.storage  # sinks may read in tasks, to which all of this would go along

        def deliver(again: bool) -> None:
            sink.deliver(
                Delivery(
                    query=self.ledger.query,
                    operator=name,
                    batch=commit.batch,
                    again=again or recovering,
                    schema=schema,
                    rows=sum(f.rows for f in files),
                    parts=len(files),
                    read=lambda part: read_table(storage, files[part], schema),
                    each=self._runner.each,
                )
            )

        return deliver

    def _persist(self, name: str, act: Callable[[bool], None]) -> dict[str, Any] | None:
        return self._patience.persist(f"the sink of {name!r}", act)

    def _check_owed(self, forget: Collection[str]) -> None:
        """Refuse to forget rows of the last batch whose operator, or one of its sinks, is gone from the application."""
        last = self.ledger.last
        if last is None or self.ledger.was_delivered(last.batch):
            return
        for name, files in last.outputs.items():
            had, has = max(1, last.sinks.get(name, 1)), len(self.sinks.get(name, ()))
            if files and has < had and name not in forget:
                rows, which = sum(f.rows for f in files), "the sink" if had == 1 else f"{had} sinks"
                raise CheckpointMismatch(
                    f"{self.storage.root}: batch {last.batch} has {rows} rows for {which} of {name!r}, which have not "
                    f"been delivered, and there {'are fewer' if has else 'is no such sink'} now. Start once with "
                    f'{"it" if had == 1 else "all"}, or give them up: forget={{"undelivered": [{name!r}]}}.'
                )
