"""A query that runs for long: memory, disk, open files and batch time at its beginning and at its end."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weir.engine.batch.driver import CLEAN_EVERY
from weir_evaluation.bench.peers.meter import cpu_seconds, descendants

HELP = "memory of driver and workers, disk, open files, batch time of a long run: first tenth against last"
TOLERANCE = 0.05
SAMPLES = 200
WARM_UP = 0.15  # of the run: JVM, caches and learnt tables settle
LONGEST_TOOTH = 10.0  # seconds to wait for a clean-up
# what may grow up to a bound: the checkpoint keeps a history of a few megabytes
BOUNDS = {"history": 4 << 20}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir bench soak``."""
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rows", type=int, default=2_000, help="rows per micro-batch")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--execution", choices=["live", "jobs"], default="live")


def application(spark: Any, rows: int) -> Any:
    """Return an application in which keys move, come and go: learnt counts, split sums, a process with a ttl."""
    import weir
    from weir_evaluation.bench.chaos.cases import Tallies

    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .load()
        .selectExpr(
            "'place ' || ((value * 7 + value div 50000) % 400) as place",
            "'topic ' || ((value * 7 + value div 50000) % 400 * 3 + value % 3) as topic",
            "value % 1000 as n",
            f"'visit ' || (value div {20 * rows}) as visit",  # keys that come, stay for some batches, and go
        )
    )
    posts = weir.source(frame)
    topics = posts.keyed("place", weir.Count(emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    sums = posts.keyed("topic", weir.Aggregate(total="sum(n)"), name="sums", routing=weir.PartialKey())
    visits = posts.keyed("visit", Tallies(), name="visits", ttl="20 s")
    return weir.Application(topics, sums, visits)


@dataclass
class Sample:
    """What the processes of a query use at one moment."""

    driver_rss: int
    jvm_rss: int
    jvm_heap: int  # that is left after a collection
    worker_rss: int  # of the largest worker
    open_files: int
    disk: int  # of the checkpoint, without its history, after a clean-up
    disk_files: int
    history: int
    batch_seconds: float
    batch_cpu_seconds: float  # of all processes: what else runs on the machine matters less to it


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run a query for so many minutes, and compare the first tenth with the last."""
    import weir
    from weir.spark.session import embedded

    spark = embedded(
        f"local[{args.servers + 2}]",
        **{"spark.driver.memory": "1g", "spark.sql.streaming.minBatchesToRetain": "10"},
    )
    folder = tempfile.mkdtemp(prefix="weir-soak-")
    samples: list[Sample] = []
    try:
        query = application(spark, args.rows).start(
            f"{folder}/checkpoint",
            servers=args.servers,
            routing=weir.Locality(period=10),
            execution=args.execution,
            sink={name: lambda frame, batch: None for name in ("topics", "sums", "visits")},
        )
        began = time.monotonic()
        end, pause = began + 60 * args.minutes, 60 * args.minutes / SAMPLES
        meter = _CpuPerBatch()
        while time.monotonic() < end:
            time.sleep(pause)
            if query.exception() is not None or not query.is_active:
                query.await_termination(1)
            if query.progress is not None and time.monotonic() - began > WARM_UP * 60 * args.minutes:
                samples.append(_sample(spark, query, f"{folder}/checkpoint", meter))
                if len(samples) % 20 == 0:
                    console.print(
                        f"batch {query.progress.batch}: {samples[-1]}", style="dim", highlight=False
                    )
        batches = query.progress.batch + 1
        query.stop()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return {"minutes": args.minutes, "batches": batches, **compared(samples)}


class _CpuPerBatch:
    """CPU seconds per batch of this process and all that it has started, from one reading to the next."""

    def __init__(self) -> None:
        self._cpu, self._batch = 0.0, -1

    def read(self, processes: list[int], batch: int) -> float:
        cpu = cpu_seconds(processes)
        used, batches = cpu - self._cpu, batch - self._batch
        self._cpu, self._batch = cpu, batch
        return used / batches if batches else 0.0


def _sample(spark: Any, query: Any, checkpoint: str, meter: _CpuPerBatch) -> Sample:
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    jvm = spark.sparkContext._gateway.proc.pid
    processes = descendants(os.getpid())
    workers = [p for p in processes if p != jvm and "java" not in command(p)]
    files = sum(_open_files(p) for p in [os.getpid(), *processes])
    disk, count, history = _least_disk(query, checkpoint)
    recent = [p.seconds.batch for p in query.recent_progress[-20:] if p.seconds.batch]
    return Sample(
        driver_rss=_rss(os.getpid()),
        jvm_rss=max((_rss(p) for p in processes if "java" in command(p)), default=0),
        jvm_heap=runtime.totalMemory() - runtime.freeMemory(),
        worker_rss=max((_rss(p) for p in workers), default=0),
        open_files=files,
        disk=disk,
        disk_files=count,
        history=history,
        batch_seconds=statistics.median(recent) if recent else 0.0,
        batch_cpu_seconds=meter.read([os.getpid(), *processes], query.progress.batch),
    )


def compared(samples: list[Sample]) -> dict[str, Any]:
    """Return the medians of the first and the last tenth of all samples, and by how much they differ."""
    tenth = max(1, len(samples) // 10)
    out: dict[str, Any] = {}
    for name in Sample.__dataclass_fields__:
        first = statistics.median(getattr(s, name) for s in samples[:tenth])
        last = statistics.median(getattr(s, name) for s in samples[-tenth:])
        growth = last / first - 1 if first else 0.0
        flat = growth <= TOLERANCE if name not in BOUNDS else last <= BOUNDS[name]
        out[name] = {"first": first, "last": last, "growth": round(growth, 4), "flat": flat}
    return {"samples": len(samples), "measures": out}


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    return ""


def _rss(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def _least_disk(query: Any, checkpoint: str) -> tuple[int, int, int]:
    """Return bytes and files of a checkpoint without its history, and the bytes of that.

    Files gather until a clean-up, every ten batches, so that the size is a saw-tooth: the least of one tooth counts.
    """
    readings = [_disk(checkpoint)]
    last, end = query.progress.batch + CLEAN_EVERY, time.monotonic() + LONGEST_TOOTH
    while query.progress.batch <= last and time.monotonic() < end:
        time.sleep(0.1)
        readings.append(_disk(checkpoint))
    return min(readings)


def _disk(checkpoint: str) -> tuple[int, int, int]:
    size = count = history = 0
    for at, _, names in os.walk(checkpoint):
        for name in names:
            with contextlib.suppress(OSError):
                length = os.path.getsize(f"{at}/{name}")
                if at.startswith(f"{checkpoint}/history"):
                    history += length
                else:
                    size, count = size + length, count + 1
    return size, count, history


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if anything has grown."""
    return int(not all(measure["flat"] for measure in result["measures"].values()))


def show(result: dict[str, Any], console: Console) -> None:
    """Print the first and the last tenth of the run side by side."""
    title = f"{result['minutes']:g} minutes, {result['batches']} batches, {result['samples']} samples"
    table = Table(title=title, title_justify="left")
    for column in ("measure", "first tenth", "last tenth", "growth", ""):
        table.add_column(column, justify="left" if column in ("measure", "") else "right")
    for name, measure in result["measures"].items():
        said = "[green]flat" if measure["flat"] else "[red]grows"
        first, last = (f"{measure[k]:,.3f}".rstrip("0").rstrip(".") for k in ("first", "last"))
        table.add_row(name, first, last, f"{measure['growth']:+.1%}", said)
    console.print(table)
