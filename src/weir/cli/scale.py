"""``weir scale``: add servers to a query that runs in another process, or remove some.

The request goes through the checkpoint; the query decides, and its next batch carries it out. ``--dry-run`` decides by
the last commit alone, whether the query runs or not, and changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

from weir.engine.checkpoint import CheckpointLayout
from weir.engine.steering.requests import Request, await_answer, predict, submit
from weir.errors import CheckpointError, EngineError, WeirError
from weir.state.storage import Storage
from weir.watch.reader import RUNS, CheckpointReader


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir scale``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI that the query was started with")
    operation = parser.add_mutually_exclusive_group(required=True)
    operation.add_argument("--add", type=int, metavar="K", help="add K servers")
    operation.add_argument("--remove", type=int, metavar="K", help="remove K servers")
    operation.add_argument("--out", type=_renamed("--out", "--add"), help=argparse.SUPPRESS)
    operation.add_argument("--in", type=_renamed("--in", "--remove"), help=argparse.SUPPRESS)
    operation.add_argument("--hosts", nargs="+", metavar="HOST", help="remove the servers on these hosts")
    add("--whole-hosts", action="store_true", help="K counts hosts, with all their servers")
    add("--dry-run", action="store_true", help="say what would be done, and why; change nothing")
    add("--timeout", type=float, default=120.0, help="seconds to wait for the query (default 120)")
    add("--share-slots", action="store_true", help="let servers take turns on the task slots there are")


def _renamed(old: str, new: str) -> Callable[[str], None]:
    def refuse(value: str) -> None:
        raise WeirError(f"{old} is called {new} now: weir scale CHECKPOINT {new} {value}")

    return refuse


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Ask the query to scale and return its answer, or decide here with ``--dry-run``."""
    storage = Storage(args.checkpoint)
    commit = CheckpointLayout(storage).latest_commit()
    if commit is None:
        raise CheckpointError(f"{storage.root}: no batch has been committed there yet")
    request = Request(
        "out" if args.add is not None else "in",
        args.add if args.add is not None else args.remove or 1,
        tuple(args.hosts or ()),
        share_slots=args.share_slots,
        whole_hosts=args.whole_hosts,
    )
    if args.dry_run:
        return predict(commit, request)
    status = CheckpointReader(storage).status()
    if status.state not in RUNS:
        raise EngineError(
            f"{storage.root}: no query runs there ({status.text or status.state}). For another number of servers "
            "at its next start, say servers=; --dry-run tells what scaling would do"
        )
    name = submit(storage, request)
    with console.status("waiting for the query's next batches"):
        answer = await_answer(storage, name, args.timeout)
    if answer["state"] == "refused":
        raise EngineError(answer["error"])
    return answer


def show(result: dict[str, Any], console: Console) -> None:
    """Print the decision and what became of it."""
    console.print(result.get("text", ""), highlight=False, markup=False)
    if result["state"] == "dry run":
        console.print(f"would go from {result['from']} to {result['to']} servers; nothing was changed")
    else:
        moved = f"{result['moved_keys']:,} keys moved with their state"
        console.print(f"went from {result['from']} to {result['to']} servers; {moved}")
        if result.get("released"):
            console.print(f"executors given back: {', '.join(result['released'])}")
