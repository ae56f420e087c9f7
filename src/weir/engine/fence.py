"""One driver per checkpoint: whoever claimed it last drives, and every driver before it is refused."""

from __future__ import annotations

import os
import time

from weir.engine.job import host_name
from weir.errors import CheckpointError
from weir.state.storage import Storage

DRIVERS = "drivers"


class Fence:
    """A driver's claim to a checkpoint: a numbered document that only one driver can create.

    A driver that was thought dead and wakes up again finds a higher number, and stops before it changes anything that
    others see: plans, commits, deliveries, clean-ups.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.turn = self._claim()

    def _claim(self) -> int:
        claim = {"host": host_name(), "process": os.getpid(), "time": int(time.time())}
        while True:
            turn = max(self._turns(), default=0) + 1
            try:
                self._storage.write_document(f"{DRIVERS}/{turn:08d}", "driver", claim)
            except CheckpointError:
                if turn not in self._turns():
                    raise
                continue  # another one was faster
            return turn

    def _turns(self) -> list[int]:
        return [int(name) for name in self._storage.names(DRIVERS) if name.isdigit()]

    def check(self) -> None:
        """Raise a CheckpointError unless this is still the driver of the checkpoint."""
        latest = max(self._turns(), default=0)
        if latest > self.turn:
            other = self._storage.read_document(f"{DRIVERS}/{latest:08d}", "driver")
            raise CheckpointError(
                f"{self._storage.root}: another driver has taken over this checkpoint (process {other['process']} on "
                f"{other['host']}). This one stops; nothing that it has not committed counts. Stop one of the two."
            )

    def forget_older(self) -> None:
        """Delete the claims of drivers before this one."""
        for turn in self._turns():
            if turn < self.turn:
                self._storage.delete(f"{DRIVERS}/{turn:08d}")
