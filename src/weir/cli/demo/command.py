"""The command ``weir demo``: its options, and the whole run from start to end."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from weir.cli.demo.job import WAITING, Job
from weir.cli.demo.posts import Posts
from weir.cli.demo.screen import Screen
from weir.cli.demo.session import handle_interrupts, start_spark
from weir.cli.demo.summary import show
from weir.errors import EngineError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir demo``."""
    add = parser.add_argument
    add("--batches", type=int, default=30, help="micro-batches in the stream (default 30)")
    add("--rows", type=int, default=40_000, help="posts per micro-batch (default 40,000)")
    add("--servers", type=int, default=4, help="servers (default 4)")
    add("--seconds", type=float, default=75, help="end the stream after so many seconds (default 75)")
    add(
        "--routing",
        choices=["locality", "hash"],
        default="locality",
        help="learn homes from the stream (locality, the default), or route by hash throughout",
    )
    add("--by-hash", type=int, default=5, metavar="N", help="batches routed by hash first (default 5)")
    add("--master", default="local[2]", help="Spark master (default local[2])")
    add("--keep", metavar="FOLDER", help="keep the stream and the checkpoint in this new folder")
    add("--seed", type=int, default=0, help="fixes the stream (default 0)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Make the stream, run the job over it and compare its counts with plain Spark's."""
    if args.batches < 1 or args.rows < 1:
        raise EngineError("the demo needs at least one batch of at least one row")
    if args.keep and Path(args.keep).exists():
        raise EngineError(f"{args.keep}: exists already; --keep needs a new folder")
    work = Path(args.keep or tempfile.mkdtemp(prefix="weir-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        result = _run(args, work, console if args.json else Console())
        return {**result, "kept": str(work) if args.keep else None}
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if the counts are not plain Spark's."""
    return 0 if result["check"]["equal"] else 1


def _run(args: argparse.Namespace, work: Path, console: Console) -> dict[str, Any]:
    began = time.perf_counter()
    posts = Posts(args.rows, seed=args.seed)
    writer = threading.Thread(target=posts.write, args=(work / WAITING, args.batches), daemon=True)
    writer.start()  # writes while the JVM starts
    with console.status("starting Spark, and making up a stream of posts"):
        spark = start_spark(args.master, work / "spark.log")
        writer.join()
    handle_interrupts()
    try:
        ready = time.perf_counter()
        job = Job(spark, work, args.servers, args.seconds)
        by_hash = args.batches if args.routing == "hash" else min(args.by_hash, args.batches)
        terms = {"servers": args.servers, "expected": args.batches}
        with Screen(console, job.batches, job.trending, **terms) as screen:
            result = job.run(args.batches, by_hash, screen.update)
        streamed = time.perf_counter()
        with console.status("comparing with plain Spark"):
            check = job.compare()
        total = time.perf_counter() - began
    finally:
        spark.stop()
    seconds = {"start": ready - began, "stream": streamed - ready, "total": total}
    return {"routing": args.routing, **result, "seconds": seconds, "check": check}


__all__ = ["arguments", "exit_code", "run", "show"]
