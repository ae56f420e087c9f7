"""``weir bench scale``: the driver's work for a batch, alone, for up to a thousand servers.

Everything that tasks would send is made up (:mod:`~weir_evaluation.bench.made_up`); plan, reading of reports and
statistics, checks, progress, commit, learning, tables and clean-up are the engine's own. Proposals are computed beside
the batches, and measured apart.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

import weir
from weir.engine.batch.bootstrap import open_query
from weir.engine.batch.driver import Driver
from weir.engine.progress import RoutingProgress
from weir.flow import parts_of
from weir.locality.counts import PairCounts
from weir.locality.proposal import propose
from weir.locality.stats import BatchStats
from weir.options import Options
from weir.routing.table import Table
from weir.state.local_files import without_flushing
from weir.state.storage import Storage
from weir_evaluation.bench.made_up import MadeUpRunner, key_hashes, racks
from weir_evaluation.bench.partition import fresh_mark, measured, memory_mb

HELP = "the driver's work for a batch with up to a thousand servers, alone"
AXES = ("servers", "keys", "operators")
GROWING = ("driver_s", "driver_mb", "to_driver_bytes", "per_task_bytes")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--servers", default="10,100,1000")
    parser.add_argument("--keys", default="1e5,1e6,1e7,1e8", help="keys seen so far, per operator")
    parser.add_argument("--operators", default="2,8")
    parser.add_argument("--batches", type=int, default=10, help="batches measured; a tenth one cleans up")
    parser.add_argument(
        "--warm-up", type=int, default=12, help="batches before, so that segments have piled up"
    )
    parser.add_argument(
        "--lines", action="store_true", help="vary one at a time, the others at their largest"
    )
    parser.add_argument("--proposals", action="store_true", help="measure a reconfiguration's proposal, too")
    parser.add_argument("--quick", action="store_true", help="few servers and keys, to see that it works")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures every combination; returns the points and the exponents of growth."""
    if args.quick:
        args.servers, args.keys, args.operators, args.batches, args.warm_up = "4,8", "1e3,1e4", "2,3", 2, 1
    axes = [sorted({int(float(x)) for x in getattr(args, axis).split(",")}) for axis in AXES]
    points = []
    _point(4, 1000, 2, batches=1, warm_up=1, proposals=False)  # compiles
    for servers, keys, operators in itertools.product(*axes):
        at_most = sum(x == max(axis) for x, axis in zip((servers, keys, operators), axes, strict=True))
        if args.lines and at_most < 2:
            continue
        console.print(f"{servers} servers, {keys:.0e} keys, {operators} operators")
        terms = (servers, keys, operators, args.batches, args.warm_up, args.proposals)
        if args.quick:
            points.append(_point(*terms))
            continue
        # a process of its own for each: what one has held must not count for the next
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            points.append(pool.submit(_point, *terms).result())
    return {"points": points, "growth": growth(points)}


def _point(
    servers: int, keys: int, operators: int, batches: int, warm_up: int, proposals: bool
) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix="weir-scale-")
    start = fresh_mark()
    try:
        driver, runner = _driver(Path(folder), servers, keys, operators)
        _remember(driver, keys)
        _batches(driver, runner, warm_up)
        fresh_mark()
        seconds = _batches(driver, runner, batches)
        point: dict[str, Any] = {
            "servers": servers,
            "keys": keys,
            "operators": operators,
            "driver_s": round(float(np.mean(seconds)), 4),
            "driver_s_median": round(float(np.median(seconds)), 4),
            "driver_mb": None if start is None else round(memory_mb("VmHWM") - start, 1),
            "to_driver_bytes": runner.to_driver,
            "per_task_bytes": runner.per_task,
            "table_bytes": _table_bytes(driver),
            "counted": (driver.lifecycle.recent[-1].routing or RoutingProgress()).counted["o0"],
        }
        if proposals:
            assert driver.learner is not None
            began = time.perf_counter()
            snapshot = driver.learner.manager.snapshot()
            point["snapshot_s"] = round(time.perf_counter() - began, 3)
            _, cpu, mb = measured(lambda: propose(snapshot).servers[0])
            point["proposal_cpu_s"], point["proposal_mb"] = round(cpu, 2), mb
        driver.close()
        return point
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _driver(folder: Path, servers: int, keys: int, operators: int) -> tuple[Driver, MadeUpRunner]:
    """Opens a checkpoint for a chain of counts that starts with full tables."""
    stream = weir.source(", ".join(f"k{o} long" for o in range(operators)))
    for o in range(operators):
        stream = stream.keyed(f"k{o}", weir.Count(emit="rows"), name=f"o{o}")
    locality = weir.Locality(period=None, hierarchy="hosts", tables=_tables(folder, servers, keys, operators))
    options = Options(servers=servers, routing=locality, racks=racks(servers))
    runner = MadeUpRunner(Storage(str(folder / "checkpoint")), keys)
    with without_flushing():
        driver = open_query(parts_of(stream), options, runner)
    return driver, runner


def _tables(folder: Path, servers: int, keys: int, operators: int) -> dict[str, str]:
    """Writes a table per operator that lists as many keys as a manager remembers."""
    listed = min(keys, weir.Locality().capacity)
    homes = (np.arange(listed) % servers).astype(np.int32)
    paths = {}
    for o in range(operators):
        paths[f"o{o}"] = str(folder / f"o{o}.arrow")
        hashes = key_hashes(o, np.arange(listed))
        order = np.argsort(hashes)
        Table(hashes[order], homes[order], servers, f"o{o}").save(paths[f"o{o}"])
    return paths


def _remember(driver: Driver, keys: int) -> None:
    """Lets the manager see so many keys, and as many pairs, before the first batch."""
    assert driver.learner is not None
    manager = driver.learner.manager
    seen = np.arange(min(keys, manager.config.capacity))
    pairs = {}
    for a, b in manager.edges:
        counts = np.full(len(seen), 2.0)
        left, right = key_hashes(a, seen), key_hashes(b, seen)
        order = np.argsort(left)
        pairs[a, b] = PairCounts(left[order], right[order], counts)
    nothing = {o: PairCounts.empty() for o in range(len(manager.operators))}
    for _ in range(max(1, manager.config.batches // 5) + 1):
        manager.observe(BatchStats(nothing, pairs, dict.fromkeys(nothing, 1.0)))
        manager.plan_next()
        pairs = {}


def _batches(driver: Driver, runner: MadeUpRunner, count: int) -> list[float]:
    """Runs so many batches; returns the CPU seconds that the driver's thread took for each."""
    last = driver.ledger.last
    first = 0 if last is None else last.batch + 1
    seconds = []
    for batch in range(first, first + count):
        made_up, began = runner.outside, time.thread_time()
        driver.batch(None, batch)
        seconds.append(time.thread_time() - began - (runner.outside - made_up))
        with without_flushing():
            runner.touch()
    return seconds


def _table_bytes(driver: Driver) -> int:
    """What a worker reads that has no table yet."""
    last = driver.ledger.last
    assert last is not None
    return sum(file.bytes for ref in last.tables.values() for file in ref.files)


def growth(points: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The exponent of growth of each figure along each axis, where the other two are largest.

    >>> points = [{"servers": n, "keys": 1, "operators": 1, "driver_s": 0.1 * n**0.5} for n in (10, 100, 1000)]
    >>> growth(points)["driver_s"]
    {'servers': 0.5}
    """
    largest = {axis: max(p[axis] for p in points) for axis in AXES}
    out: dict[str, dict[str, float]] = {}
    for what, axis in itertools.product(GROWING, AXES):
        others = [other for other in AXES if other != axis]
        line = [
            p
            for p in points
            if all(p[other] == largest[other] for other in others) and (p.get(what) or 0) > 0
        ]
        if len({p[axis] for p in line}) > 1:
            slope = np.polyfit(np.log([p[axis] for p in line]), np.log([p[what] for p in line]), 1)[0]
            out.setdefault(what, {})[axis] = round(float(slope), 2)
    return out


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the points, and how they grow."""
    table = Shown(title="the driver's work for a batch")
    names = (
        "servers",
        "keys",
        "operators",
        "seconds",
        "MB",
        "MB to the driver",
        "kB per task",
        "MB of tables",
    )
    for column in names:
        table.add_column(column, justify="right")
    for p in result["points"]:
        table.add_row(
            str(p["servers"]),
            f"{p['keys']:.0e}",
            str(p["operators"]),
            f"{p['driver_s']:.3f}",
            "" if p["driver_mb"] is None else f"{p['driver_mb']:.0f}",
            f"{p['to_driver_bytes'] / 1e6:.1f}",
            f"{p['per_task_bytes'] / 1e3:.0f}",
            f"{p['table_bytes'] / 1e6:.1f}",
        )
    console.print(table)
    grown = Shown(title="exponents of growth")
    for column in ("", *AXES):
        grown.add_column(column, justify="left" if not column else "right")
    for what, slopes in result["growth"].items():
        grown.add_row(what, *(f"{slopes[axis]:.2f}" if axis in slopes else "" for axis in AXES))
    console.print(grown)
