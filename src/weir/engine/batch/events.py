"""What a query is doing, how it ends, and what it tells those who listen to it, and the log: typed events.

Events are about this process: one that dies between a commit and its event tells nothing, and goes on with the
next batch when it is started again. What a checkpoint says is complete; see :mod:`weir.watch`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weir.engine.batch.ledger import Ledger
from weir.engine.progress import Progress
from weir.errors import EngineError
from weir.locality.forecast import Reconfiguration

logger = logging.getLogger("weir.engine")
RECENT = 100  # batches whose progress is kept at hand


@dataclass(frozen=True)
class Event:
    """Something that has happened to a query."""

    checkpoint: str


@dataclass(frozen=True)
class BatchCommitted(Event):
    """A batch has happened; its delivery to the sinks comes next."""

    progress: Progress


@dataclass(frozen=True)
class BatchDelivered(Event):
    """The sinks have the rows of a batch: now its ``progress`` knows all its seconds."""

    progress: Progress


@dataclass(frozen=True)
class Reconfigured(Event):
    """Keys have new homes from this batch on. ``decision`` is an entry of ``query.decisions``."""

    batch: int
    moved_keys: int
    decision: Reconfiguration


@dataclass(frozen=True)
class Scaled(Event):
    """The number of servers has changed with this batch."""

    batch: int
    before: int
    after: int
    moved_keys: int


@dataclass(frozen=True)
class RanAgain(Event):
    """A batch had to run twice before it could be committed."""

    batch: int
    why: str


@dataclass(frozen=True)
class Failed(Event):
    """The query has failed."""

    error: Exception


@dataclass(frozen=True)
class Terminated(Event):
    """The query takes no more batches: it was stopped, has come to the end of its input, or has failed."""

    error: Exception | None


Listener = Callable[[Event], Any]
_LEVELS = {
    BatchCommitted: logging.DEBUG,
    BatchDelivered: logging.DEBUG,
    RanAgain: logging.WARNING,
    Failed: logging.ERROR,
}


class Listeners:
    """Those who listen to one query. What one of them raises is logged, and stops neither others nor the stream."""

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._all)

    def add(self, listener: Listener) -> None:
        """Call a function with every event from now on."""
        if not callable(listener):
            raise EngineError(f"a listener is a function of an event, not {listener!r}")
        self._all.append(listener)

    def remove(self, listener: Listener) -> None:
        """Forget a listener."""
        if listener not in self._all:
            raise EngineError(f"{listener!r} is no listener of this query")
        self._all.remove(listener)

    def tell(self, event: Event) -> None:
        """Log an event and call all listeners with it, in the order in which they came."""
        told: dict[str, Any] = {"query": event.checkpoint}
        if isinstance(event, BatchCommitted | BatchDelivered):
            told |= {"batch": event.progress.batch, "rows": event.progress.rows}
        logger.log(_LEVELS.get(type(event), logging.INFO), "%s", _line(event), extra=told)
        for listener in list(self._all):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed on %s", type(event).__name__)

    def tell_of(self, checkpoint: str, progress: Progress) -> None:
        """Tell all that the progress of a committed batch says."""
        batch = progress.batch
        self.tell(BatchCommitted(checkpoint, progress))
        if progress.ran_again:
            self.tell(RanAgain(checkpoint, batch, progress.ran_again))
        for decision in progress.routing.new if progress.routing else []:
            if decision.adopted:
                self.tell(Reconfigured(checkpoint, batch, progress.moved_keys or 0, decision))
        if progress.scaled:
            scaled = progress.scaled
            self.tell(Scaled(checkpoint, batch, scaled["from"], scaled["to"], scaled["moved_keys"]))


def _line(event: Event) -> str:
    """Return an event as one line of a log."""
    match event:
        case BatchCommitted(progress=did):
            return f"{event.checkpoint}: batch {did.batch} committed, {did.rows:,} rows"
        case BatchDelivered(progress=did):
            return f"{event.checkpoint}: batch {did.batch} delivered"
        case Reconfigured():
            return f"{event.checkpoint}: batch {event.batch} moves {event.moved_keys:,} keys to new homes"
        case Scaled():
            return (
                f"{event.checkpoint}: batch {event.batch} goes from {event.before} to {event.after} servers"
            )
        case RanAgain():
            return f"{event.checkpoint}: batch {event.batch} ran again: {event.why}"
        case Failed(error=error):
            return f"{event.checkpoint}: failed: {error}"
        case _:
            return f"{event.checkpoint}: ended"


class Lifecycle:
    """What the loop is doing right now; notes failures and the end of a query."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.message = "starting"
        self.error: Exception | None = None
        self.recent: deque[Progress] = deque(maxlen=RECENT)
        self.listeners = Listeners()
        self.stopping = False  # a batch that is under way then is given up, which is no failure
        self.finished = False  # whether all input has been processed
        self._ended = False
        self._lock = threading.RLock()  # a listener may stop the query

    def fail(self, error: Exception) -> None:
        """Note that a batch has failed, and why; a later one may succeed."""
        if self.stopping:
            return
        self.error = error
        self._note(error)
        self.listeners.tell(Failed(self._ledger.storage.location, error))

    def end(self) -> None:
        """Note that no more batches will come, once; whoever calls it returns when listeners have heard of it."""
        with self._lock:
            if not self._ended:
                self._ended = True
                if self.error is None:
                    self._note(None)
                self.listeners.tell(Terminated(self._ledger.storage.location, self.error))

    def _note(self, error: Exception | None) -> None:
        last = self._ledger.last
        finished = error is None and self.finished
        self._ledger.fence.end(
            -1 if last is None else last.batch, None if error is None else str(error), finished
        )
