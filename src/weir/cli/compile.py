"""``weir compile``: compile all that numba compiles, once per installation, so that no query has to."""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weir import compiled


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir compile``."""
    add = parser.add_argument
    add(
        "--cache",
        metavar="FOLDER",
        help="keep the compiled code there (default: in the package, or in the user's cache if that is read-only)",
    )
    add("--jobs", type=int, metavar="N", help="processes to compile in (default: one per core)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Compile what is not compiled yet."""
    if args.cache:
        os.environ["NUMBA_CACHE_DIR"] = os.path.abspath(args.cache)
    began, used = time.perf_counter(), _cpu()
    bar = Progress(
        TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    )
    with bar:
        task = bar.add_task("compiling", total=None)
        count = compiled.compile_all(
            jobs=args.jobs, tell=lambda done, all_of: bar.update(task, completed=done, total=all_of)
        )
    return {
        "functions": len(compiled.declared()),
        "compiled": count,
        "cpu_s": round(_cpu() - used, 2),
        "wall_s": round(time.perf_counter() - began, 2),
        "folder": str(compiled.writable()),
        "cache": args.cache and os.environ["NUMBA_CACHE_DIR"],
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was compiled, and where it is."""
    if not result["compiled"]:
        console.print(f"all {result['functions']} functions are compiled already", highlight=False)
    else:
        console.print(
            f"compiled {result['compiled']} of {result['functions']} functions in {result['wall_s']:.1f} s, "
            f"into {result['folder']}",
            highlight=False,
            soft_wrap=True,
        )
    if result["cache"]:
        console.print(f"let queries find them: export NUMBA_CACHE_DIR={result['cache']}", highlight=False)
