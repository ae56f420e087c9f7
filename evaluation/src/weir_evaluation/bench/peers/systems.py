"""The systems that are compared: what each needs, how it is run, and what it promises."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import weir
from weir_evaluation.bench.peers.environment import Unavailable, compiled, prepared

RUNNERS = Path(__file__).parent / "runners"
EXACTLY_ONCE = "exactly once"


@dataclass(frozen=True)
class System:
    """One contestant.

    ``requirements`` make its environment; without any it runs in ours. ``java`` names its jars and our program for
    it, whose version ``jars/peers/`` says. ``most_rows`` (per micro-batch) and
    ``most_batches`` (to warm up, and as many to count) are for peers that would take minutes otherwise.
    ``options`` go to its program with the payload put in.
    """

    name: str
    version: str
    runner: Path
    guarantee: str
    note: str = ""
    requirements: tuple[str, ...] = ()
    java: str | None = None
    most_rows: int | None = None
    most_batches: int | None = None
    needs_java: bool = True
    options: Callable[[int], dict[str, Any]] = field(default=lambda payload: {})
    environment: dict[str, str] = field(default_factory=dict)

    def python(self, console: Console) -> Path:
        """The Python to run it with, set up first where need be; raises :class:`Unavailable` with the reason."""
        if self.needs_java and not _java():
            raise Unavailable("there is no Java: install one (17 serves all) or set JAVA_HOME")
        if self.java:
            compiled(self.java, console)
        if not self.requirements:
            return Path(sys.executable)
        return prepared(f"{self.name}-{self.version}", self.requirements, console)


def _java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool((home and Path(home, "bin", "java").exists()) or shutil.which("java"))


def _pyspark() -> str:
    return importlib.metadata.version("pyspark")


def rows_per_read(payload: int) -> int:
    """Rows that are read at a time, and written as one row group: some 10 MB, at most 20,000 rows.

    >>> [rows_per_read(payload) for payload in (0, 1_000, 8_000)]
    [20000, 10000, 1250]
    """
    return min(20_000, 10_000_000 // max(payload, 1))


def all_systems() -> dict[str, System]:
    """All of them, by name, ours first."""
    ours = (weir.__version__, RUNNERS / "weir_app.py", EXACTLY_ONCE)
    spark, flink, bytewax = _pyspark(), "2.3.0", "0.21.1"
    jvm = RUNNERS / "jvm.py"
    listed = [
        System(
            "weir-table",
            *ours,
            "keys placed by a locality table",
            options=lambda p: {"table": True, "files": False},
        ),
        System(
            "weir-files",
            *ours,
            "the same, and files are read on the servers (weir.files), not by Spark",
            options=lambda p: {"table": True, "files": True},
        ),
        System(
            "weir-hash",
            *ours,
            "plain hashing, as in Storm",
            options=lambda p: {"table": False, "files": False},
        ),
        System(
            "spark",
            spark,
            RUNNERS / "spark_chain.py",
            EXACTLY_ONCE,
            "two chained transformWithStateInPandas, RocksDB, checkpoint per micro-batch",
            (f"pyspark=={spark}", "pandas>=2.2,<3", "pyarrow>=18", "numpy>=2,<3", "protobuf>=5.29"),
            # it makes calls per key and micro-batch, so it gets fewer micro-batches rather than smaller ones
            most_batches=3,
        ),
        System(
            "flink",
            flink,
            RUNNERS / "flink_job.py",
            EXACTLY_ONCE,
            "two PyFlink KeyedProcessFunctions, process mode, checkpoint every 2 s",
            (f"apache-flink=={flink}",),
            most_rows=40_000,
            options=lambda p: {"mode": "process", "bundle": 10_000, "checkpoint_seconds": 2},
            # without it a local run keeps all Python code in one process, under one interpreter lock
            environment={"_python_worker_execution_mode": "process"},
        ),
        *(
            System(
                name,
                flink,
                jvm,
                EXACTLY_ONCE,
                f"two KeyedProcessFunctions in Java, state {where}, checkpoint every 2 s",
                java="flink",
                most_rows=most,
                options=lambda p, backend=backend: {"backend": backend, "checkpoint_seconds": 2},  # type: ignore[misc]
            )
            for name, backend, where, most in (
                ("flink-heap", "hashmap", "on the heap", None),
                ("flink-rocksdb", "rocksdb", "in RocksDB, incremental", 200_000),
            )
        ),
        System(
            "kafka-streams",
            "4.3.1",
            jvm,
            EXACTLY_ONCE,
            "two repartitions and stores, exactly_once_v2, a broker of its own, which counts",
            java="kafka_streams",
            most_rows=50_000,
            options=lambda p: {"commit_ms": 100, "batch_bytes": 262_144},
        ),
        *(
            System(
                f"storm-{grouping}",
                "2.8.3",
                jvm,
                "rows at least once, counts none",
                f"{how}, every row acknowledged, a worker process per core; counts are lost with a worker",
                java="storm",
                most_rows=50_000,
                options=lambda p, grouping=grouping: {"grouping": grouping, "pending": 4_000},  # type: ignore[misc]
            )
            for grouping, how in (
                ("fields", "fields grouping"),
                ("partial", "partial key grouping, whose partial counts wait to be added up"),
                ("local", "local or shuffle grouping, whose partial counts wait to be added up"),
            )
        ),
        System(
            "bytewax",
            bytewax,
            RUNNERS / "bytewax_flow.py",
            "none",
            "stateful_batch twice, one process per core, no recovery store: state is lost with a process",
            (f"bytewax=={bytewax}", "pyarrow>=18"),
            needs_java=False,
            options=lambda p: {"batch": rows_per_read(p)},
        ),
    ]
    return {system.name: system for system in listed}
