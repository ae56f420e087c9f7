"""Queries on ``local-cluster`` whose processes are killed for real: Python workers, executors, drivers.

Servers come or go in every one of them, and kills come more often while a batch changes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from weir.spark.session import SERVICE
from weir_evaluation.bench.chaos.compare import Truth, compare, compare_deliveries
from weir_evaluation.bench.chaos.draw import Drawn, draw, rows

APP = "weir_evaluation.bench.chaos.cluster_app"
DAEMON = SERVICE["spark.python.daemon.module"]  # forks the workers, which have its command line
SCALED = "scaled-"  # what files beside deliveries begin with that say in which batch servers came or went
BATCHES = 12
ROWS = 400
KINDS = ("worker", "executor", "driver")
PER_RUN = 8  # kills
PATIENCE = 900.0  # seconds without a commit after which a query counts as stuck


def run(seed: int, kills: int, end: float, console: Console) -> dict[str, Any]:
    """Run queries until so many of their processes were killed."""
    killed: Counter[str] = Counter()
    recovery: list[float] = []
    out: dict[str, Any] = {"runs": 0, "scalings": 0, "lost": 0, "doubled": 0, "failures": []}
    while sum(killed.values()) < kills and time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="weir-chaos-", ignore_cleanup_errors=True) as folder:
            attack = Attack(seed, Path(folder), min(PER_RUN, kills - sum(killed.values())))
            try:
                states = attack.play()
            except RuntimeError as error:
                out["failures"].append(
                    {"seed": seed, "what": str(error), "application": attack.drawn.describe()}
                )
                states = None
            killed += attack.killed
            recovery += attack.recovery
            out["runs"] += 1
            out["scalings"] += attack.scalings
            if states is not None:
                lost, doubled, wrong = attack.judge(states)
                if not attack.scalings:
                    wrong.append("no servers came or went")
                out["lost"] += lost
                out["doubled"] += doubled
                if wrong:
                    about = attack.drawn.describe()
                    out["failures"].append({"seed": seed, "what": "; ".join(wrong[:5]), "application": about})
        console.print(f"local-cluster: {dict(killed)}, seed {seed}", style="dim", highlight=False)
        seed += 1
    took = {f"p{p}": round(float(np.percentile(recovery, p)), 2) for p in (50, 99)} if recovery else None
    return {"kills": sum(killed.values()), "killed": dict(killed), **out, "recovery_s": took}


class Attack:
    """One query, and the kills that a seed has for it."""

    def __init__(self, seed: int, folder: Path, kills: int) -> None:
        self.seed, self.folder = seed, folder
        self.rng = random.Random(seed)
        self.drawn: Drawn = draw(random.Random(seed))
        self.truth = Truth(self.drawn)
        self.killed: Counter[str] = Counter()
        self.recovery: list[float] = []
        self._left = kills
        self._sessions: list[int] = []
        (folder / "deliveries").mkdir()
        (folder / "data").mkdir()
        for batch in range(BATCHES):
            table = rows(seed, batch, ROWS)
            self.truth.feed(table)
            path = folder / "data" / f"{batch:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + batch,) * 2)  # Spark reads files in order of age

    @property
    def scalings(self) -> int:
        """How many batches have changed the servers."""
        return len(list((self.folder / "deliveries").glob(f"{SCALED}*")))

    def play(self) -> dict[str, list[Any]]:
        """Start the query as often as it takes; return the states it prints in the end."""
        try:
            while True:
                output = self._run_once()
                if output is not None:
                    return dict(json.loads(output))
        finally:
            for session in self._sessions:
                for pid in _processes(session):
                    _kill(pid)

    def _run_once(self) -> str | None:
        """Run the query until it ends, or its driver is killed."""
        arguments = [str(self.seed), *(str(self.folder / f) for f in ("data", "checkpoint", "deliveries"))]
        with open(self.folder / "log", "ab") as log:
            program = subprocess.Popen(
                [sys.executable, "-m", APP, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._sessions.append(program.pid)
        hurt: float | None = None
        try:
            seen, changed = self._happened(), time.monotonic()
            due = self._moment()
            while program.poll() is None:
                time.sleep(0.02)
                now = self._happened()
                if now != seen:
                    if now[1] != seen[1] and hurt is not None:
                        self.recovery.append(time.monotonic() - hurt)
                        hurt = None
                    seen, changed = now, time.monotonic()
                    due = self._moment()
                if time.monotonic() - changed > PATIENCE:
                    raise RuntimeError(f"no commit for {PATIENCE:.0f} s; {self._log()}")
                if self._left and seen[0] and time.monotonic() - changed > due:
                    kind = self.rng.choice(KINDS)
                    if not self._strike(kind, program):
                        continue
                    hurt, due = hurt or time.monotonic(), float("inf")
                    if kind == "driver":
                        program.wait()
                        return None
            output, _ = program.communicate()
            if program.returncode:
                raise RuntimeError(f"the query failed: {self._log()}")
            return output.splitlines()[-1]
        finally:
            if program.stdout is not None:
                program.stdout.close()

    def _moment(self) -> float:
        """Return how long after a plan or a commit the next kill comes, in seconds; mostly none for a while."""
        often = 0.35
        plans = sorted((self.folder / "checkpoint" / "plans").glob("[0-9]*-[0-9]*"))
        with contextlib.suppress(OSError, ValueError):  # it is being written, or has just been deleted
            if plans and json.loads(plans[-1].read_text().split("\n", 1)[1]).get("origin") is not None:
                often = 0.7
        return self.rng.uniform(0, 1.5) if self.rng.random() < often else float("inf")

    def _happened(self) -> tuple[int, int]:
        """Return how many plans and commits there are."""
        counts = []
        for name in ("plans", "commits"):
            folder = self.folder / "checkpoint" / name
            counts.append(sum(n.isdigit() for n in map(_batch, os.listdir(folder))) if folder.exists() else 0)
        return counts[0], counts[1]

    def _strike(self, kind: str, program: subprocess.Popen[str]) -> bool:
        """Kill a process of a kind, if there is one."""
        processes = _processes(program.pid)
        executors = [p for p, c in processes.items() if "CoarseGrainedExecutorBackend" in c]
        python = {p for p, c in processes.items() if DAEMON in c and "java" not in c.split("\0")[0]}
        workers = [p for p in python if _parent(p) in python]
        if kind == "driver":
            # executors live on for a while, as they do where they have hosts of their own
            keep = {*executors, *python}
            victims = [p for p in processes if p not in keep]
        else:
            chosen = sorted(executors if kind == "executor" else workers)
            victims = [self.rng.choice(chosen)] if chosen else []
        for pid in victims:
            _kill(pid)
        if victims:
            self.killed[kind] += 1
            self._left -= 1
        return bool(victims)

    def _log(self) -> str:
        """Return the end of what the query said, without Java's stack traces."""
        said = (self.folder / "log").read_text(errors="replace").splitlines()
        return "\n".join(line for line in said if not line.startswith("\tat "))[-3000:]

    def judge(self, states: dict[str, list[Any]]) -> tuple[int, int, list[str]]:
        """Compare states and deliveries with the truth: rows lost, rows doubled, whatever differs."""
        lost = doubled = 0
        wrong: list[str] = []
        for number, part in self.drawn.keyed:
            found = compare(self.truth, number, states.get(part.name, []))
            lost, doubled, wrong = lost + found.lost, doubled + found.doubled, wrong + found.wrong
        for number in self.drawn.leaves:
            name = self.drawn.parts[number].name
            files = (self.folder / "deliveries").glob(f"{name}-*.json")
            deliveries = [(int(f.name.split("-")[1]), json.loads(f.read_text())) for f in files]
            wrong += compare_deliveries(self.truth, number, deliveries, ended=False)
        return lost, doubled, wrong


def _batch(name: str) -> str:
    return name.replace("-", "")


def _processes(session: int) -> dict[int, str]:
    """Return the processes of a session with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit() and _stat(int(name))[3] == str(session):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
    return found


def _stat(pid: int) -> list[str]:
    """Return state, parent, group, session … of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return -1


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
