"""Machines with a bounded number of cores, emulated: instances wait for a core of their machine before they compute.

An instance needs a core for a part of its time (``cpu`` in the case); for the rest it waits for others, which hinders
nobody. Who computes holds one of the machine's cores, a file that is locked, for a slice of time. So a machine that
is asked for more than it has makes its instances wait, whichever processes they run in. While it holds a core an
instance sleeps, or burns real CPU time (``work="cpu"``): then an emulated core is a fixed share of a real one, as a
quota of a control group would make it, and the machines have to share what the host really has.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORK = ("sleep", "cpu")
SLICE = 0.02  # seconds that an instance holds a core at most before others get their turn


@dataclass(frozen=True)
class Machines:
    """Cores of machines, shared by all processes of a host that see ``folder``.

    Parameters
    ----------
    folder
        Holds the locks, and which server is on which machine.
    cores
        Cores of each machine.
    work
        ``"sleep"`` or ``"cpu"``.
    share
        How much of a real core an emulated one is, for ``work="cpu"``.

    Examples
    --------
    >>> import tempfile
    >>> machines = Machines(tempfile.mkdtemp(), cores=1)
    >>> machines.set_homes(0, [0, 0, 1])
    >>> machines.set_homes(5, [0, 2, 1])  # from batch 5 on the second server is on machine 2
    >>> machines.of(batch=4, server=1), machines.of(batch=5, server=1)
    (0, 2)
    """

    folder: str
    cores: int = 1
    work: str = "sleep"
    share: float = 1.0

    def set_homes(self, batch: int, machines: Sequence[int]) -> None:
        """Write down the machine of every server from a batch on."""
        path = Path(self.folder) / f"homes-{batch:06d}.json"
        path.with_suffix(".tmp").write_text(json.dumps(list(machines)))
        path.with_suffix(".tmp").rename(path)

    def of(self, batch: int, server: int) -> int:
        """Return the machine of a server in a batch."""
        names = sorted(p.name for p in Path(self.folder).glob("homes-*.json"))
        last = max(name for name in names if int(name[6:12]) <= batch)
        return int(json.loads((Path(self.folder) / last).read_text())[server])

    def occupy(self, machine: int, seconds: float, cpu: float) -> None:
        """Work for so many seconds, of which a part ``cpu`` needs a core; longer if cores are taken."""
        ahead = 0.0  # seconds that sleeping took too long, which later slices make up for
        while seconds > 1e-9:
            slice_ = min(SLICE, seconds)
            seconds -= slice_
            began = time.perf_counter()
            _sleep(slice_ * (1 - cpu) - ahead)
            rested = time.perf_counter() - began
            core = self._take(machine)
            try:
                began = time.perf_counter()
                if self.work == "cpu":
                    burn(slice_ * cpu * self.share)
                computed = time.perf_counter() - began
                _sleep(slice_ * cpu - computed - max(0.0, ahead + rested - slice_ * (1 - cpu)))
                held = time.perf_counter() - began
            finally:
                os.close(core)  # which unlocks it
            ahead = max(0.0, ahead + rested + held - slice_)

    def _take(self, machine: int) -> int:
        """Wait for a core of a machine and lock it; return what to close to leave it."""
        numbers = random.sample(range(self.cores), self.cores)
        for last, number in enumerate(numbers, 1 - self.cores):
            handle = os.open(f"{self.folder}/{machine}-{number}.core", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if last == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except BlockingIOError:
                os.close(handle)
        raise AssertionError("a machine has at least one core")


def burn(seconds: float) -> None:
    """Use up so many seconds of CPU time of this thread, however long that takes.

    >>> began = time.thread_time()
    >>> burn(0.005)
    >>> time.thread_time() - began >= 0.005
    True
    """
    until = time.thread_time() + seconds
    numbers = np.arange(512, dtype=np.float64)
    while time.thread_time() < until:
        np.sqrt(numbers, out=numbers)


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
