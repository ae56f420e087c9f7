"""The command ``weir demo``: its options, and the whole run from start to end."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from weir.cli.demo.execution import WAITING, BatchContext
from weir.cli.demo.posts import Posts
from weir.cli.demo.screen import Screen
from weir.cli.demo.summary import show
from weir.errors import EngineError, WeirError


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
    add("--master", help="Spark master (default: this machine, with room for live servers)")
    add("--keep", metavar="FOLDER", help="keep the stream and the checkpoint in this new folder")
    add("--seed", type=int, default=0, help="fixes the stream (default 0)")
    add("--no-page", action="store_true", help="do not serve the page that shows the stream")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Make the stream, run the job over it and compare its counts with plain Spark's."""
    if min(args.batches, args.rows, args.servers) < 1:
        raise EngineError("the demo needs at least one batch, one row per batch and one server")
    if args.routing == "locality" and args.batches - args.by_hash < 2:
        raise EngineError(
            "homes are learnt from one batch and used in the next; give the demo more --batches"
        )
    if args.keep and Path(args.keep).exists():
        raise EngineError(f"{args.keep}: exists already; --keep needs a new folder")
    work = Path(args.keep or tempfile.mkdtemp(prefix="weir-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    if not args.keep:
        atexit.register(
            shutil.rmtree, work, ignore_errors=True
        )  # at the very end: the page shows it until then
    result = _run(args, work, console if args.json else Console())
    return {**result, "kept": str(work) if args.keep else None}


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if the counts are not plain Spark's."""
    return 0 if result["check"]["equal"] else 1


def _run(args: argparse.Namespace, work: Path, console: Console) -> dict[str, Any]:
    began = time.perf_counter()
    posts = Posts(args.rows, seed=args.seed)
    writer = threading.Thread(target=posts.write, args=(work / WAITING, args.batches), daemon=True)
    writer.start()  # writes while the JVM starts
    with console.status("starting Spark, and making up a stream of posts"):
        spark = _start_spark(args.master or f"local[{args.servers + 2}]", work / "spark.log")
        writer.join()
    _handle_interrupts()
    try:
        ready = time.perf_counter()
        job = BatchContext(spark, work, args.servers, args.seconds, page=not args.no_page)
        by_hash = args.batches if args.routing == "hash" else min(args.by_hash, args.batches)
        terms = {"servers": args.servers, "expected": args.batches}
        with Screen(
            console, job.batches, job.trending, lambda: job.page, lambda: job.doing, **terms
        ) as screen:
            result = job.run(args.batches, by_hash, screen.update)
        streamed = time.perf_counter()
        with console.status("comparing with plain Spark"):
            check = job.compare()
        total = time.perf_counter() - began
    finally:
        spark.stop()
    seconds = {"start": ready - began, "stream": streamed - ready, "total": total}
    return {"routing": args.routing, **result, "seconds": seconds, "check": check, "page": job.page}


def _start_spark(master: str, log: Path) -> Any:
    """Return a new session; what Spark writes to standard error while it starts goes to the file ``log``."""
    from weir.spark.session import embedded

    try:
        with _errors_to(log):
            return embedded(master, "weir-demo", **{"spark.driver.memory": "2g"})
    except WeirError:
        raise
    except Exception as error:
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise EngineError(
            f"Spark did not start ({condition or type(error).__name__}); it needs a Java 17+ runtime. "
            f"Its last line of output: {lines[-1] if lines else 'none'}"
        ) from None


def _handle_interrupts() -> None:
    """Replace PySpark's handler of Ctrl-C, which calls the JVM while another call may be under way."""

    def interrupt(*_: object) -> None:
        logging.disable(logging.CRITICAL)  # py4j would log the call that was cut short, with a traceback
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file, for this process and those that it starts meanwhile."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


__all__ = ["arguments", "exit_code", "run", "show"]
