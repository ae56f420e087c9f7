"""What it costs to check in every batch that nothing was lost: the same stream with and without, side by side."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from weir.engine.task import invariants
from weir_evaluation.bench.data import write_pairs
from weir_evaluation.bench.engine import weir_speed

HELP = "throughput with and without the invariants that every batch is checked for"
TARGET = 0.97


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir bench invariants``."""
    parser.add_argument("--rows", type=int, default=400_000, help="rows per micro-batch")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches per run, after one to warm up")
    parser.set_defaults(warm_up=1, execution="auto")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys of each operator")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=4, help="rounds; each has both ways in turn")


@contextlib.contextmanager
def checked(enabled: bool) -> Iterator[None]:
    """Let this driver check invariants, or not; for measurements only."""
    before, invariants.enabled = invariants.enabled, enabled
    try:
        yield
    finally:
        invariants.enabled = before


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run both ways in turn, in an order that changes from round to round; the ratio is the median of the rounds'."""
    from weir.spark.session import embedded

    spark = embedded(f"local[{args.servers + 2}]", **{"spark.sql.shuffle.partitions": str(args.servers)})
    work = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    speeds: dict[bool, list[float]] = {True: [], False: []}
    answers = set()
    try:
        data = work / "data"
        shape = {"keys": args.keys, "servers": args.servers, "locality": 0.5, "payload": 0}
        write_pairs(data, batches=args.batches + 1, rows=args.rows, **shape)
        for number in range(args.repeat + 1):
            for enabled in [True, False][:: 1 if number % 2 else -1]:
                folder = work / f"{number}-{enabled}"
                with checked(enabled):
                    speed, answer = weir_speed(spark, data, folder, args, (None, None))
                shutil.rmtree(folder, ignore_errors=True)
                answers.add(str(answer))
                if number:  # the first round warms up
                    speeds[enabled].append(speed)
                console.print(
                    f"round {number}, {'with' if enabled else 'without'}: {speed:,.0f} rows/s", style="dim"
                )
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()
    if len(answers) > 1:
        raise AssertionError(f"the two ways disagree on the result: {answers}")
    ratios = [a / b for a, b in zip(speeds[True], speeds[False], strict=True)]
    return {
        "rows_per_s": {"with": statistics.median(speeds[True]), "without": statistics.median(speeds[False])},
        "ratios": [round(r, 4) for r in ratios],
        "ratio": round(statistics.median(ratios), 4),
        "target": TARGET,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print both throughputs and their ratio."""
    both = result["rows_per_s"]
    console.print(
        f"with invariants {both['with']:,.0f} rows/s, without {both['without']:,.0f}: {result['ratio']:.3f} × "
        f"(rounds: {', '.join(f'{r:.3f}' for r in result['ratios'])}; target {result['target']} or more)"
    )
