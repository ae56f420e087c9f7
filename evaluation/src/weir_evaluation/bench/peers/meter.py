"""Runs a command and accounts for all processes that come of it: CPU seconds over time, and peak memory.

``python meter.py OUT SECONDS CORES COMMAND …`` starts the command on so many cores, watches it, and writes JSON
to ``OUT``: ``exit`` (``null`` when the time was up), ``samples`` (``[monotonic time, CPU seconds so far]``) and
``peak_mb``. A program of its own, with nothing but the standard library, for three reasons: the watched processes
are exactly its descendants; it may make itself the foster parent of orphans (a *subreaper*), so that daemons stay
in the tree; and it can end them all when the command has ended, or when whoever asked has died.

CPU is what Linux has booked for the living descendants, plus what it has booked for dead ones with the parents
that waited for them. Memory is the sum of proportional set sizes: pages that processes share count once. Linux
only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
INTERVAL = 0.1  # seconds between two looks at the CPU
DISCOVERY = 0.5  # seconds between two looks for new processes; short-lived ones are booked with their parents
MEMORY_SHARE = 0.02  # of the time may go into asking for memory: the kernel has to walk page tables for it
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def descendants(root: int) -> list[int]:
    """All processes below ``root``, parents before their children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        queue = [child for parent in queue for child in children.get(parent, [])]
        found += queue
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes and of the dead ones that they have waited for.

    Parents must come first: a child that dies in between is then missed for a moment, but never counted twice.
    """
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(x) for x in fields[11:15])
    return ticks / TICK


def memory_mb(pids: list[int]) -> float:
    """The sum of proportional set sizes; of resident sets where the kernel does not tell."""
    total = 0.0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
                    break
        except PermissionError:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * resource.getpagesize() / 2**20
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the name, from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _reap(main: int) -> int | None:
    """Buries the dead, foster children too; the exit code of the main one if it was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main:
            code = os.waitstatus_to_exitcode(status)


def watch(command: list[str], seconds: float) -> dict[str, Any]:
    """Runs a command to its end or for so many seconds, and ends whatever it leaves behind."""
    main = subprocess.Popen(command).pid
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    pids: list[int] = []
    peak, memory_due, discovery_due, code, most = 0.0, began, began, None, 0.0
    try:
        while code is None and time.monotonic() < began + seconds:
            time.sleep(INTERVAL)
            code = _reap(main)
            if (now := time.monotonic()) >= discovery_due:
                pids, discovery_due = descendants(os.getpid()), now + DISCOVERY
            booked = resource.getrusage(resource.RUSAGE_CHILDREN)
            most = max(most, booked.ru_utime + booked.ru_stime + cpu_seconds(pids))
            samples.append((time.monotonic(), most))
            if (now := time.monotonic()) >= memory_due:
                peak = max(peak, memory_mb(pids))
                cost = time.monotonic() - now
                memory_due = now + max(INTERVAL, cost / MEMORY_SHARE)
    finally:
        _end_all()
    return {"exit": code, "samples": samples, "peak_mb": peak}


def _end_all() -> None:
    """Ends all descendants; those that hear the first signal may tidy up."""
    for sig, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                continue
        until = time.monotonic() + patience
        while descendants(os.getpid()) and time.monotonic() < until:
            _reap(-1)
            time.sleep(0.02)


def main() -> None:
    out, seconds, cores, *command = sys.argv[1:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    result = watch(command, float(seconds))
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
