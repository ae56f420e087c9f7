"""One measured run: an order for the peer's program, a meter around it, and what its notes say.

The clock is the same for all. A program notes when how many rows were through its last operator. The first part
of the rows is the warm-up; the clock runs from the moment at which that many rows are through, whichever they
are, to the moment at which all are. CPU is taken between the same two moments. Memory is the peak of the whole
run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from weir_evaluation.bench.peers.environment import Unavailable
from weir_evaluation.bench.peers.systems import RUNNERS, System

METER = Path(__file__).parent / "meter.py"


@dataclass(frozen=True)
class Data:
    """Generated files, and the counts that any system must find in them."""

    folder: Path
    files: list[Path]
    rows: int
    warm_up: int
    keys: int
    payload: int
    files_per_batch: int

    def expected(self) -> dict[str, dict[str, int]]:
        """Rows per key, of each of the two operators."""
        rows = pq.read_table(self.files, columns=["k1", "k2"])
        counts = {}
        for operator, column in (("A", "k1"), ("B", "k2")):
            grouped = rows.group_by(column).aggregate([([], "count_all")])
            counts[operator] = dict(
                zip(grouped[column].to_pylist(), grouped["count_all"].to_pylist(), strict=True)
            )
        return counts


def measured(
    system: System, python: Path, data: Data, work: Path, *, cores: int, seconds: float
) -> dict[str, Any]:
    """Runs a system over the data and returns its figures; raises :class:`Unavailable` when it failed or was wrong."""
    work.mkdir(parents=True)
    order = {
        "files": [str(file) for file in data.files],
        "data": str(data.folder),
        "files_per_batch": data.files_per_batch,
        "rows": data.rows,
        "keys": data.keys,
        "workers": cores,
        "work": str(work),
        "options": {**system.options(data.payload), "java": system.java},
    }
    (work / "order.json").write_text(json.dumps(order))
    told, log = work / "meter.json", work / "output.log"
    paths = [str(RUNNERS)] if system.requirements else [str(RUNNERS), *(p for p in sys.path if p)]
    environment = {**os.environ, **system.environment, "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("WEIR_MASTER", "SPARK_HOME", "FLINK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)  # a peer's environment is its own
    command = [str(python), str(system.runner), str(work / "order.json")]
    with open(log, "wb") as output:
        meter = subprocess.Popen(
            [sys.executable, str(METER), str(told), str(seconds), str(cores), *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=work,
            start_new_session=True,
        )
        try:
            meter.wait()
        finally:
            if meter.poll() is None:
                meter.send_signal(signal.SIGTERM)  # it ends what it has started, then itself
                meter.wait()
    if not told.exists():
        raise Unavailable(f"the meter failed: {_words(log)}")
    seen = json.loads(told.read_text())
    if seen["exit"] is None:
        raise Unavailable(f"not done within {seconds:.0f} s")
    if seen["exit"] != 0:
        raise Unavailable(f"ended with exit code {seen['exit']}: {_words(log)}")
    compare(counts(work), data.expected())
    detail = work / "detail.json"
    return {
        **figures(notes(work), seen["samples"], data.warm_up, data.rows),
        "peak_mb": round(seen["peak_mb"], 1),
        "exchanged_bytes": None,
        **(json.loads(detail.read_text()) if detail.exists() else {}),
    }


def notes(work: Path) -> list[tuple[float, int]]:
    """What all instances of the last operator have noted: (when, rows since the note before), by time."""
    found = []
    for path in work.glob("passed-*.txt"):
        for line in path.read_text().splitlines():
            when, rows = line.split()
            found.append((float(when), int(rows)))
    return sorted(found)


def figures(
    passed: list[tuple[float, int]], samples: list[tuple[float, float]], warm_up: int, rows: int
) -> dict[str, float]:
    """Rows per second and CPU seconds per million rows, between the end of the warm-up and the end.

    >>> figures([(10.0, 100), (11.0, 100), (12.0, 300)], [(9.0, 5.0), (10.0, 6.0), (12.0, 10.0)], 100, 500)
    {'seconds': 2.0, 'rows_per_s': 200.0, 'cpu_s_per_million': 10000.0}
    """
    through = np.cumsum([n for _, n in passed]) if passed else np.zeros(1, int)
    if through[-1] != rows:
        raise Unavailable(f"{through[-1]:,} rows came through the last operator, not {rows:,}")
    first = int(np.searchsorted(through, warm_up))
    began, ended = passed[first][0], passed[-1][0]
    counted = rows - int(through[first])
    if counted <= 0 or ended <= began:
        raise Unavailable("too few rows to measure: all came through together")
    cpu = np.interp([began, ended], [t for t, _ in samples], [c for _, c in samples])
    return {
        "seconds": round(ended - began, 3),
        "rows_per_s": round(counted / (ended - began), 1),
        "cpu_s_per_million": round(float(cpu[1] - cpu[0]) / counted * 1e6, 3),
    }


def counts(work: Path) -> dict[str, dict[str, int]]:
    """The final counts that a program has written, of all its instances together."""
    found: dict[str, dict[str, int]] = {"A": {}, "B": {}}
    for path in work.glob("counts-*.txt"):
        operator = found[path.name.split("-")[1]]
        for line in path.read_text().splitlines():
            key, count = line.split()
            operator[key] = operator.get(key, 0) + int(count)
    return found


def compare(got: dict[str, dict[str, int]], expected: dict[str, dict[str, int]]) -> None:
    """Raises when a count differs: a fast wrong answer is no result."""
    for operator, counted in expected.items():
        if got[operator] != counted:
            keys = sorted(
                k for k in counted.keys() | got[operator].keys() if counted.get(k) != got[operator].get(k)
            )
            key = keys[0]
            raise Unavailable(
                f"wrong result: {len(keys):,} of {len(counted):,} counts of {operator} differ, "
                f"e.g. {key!r} is {got[operator].get(key)} and should be {counted.get(key)}"
            )


def _words(log: Path) -> str:
    """The last lines of a program's output that say something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return " | ".join((telling or lines or ["no output"])[-2:])[:500]


def tidy(work: Path) -> None:
    """Deletes what a run has left."""
    shutil.rmtree(work, ignore_errors=True)
