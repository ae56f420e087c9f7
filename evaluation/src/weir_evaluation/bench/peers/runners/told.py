"""How a measured program is told what to do, and tells what it did: files in a folder, nothing else.

Imported by scripts that run in foreign environments, so the standard library must do. Times are of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

EVERY = 1_000  # rows between two notes: fine enough to find a moment, too rare to cost anything


def job() -> dict[str, Any]:
    """The order: ``files``, ``rows``, ``workers``, ``work`` (a folder of our own) and the peer's ``options``."""
    return dict(json.loads(Path(sys.argv[1]).read_text()))


def _own_file(work: str, kind: str, owner: object) -> int:
    """A file for one instance alone; written without a buffer, since workers may be killed when all is done."""
    path = os.path.join(work, f"{kind}-{os.getpid()}-{id(owner)}.txt")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Passed:
    """Notes when how many rows were through the last operator, for one instance of it."""

    def __init__(self, work: str) -> None:
        self._file = _own_file(work, "passed", self)
        self._rows = 0

    def add(self, rows: int, at: float | None = None) -> None:
        """So many more rows are through."""
        self._rows += rows
        if self._rows >= EVERY:
            self.note(at)

    def note(self, at: float | None = None) -> None:
        """Writes down what was added since the last time."""
        if self._rows:
            os.write(self._file, f"{time.monotonic() if at is None else at:.6f} {self._rows}\n".encode())
            self._rows = 0


def committed(work: str, batches: list[tuple[float, int]]) -> None:
    """The same for micro-batches: when each was committed, by the wall clock, and how many rows it had."""
    passed = Passed(work)
    offset = time.monotonic() - time.time()
    for at, rows in batches:
        if rows:
            passed.add(rows, at=at + offset)
            passed.note(at=at + offset)


def micro_batches(work: str, progress: list[Any]) -> None:
    """The same for a Spark query: a micro-batch's rows are through when Spark has committed it."""
    from datetime import datetime

    def ended(batch: Any) -> float:
        began = datetime.fromisoformat(batch["timestamp"]).timestamp()
        return float(began + batch["durationMs"]["triggerExecution"] / 1000)

    committed(work, [(ended(batch), batch["numInputRows"]) for batch in progress])


class Counts:
    """The final counts of an operator, or of one instance of it."""

    def __init__(self, work: str, operator: str) -> None:
        self._file = _own_file(work, f"counts-{operator}", self)

    def add(self, key: str, count: int) -> None:
        """A key's count when all rows are through."""
        os.write(self._file, f"{key} {count}\n".encode())


def detail(work: str, **fields: Any) -> None:
    """Anything else worth knowing, such as bytes exchanged."""
    Path(work, "detail.json").write_text(json.dumps(fields))


def shuffled_bytes(spark: Any) -> int:
    """What all tasks of a Spark application have written for exchanges, in bytes as written (compressed)."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(i).totalShuffleWrite()) for i in range(executors.size()))
