"""One driver per checkpoint: whoever claimed it last drives, and every driver before it is refused."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable

from weir.engine.checkpoint import DRIVERS, ENDED, PREPARING, CheckpointLayout
from weir.engine.documents import Claim
from weir.engine.task.batch_context import host_name
from weir.errors import CheckpointError
from weir.state.storage import Storage

VISIBLE_WITHIN = 2.0  # seconds within which a file system that is shared shows a new file everywhere
_seen: set[tuple[str, str]] = set()  # location and nonce of claims that this process has seen


class Fence:
    """A driver's claim to a checkpoint: a numbered document that only one driver can create.

    A driver that was thought dead and wakes up again finds a higher number, and stops before it changes anything that
    others see: plans, commits, deliveries, clean-ups.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._checkpoint = storage, CheckpointLayout(storage)
        self.turn = self._claim()

    def _claim(self) -> int:
        self._nonce = uuid.uuid4().hex
        claim = {
            "nonce": self._nonce,
            "host": host_name(),
            "process": os.getpid(),
            "began": began(os.getpid()),
            "time": int(time.time()),
        }
        while True:
            turn = max(self._checkpoint.turns(), default=0) + 1
            try:
                self._storage.write_document(self._checkpoint.driver(turn), "driver", claim)
            except CheckpointError:
                if turn not in self._checkpoint.turns():
                    raise
                continue  # another one was faster
            return turn

    @property
    def claim(self) -> Claim:
        """What others need to find this driver's claim."""
        return Claim(self.turn, self._nonce)

    def check(self) -> None:
        """Raise a CheckpointError unless this is still the driver of the checkpoint."""
        latest = max(self._checkpoint.turns(), default=0)
        if latest > self.turn:
            other = self._storage.read_document(self._checkpoint.driver(latest), "driver")
            raise CheckpointError(
                f"{self._storage.root}: another driver has taken over this checkpoint (process {other['process']} on "
                f"{other['host']}). This one stops; nothing that it has not committed counts. Stop one of the two."
            )

    def end(self, batch: int, error: str | None, finished: bool = False) -> None:
        """Note that this driver has ended, after which batch, and why: for those who look at the checkpoint.

        ``finished`` says that its sources had no more to give, and that nobody stopped it.
        """
        body = {"batch": batch, "error": error, "finished": finished, "time": int(time.time())}
        with contextlib.suppress(CheckpointError):  # noted already, or the storage is what has failed
            self._storage.write_document(self._checkpoint.driver(self.turn, ENDED), "end", body)

    def preparing(self, what: str) -> Callable[[], None]:
        """Note what keeps this driver from its first batch, for those who look; return how to take it back."""
        name = self._checkpoint.driver(self.turn, PREPARING)
        with contextlib.suppress(CheckpointError):
            self._storage.write_document(name, "preparing", {"what": what})
        return lambda: self._storage.delete(name)

    def forget_older(self) -> None:
        """Delete the claims of drivers before this one."""
        names = self._checkpoint.documents(DRIVERS)
        self._storage.delete(*(name for name in names if name < self._checkpoint.driver(self.turn)))


def began(process: int) -> str:
    """Return when a process of this machine began, in ticks of its clock; empty if there is none, or no telling.

    Numbers of processes are used again; together with this they are not.
    """
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # dead ones stay until their parents have heard of it


def check_shared(storage: Storage, claim: Claim) -> None:
    """Raise a CheckpointError unless this process sees the checkpoint that the driver has claimed.

    A path that is on each host's own disk works until a server moves to another host; then its state is gone. So every
    process looks for the driver's claim before its first task, once.
    """
    proof = storage.location, claim.nonce
    if proof in _seen:
        return
    checkpoint = CheckpointLayout(storage)
    name = checkpoint.driver(claim.turn)
    end = time.monotonic() + VISIBLE_WITHIN
    while not storage.exists(name):
        if time.monotonic() > end:
            if max(checkpoint.turns(), default=0) > claim.turn:
                raise CheckpointError(f"{storage.location}: another driver has taken over this checkpoint.")
            raise _unshared(storage, f"{name}, which the driver has written, is not there")
        time.sleep(0.05)
    if storage.read_document(name, "driver").get("nonce") != claim.nonce:
        raise _unshared(storage, f"{name} is not the one that the driver has written")
    _seen.add(proof)


def _unshared(storage: Storage, why: str) -> CheckpointError:
    return CheckpointError(
        f"{storage.location}: on host {host_name()} this is another place than on the driver's: {why}. State would be "
        "lost when a server changes its host, so nothing was done. Use a location that the driver and all executors "
        "share under one name: an object store (s3://bucket/folder), HDFS, or a mounted network file system."
    )
