"""``weir scale``: adds servers to a query that runs in another process, or lets some go.

The request goes through the checkpoint; the query decides, and its next batch carries it out. ``--dry-run`` asks the
last commit alone, whether the query runs or not, and changes nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weir.elasticity.explain import text
from weir.engine.ledger import latest_commit
from weir.engine.metrics.load import situation
from weir.engine.requests import Request, await_answer, decide, submit
from weir.errors import CheckpointError, EngineError
from weir.state.storage import Storage


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="the folder or URI that the query was started with")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=int, metavar="K", help="add K servers")
    what.add_argument("--in", type=int, metavar="K", dest="into", help="let K servers go")
    what.add_argument("--hosts", nargs="+", metavar="HOST", help="let the servers on these hosts go")
    parser.add_argument(
        "--whole-hosts",
        action="store_true",
        help="K counts hosts, with all their servers, instead of servers",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and why; do nothing")
    parser.add_argument("--strategy", default="stela", help="stela (default), gain, or a rival")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for the query (120)")
    parser.add_argument(
        "--share-slots", action="store_true", help="let servers take turns on the task slots there are"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    storage = Storage(args.checkpoint)
    last = latest_commit(storage)
    if last is None:
        raise CheckpointError(f"{storage.root}: no batch has been committed there yet")
    request = Request(
        "out" if args.out is not None else "in",
        args.out if args.out is not None else args.into or 1,
        tuple(args.hosts or ()),
        args.strategy,
        share_slots=args.share_slots,
        whole_hosts=args.whole_hosts,
    )
    if args.dry_run:
        load: Any = last.progress.get("load")
        if not load or not load["rates"]:
            raise EngineError(f"{storage.root}: its last batch had no rows, so there is nothing to decide by")
        now = situation(load)
        servers: Any = last.progress["servers"]
        decision = decide(request, now, [s["host"] for s in servers])
        return {
            "state": "dry run",
            "operation": request.operation,
            "from": len(decision.before.machines),
            "to": len(decision.after.machines),
            "steps": [[s.operator, s.source, s.target, s.why] for s in decision.steps],
            "text": text(decision, now),
        }
    name = submit(storage, request)
    with console.status("waiting for the query's next batches"):
        answer = await_answer(storage, name, args.timeout)
    if answer["state"] == "refused":
        raise EngineError(answer["error"])
    return answer


def show(result: dict[str, Any], console: Console) -> None:
    console.print(result.get("text", ""), highlight=False, markup=False)
    if result["state"] == "dry run":
        console.print(f"would go from {result['from']} to {result['to']} servers; nothing was changed")
    else:
        moved = f"{result['moved_keys']:,} keys moved with their state"
        console.print(f"went from {result['from']} to {result['to']} servers; {moved}")
        if result.get("released"):
            console.print(f"executors given back: {', '.join(result['released'])}")
