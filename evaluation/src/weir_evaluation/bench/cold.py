"""What a first run costs: the demo's application on Spark with nothing compiled, compiled ahead, and once more."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HELP = "the first run on a new machine: when the first batch ends, and when the first table is in force"
MOST_BATCHES = 60


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=20_000, help="rows per micro-batch")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind; medians are reported")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    work = Path(tempfile.mkdtemp(prefix="weir-cold-"))
    kinds: dict[str, list[dict[str, float]]] = {"cold": [], "compiled": [], "warm": []}
    compiles = []
    try:
        for number in range(args.runs):
            ahead = work / f"ahead-{number}"
            command = [sys.executable, "-m", "weir.cli.main", "compile", "--json", "--cache", str(ahead)]
            compiles.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            for kind, cache in (("cold", work / f"cold-{number}"), ("compiled", ahead), ("warm", ahead)):
                measured = _measure(args, work / f"{kind}-run-{number}", cache)
                kinds[kind].append(measured)
                console.print(f"{kind}: {measured}", highlight=False)
        compile_ = {name: _middle([c[name] for c in compiles]) for name in ("functions", "cpu_s", "wall_s")}
        return {**{kind: _medians(runs) for kind, runs in kinds.items()}, "compile": compile_, "runs": kinds}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: _middle([one[name] for one in runs]) for name in runs[0]}


def _middle(values: list[float]) -> float:
    return round(statistics.median(values), 2)


def _measure(args: argparse.Namespace, folder: Path, cache: Path) -> dict[str, float]:
    """Run the application in a process of its own; return its times, and the CPU of all its processes."""
    terms = json.dumps({"rows": args.rows, "servers": args.servers, "folder": str(folder)})
    command = [sys.executable, "-m", "weir_evaluation.bench.cold", terms]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not lines:
        raise RuntimeError(f"the application failed with exit code {process.returncode}")
    return {**json.loads(lines[-1]), "cpu_s": round(used.ru_utime + used.ru_stime, 2)}


def _application(terms: dict[str, Any]) -> dict[str, float]:
    """Run the demo's application until the first table is in force; return when that was, after the first batch."""
    import weir
    from weir.cli.demo import SCHEMA, Posts, application
    from weir.spark.session import embedded

    work, servers = Path(terms["folder"]), terms["servers"]
    (work / "posts").mkdir(parents=True)
    posts = Posts(terms["rows"])
    posts.write(work / "waiting", MOST_BATCHES)
    waiting = sorted((work / "waiting").iterdir())
    spark = embedded(f"local[{servers + 2}]", **{"spark.driver.memory": "2g"})
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(work / "posts"))
    began = time.perf_counter()
    query = application(stream).start(
        str(work / "checkpoint"),
        servers=servers,
        routing=weir.Locality(period=5),
        sink=lambda frame, batch: None,
    )
    first = table = None
    done = -1
    while table is None:
        offered = len(list((work / "posts").iterdir()))
        if offered == done + 1:
            if offered == MOST_BATCHES:
                raise RuntimeError(f"no table in {MOST_BATCHES} batches")
            waiting[offered].rename(work / "posts" / waiting[offered].name)
        progress = query.progress
        if progress is not None and progress.batch > done:
            done = progress.batch
            first = first or time.perf_counter()
            table = time.perf_counter() if progress.table_version else None
        elif not query.is_active:
            query.await_termination()
        time.sleep(0.02)
    query.stop()
    spark.stop()
    assert first is not None
    return {"first_batch_s": round(first - began, 2), "first_table_s": round(table - first, 2)}


def show(result: dict[str, Any], console: Console) -> None:
    drawn = Table(title="the first run: seconds until …")
    for column in ("", "the first batch", "the first table, after that", "CPU"):
        drawn.add_column(column, justify="left" if not column else "right")
    names = {"cold": "nothing compiled", "compiled": "after weir compile", "warm": "once more"}
    for kind, label in names.items():
        one = result[kind]
        drawn.add_row(
            label, f"{one['first_batch_s']:.1f}", f"{one['first_table_s']:.1f}", f"{one['cpu_s']:.0f}"
        )
    console.print(drawn)
    ahead = result["compile"]
    console.print(
        f"weir compile: {ahead['functions']:.0f} functions, {ahead['cpu_s']:.1f} s of CPU, {ahead['wall_s']:.1f} s",
        highlight=False,
    )


if __name__ == "__main__":
    print(json.dumps(_application(json.loads(sys.argv[1]))))
