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
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

WORK = ("sleep", "cpu")
SLICE = 0.02  # seconds that an instance holds a core at most before others get their turn
MOST_OWED = 0.1  # seconds that an instance makes up for at most


class _Late(threading.local):
    """Seconds that the work of this thread took too long, which later slices make up for, those of later rows too.

    ``resting`` is made up for by resting less, ``computing`` by computing less. To wait for a core counts as rest: what
    an instance waits for besides goes on meanwhile. So a machine with cores to spare slows nobody down, and one without
    gives its instances what it has, as in the simulator.
    """

    resting = computing = 0.0


_late = _Late()


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
        """Return the machine of a server in a batch, whose homes have been written down before it began."""
        return _homes(self.folder, batch)[server]

    def occupy(self, machine: int, seconds: float, cpu: float) -> None:
        """Work for so many seconds, of which a part ``cpu`` needs a core; longer if cores are taken."""
        while seconds > 1e-9:
            slice_ = min(SLICE, seconds)
            seconds -= slice_
            rest, core = slice_ * (1 - cpu), slice_ * cpu
            began = time.perf_counter()
            _sleep(rest - _late.resting)
            lock = self._take(machine)
            taken = time.perf_counter()
            _late.resting = _owed(_late.resting + taken - began - rest)
            try:
                if self.work == "cpu":
                    burn(core * self.share)
                _sleep(core - (time.perf_counter() - taken) - _late.computing)
                _late.computing = _owed(_late.computing + time.perf_counter() - taken - core)
            finally:
                os.close(lock)  # which unlocks it

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


@lru_cache(maxsize=4)
def _homes(folder: str, batch: int) -> tuple[int, ...]:
    """Return the machine of each server in a batch: read once, since operators ask with every handful of rows."""
    names = (p.name for p in Path(folder).glob("homes-*.json"))
    last = max(name for name in names if int(name[6:12]) <= batch)
    return tuple(int(machine) for machine in json.loads((Path(folder) / last).read_text()))


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


def _owed(seconds: float) -> float:
    return min(max(0.0, seconds), MOST_OWED)


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
