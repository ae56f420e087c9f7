"""What a query is doing, and how it ends: noted in the checkpoint, and told to those who listen."""

from __future__ import annotations

import threading
from collections import deque

from weir.engine.batch.events import Failed, Listeners, Terminated
from weir.engine.batch.ledger import Ledger
from weir.engine.metrics.progress import Progress

RECENT = 100  # batches whose progress is kept at hand


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
