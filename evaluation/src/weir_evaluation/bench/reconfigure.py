"""Reconfiguration in mid-stream on real Spark: before, during and after, and that nothing is lost or doubled.

Each run has a control beside it: the same batches of the same rows, without a reconfiguration. What changes in the
control, too (processes that have warmed up, a machine that others use), is not owed to the new tables, so the gain is
what the run gains over its control.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from weir.errors import ParameterError

HELP = (
    "hash first, locality-aware routing from mid-stream on: throughput, locality, what moved, what was lost"
)
SCHEMA = "k1 string, k2 string, k3 string, padding binary"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=200_000, help="rows per micro-batch without padding")
    parser.add_argument("--warm-up", type=int, default=3, help="batches that are not counted")
    parser.add_argument("--before", type=int, default=5, help="batches by hash")
    parser.add_argument("--after", type=int, default=5, help="batches after the reconfiguration")
    parser.add_argument("--keys", type=int, default=2_000, help="distinct keys of each operator")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument(
        "--locality", type=float, default=0.8, help="how often consecutive keys belong together"
    )
    parser.add_argument("--padding", type=int, action="append", help="bytes per row (default: 0 and 1000)")
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs, of whose reconfiguring batches the median counts"
    )
    parser.add_argument("--only", action="append", choices=["chain2", "chain3", "dag"])


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    if min(args.before, args.after) < 2:
        raise ParameterError("--before and --after: an error bar needs at least two batches each")
    spark = embedded(f"local[{args.servers + 2}]", **{"spark.driver.memory": "6g"})
    work = Path(tempfile.mkdtemp(prefix="weir-reconfigure-"))
    result: dict[str, Any] = {}
    paddings = args.padding or [0, 1000]
    try:
        for padding in paddings:
            rows = args.rows if padding == 0 else max(10_000, args.rows // 8)
            data = work / f"data-{padding}"
            _write(data, args, rows, padding)
            for name in args.only or ["chain2", "chain3", "dag"]:
                console.print(f"{name}, padding {padding} B: {rows:,} rows per batch")
                control = _measure(spark, data, work / f"{name}-{padding}-control", name, args, False)
                runs = [
                    _measure(spark, data, work / f"{name}-{padding}-{turn}", name, args, True)
                    for turn in range(args.repeat)
                ]
                measured = runs[-1] | {"control": control, "gain": gain(runs[-1], control)}
                ratios = sorted(run["reconfigure_batch_ratio"] for run in runs)
                measured |= {"reconfigure_batch_ratio": statistics.median(ratios), "batch_ratios": ratios}
                measured |= {what: sum(run[what] for run in runs) for what in ("lost", "doubled")}
                console.print(
                    f"  locality {measured['before']['locality']:.2f} → {measured['after']['locality']:.2f}, "
                    f"{measured['before']['rows_per_s']:,.0f} → {measured['after']['rows_per_s']:,.0f} rows/s; "
                    f"control {control['before']['rows_per_s']:,.0f} → {control['after']['rows_per_s']:,.0f}"
                )
                if padding == paddings[0]:
                    result[name] = measured
                else:
                    result[name].setdefault("padded", {})[str(padding)] = measured
            shutil.rmtree(data)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()
    return result


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(
        title="a reconfiguration in mid-stream (± standard error over batches; gain is over the control's)"
    )
    for column in ("application", "padding", "rows/s before", "after", "control after / before", "gain"):
        table.add_column(column, justify="right" if column != "application" else "left")
    for column in ("locality before", "after"):
        table.add_column(column, justify="right")
    for column in ("that batch / median", "keys moved", "lost", "doubled"):
        table.add_column(column, justify="right")
    for name, first in result.items():
        for padding, m in [("none", first), *first.get("padded", {}).items()]:
            table.add_row(
                name,
                str(padding),
                f"{m['before']['rows_per_s']:,.0f} ± {m['before']['error']:,.0f}",
                f"{m['after']['rows_per_s']:,.0f} ± {m['after']['error']:,.0f}",
                f"{m['control']['after']['rows_per_s'] / m['control']['before']['rows_per_s']:.2f}",
                f"{m['gain']['times']:.2f} ± {m['gain']['error']:.2f} ×",
                f"{m['before']['locality']:.2f}",
                f"{m['after']['locality']:.2f}",
                f"{m['reconfigure_batch_ratio']:.2f}",
                f"{m['moved_keys']:,}",
                str(m["lost"]),
                str(m["doubled"]),
            )
    console.print(table)


def _write(folder: Path, args: argparse.Namespace, rows: int, padding: int) -> None:
    """Keys that belong together are of one community, of which there are many more than servers."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    communities = 20 * args.servers
    for number in range(args.warm_up + args.before + args.after + 1):
        first = rng.integers(0, args.keys, rows)
        columns = [first]
        for _ in range(2):
            anywhere = rng.integers(0, args.keys, rows)
            together = anywhere - anywhere % communities + columns[-1] % communities
            columns.append(np.where(rng.random(rows) < args.locality, together % args.keys, anywhere))
        pool = rng.integers(0, 256, padding + (1 << 16), np.uint8).tobytes()
        starts = rng.integers(0, 1 << 16, rows)
        table = pa.table(
            {
                **{f"k{i + 1}": pa.array(c).cast(pa.string()) for i, c in enumerate(columns)},
                "padding": pa.array([pool[s : s + padding] for s in starts], pa.binary()),
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", compression="none", use_dictionary=False)


def _app(stream: Any, name: str) -> Any:
    import weir

    first = weir.source(stream, "rows").keyed("k1", weir.Count(emit="rows"), name="A")
    second = first.keyed("k2", weir.Count(emit="rows"), name="B")
    if name == "chain3":
        return second.keyed("k3", weir.Count(), name="C")
    if name == "dag":
        branch = first.keyed("k3", weir.Count(emit="rows"), name="C")
        return second.union(branch).keyed("k1", weir.Count(), name="D")
    return second


def speed(rows_per_s: Sequence[float]) -> dict[str, Any]:
    """Return the mean over batches and its standard error, None for a single batch.

    >>> speed([90.0, 110.0])
    {'rows_per_s': 100.0, 'error': 10.0}
    """
    several = len(rows_per_s) > 1
    error = statistics.stdev(rows_per_s) / len(rows_per_s) ** 0.5 if several else None
    return {"rows_per_s": statistics.fmean(rows_per_s), "error": error}


def gain(run: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, float]:
    """Return how much more a run has gained than its control, and the standard error of that (of four means).

    >>> flat = {"before": {"rows_per_s": 50.0, "error": 0.0}, "after": {"rows_per_s": 55.0, "error": 0.0}}
    >>> up = {"before": {"rows_per_s": 50.0, "error": 2.0}, "after": {"rows_per_s": 110.0, "error": 0.0}}
    >>> gain(up, flat)
    {'times': 2.0, 'error': 0.08}
    """
    parts = [run["after"], control["before"], run["before"], control["after"]]
    a, b, c, d = (part["rows_per_s"] for part in parts)
    times = a / c / (d / b)
    relative = sum((part["error"] / part["rows_per_s"]) ** 2 for part in parts) ** 0.5
    return {"times": times, "error": times * relative}


def _measure(
    spark: Any, data: Path, folder: Path, name: str, args: argparse.Namespace, reconfigures: bool
) -> dict[str, Any]:
    import weir

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
    app = _app(stream, name)
    ready = threading.Event()
    last = "D" if name == "dag" else ("C" if name == "chain3" else "B")
    turn = args.warm_up + args.before  # the batch with the new tables

    def sink(frame: Any, batch: int) -> None:
        ready.wait(60)
        if reconfigures and batch == turn - 1:
            query.reconfigure(wait=True)

    query = app.start(
        str(folder),
        servers=args.servers,
        routing=weir.Locality(period=None),
        prune=False,
        sink={last: sink},
        trigger={"availableNow": True},
    )
    ready.set()
    query.await_termination()
    progress = query.recent_progress
    seconds = {p.batch: p.seconds.batch for p in progress}
    before = [p for p in progress if args.warm_up <= p.batch < turn]
    after = [p for p in progress if p.batch > turn]

    def phase(part: list[Any]) -> dict[str, float]:
        local = sum(p.rows_local for p in part)
        return {
            **speed([p.rows / seconds[p.batch] for p in part]),
            "locality": local / (local + sum(p.rows_exchanged for p in part)),
        }

    lost, doubled = _check(spark, data, query, name)
    median = statistics.median(seconds[p.batch] for p in before)
    return {
        "before": phase(before),
        "after": phase(after),
        "reconfigure_batch_ratio": seconds[turn] / median,
        "moved_keys": sum(p.moved_keys for p in progress),
        "lost": lost,
        "doubled": doubled,
    }


def _check(spark: Any, data: Path, query: Any, name: str) -> tuple[int, int]:
    """Rows that plain Spark counts and Weir doesn't, and the other way round."""
    frame = spark.read.schema(SCHEMA).parquet(str(data))
    lost = doubled = 0
    expected = {"A": frame.groupBy("k1"), "B": frame.groupBy("k2")}
    if name != "chain2":
        expected["C"] = frame.groupBy("k3")
    if name == "dag":
        expected["D"] = frame.union(frame).groupBy("k1")
    for operator, grouped in expected.items():
        right = {tuple(r)[:-1]: r["count"] for r in grouped.count().collect()}
        ours = {tuple(r)[:-1]: r["count"] for r in query.state(operator).collect()}
        for key in right.keys() | ours.keys():
            difference = ours.get(key, 0) - right.get(key, 0)
            lost += max(0, -difference)
            doubled += max(0, difference)
    return lost, doubled
