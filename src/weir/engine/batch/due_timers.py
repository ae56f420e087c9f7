"""When time is up for something in the saved state: what a quiet stream waits for."""

from __future__ import annotations

from weir.engine.batch.ledger import Ledger
from weir.engine.batch.source_batching import SourceBatching
from weir.engine.documents import Commit
from weir.engine.task.event_times import watermarks
from weir.errors import SourceUnavailable
from weir.graph.model import Node
from weir.operators.instance import NO_TIME
from weir.state.columns import NEVER
from weir.state.storage import Storage
from weir.state.view import next_deadline


class DueTimers:
    """The next deadlines in the state of a commit, by event time and by the clock; looked up once per commit."""

    def __init__(self, storage: Storage, source_batching: SourceBatching | None = None) -> None:
        self._storage, self._source_batching = storage, source_batching
        self._commit: Commit | None = None
        self._next: dict[str, tuple[int, int]] = {}

    def due(self, ledger: Ledger, quiet_until: int) -> bool:
        """Return whether a batch without rows would find anything due now."""
        last, clock = ledger.last, ledger.read_clock()
        if last is None:
            return False
        if last is not self._commit:
            self._next = {n.name: self._deadlines(n, last) for n in ledger.topology.stateful if n.wakes}
            self._commit = last
        marks = watermarks(ledger.topology, last, clock, quiet_until)
        reached = ((marks.get(name, NO_TIME), next_) for name, next_ in self._next.items())
        return any(event <= mark or timer <= clock for mark, (event, timer) in reached)

    def quiet_until(self, ledger: Ledger, asked: int) -> int | None:
        """Return until when sources had no rows, if a batch without rows would find anything due now; None if not.

        Spark has asked its own sources by then, but does not hear of brokers that are away. What is cut up here is
        asked again: until it answers that there is nothing, event time stays where the last commit has left it.
        """
        if not self.due(ledger, asked):
            return None
        assert ledger.last is not None
        if self._are_quiet(ledger.last):
            return asked
        return ledger.last.clock if self.due(ledger, ledger.last.clock) else None

    def _are_quiet(self, last: Commit) -> bool:
        try:
            if self._source_batching is not None:
                self._source_batching.begin(last, -1, {})
        except SourceUnavailable:
            return False
        return self._source_batching is None or not self._source_batching.behind

    def _deadlines(self, node: Node, last: Commit) -> tuple[int, int]:
        refs = [ref for server in last.manifest.get(node.name, []) for ref in server]
        mark = last.watermarks.get(node.name, NO_TIME)
        event = next_deadline(self._storage, refs, mark) if node.declared.timed else NEVER
        timer = next_deadline(self._storage, refs, last.clock) if node.sets_timers else NEVER
        return event, timer
