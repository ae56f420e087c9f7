"""Hand the outputs of a committed batch to its sinks, each once; wait for what is away, and try again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from weir.engine.batch.ledger import Ledger
from weir.engine.batch.runner import TaskRunner
from weir.engine.checkpoint import read_table
from weir.engine.documents import Commit, FileRef
from weir.errors import CheckpointMismatch, EngineError, SinkUnavailable, SourceUnavailable
from weir.faults import reach
from weir.graph.model import Topology
from weir.sinks.base import Delivery, Sink
from weir.state.storage import Storage

logger = logging.getLogger("weir.engine")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds between two tries


class Retry:
    """Tries again with growing pauses; ``say`` gets what it waits for, and "" when it no longer waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let everybody who waits give up."""
        self._stopped.set()

    def persist(self, what: str, act: Callable[[bool], None]) -> dict[str, Any] | None:
        """Do something, again and again while it is unavailable; return how long that was, None if it never was.

        ``act`` is called with whether it was tried before.
        """
        began, tries, why = time.monotonic(), 0, ""
        while True:
            try:
                act(tries > 0)
            except (SinkUnavailable, SourceUnavailable) as error:
                tries, why = tries + 1, str(error)
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
                message = f"waiting for {what}: {why}; tried {tries} times, next in {pause:g} s"
                logger.warning("%s", message)
                self._say(message)
                if self._stopped.wait(pause):
                    raise EngineError(
                        f"stopped while waiting for {what} ({why}). Nothing is lost: it is made up for when the query "
                        "is started again."
                    ) from error
                continue
            if not tries:
                return None
            self._say("")
            logger.warning("%s is back after %d tries", what, tries)
            return {"tries": tries, "seconds": round(time.monotonic() - began, 3), "why": why}


Sinks = Mapping[str, Sequence[Any]]  # operator → its sinks: a Sink or a function each


class Deliveries:
    """Delivers batches of one query."""

    def __init__(
        self, sinks: Sinks, storage: Storage, ledger: Ledger, runner: TaskRunner, retry: Retry
    ) -> None:
        self.sinks, self.storage, self.ledger = sinks, storage, ledger
        self._runner, self._retry = runner, retry
        self._recovering = ledger.last  # a commit that an earlier driver made may have been delivered by it

    def open(self, topology: Topology, forget: Collection[str]) -> None:
        """Make sure that nothing is owed to a sink that is gone, and that all sinks can take rows."""
        fresh = self.ledger.last is None or self.ledger.last.handed_over < 0
        self._check_owed(forget)
        self.ledger.sinks = {name: len(sinks) for name, sinks in self.sinks.items()}
        for name, sinks in self.sinks.items():
            schema = topology.sink_schema(name)
            for sink in sinks:
                if isinstance(sink, Sink):
                    self._open(sink, name, schema, fresh)

    def _open(self, sink: Sink, name: str, schema: pa.Schema, fresh: bool) -> None:
        sink.prepare(partial(self._runner.frame, [], schema))
        self._persist(name, lambda again: sink.open(self.ledger.query, name, schema, fresh))

    def deliver(self, commit: Commit, topology: Topology) -> dict[str, Any]:
        """Hand a batch's outputs to the sinks, unless it was delivered before; return what it had to wait for."""
        waits: dict[str, Any] = {}
        if not self.sinks or self.ledger.was_delivered(commit.batch):
            return waits
        reach("delivery-started", commit.batch)
        for name, sinks in self.sinks.items():
            files = commit.outputs.get(name, [])
            # as they were written: the application may have changed since
            schema = read_table(self.storage, files[0]).schema if files else topology.sink_schema(name)
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
            if again:  # who was thought dead must not disturb whoever delivers now
                self.ledger.fence.check()
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
                    sizes=[f.bytes for f in files],
                    frame=partial(self._runner.frame, files, schema),
                )
            )

        return deliver

    def _persist(self, name: str, act: Callable[[bool], None]) -> dict[str, Any] | None:
        return self._retry.persist(f"the sink of {name!r}", act)

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
